// The gradient of Scan: a Scan the other way, whose body runs the forward body again from the carry
// that its iteration began with, and differentiates it. Kept from the forward pass: those carries,
// nothing else.
//
// Cotangents of xs that are to be added to a sum do not become ys: the sum is a carry, and each
// iteration adds to its row, which XLA does in place.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "forebay/xla/autodiff/vjp.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/region.h"
#include "forebay/xla/ops/scan.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

// Which results of the region depend differentiably on parameters marked in `needs`.
std::vector<bool> DependentResults(const Region& region, const std::vector<bool>& needs) {
  std::unordered_set<const Node*> dependent;
  for (size_t i = 0; i < needs.size(); ++i) {
    if (needs[i]) dependent.insert(region.params[i]);
  }
  const auto depends = [&](const Value& v) {
    return IsFloat(v.dtype()) && dependent.contains(v.node());
  };
  for (const Node* node : region.nodes) {
    if (node->primitive->passes_gradient() && std::ranges::any_of(node->operands, depends)) {
      dependent.insert(node);
    }
  }
  std::vector<bool> results;
  for (const Value& v : region.results) results.push_back(depends(v));
  return results;
}

// The final carries and ys are one node's outputs; from now on so are the carries of each
// iteration.
Values SaveCarries(Graph& graph, Node& node, const Region& region, ScanLayout layout) {
  const size_t first = region.results.size();
  if (!layout.saves_carries) {
    for (size_t i = 0; i < layout.num_carry; ++i) {
      Shape shape = node.outputs[i];
      shape.dims.insert(shape.dims.begin(), layout.length);
      node.outputs.push_back(std::move(shape));
    }
    layout.saves_carries = true;
    node.primitive = std::make_shared<ScanPrimitive>(&region, layout);
  }
  Values saved;
  for (size_t i = 0; i < layout.num_carry; ++i) {
    saved.emplace_back(&graph, &node, static_cast<int>(first + i));
  }
  return saved;
}

// `stack` with `value` added to its row `row`, an s32 scalar.
Value AddToRow(Value stack, Value row, Value value) {
  Values starts(stack.dims().size(), Constant(*stack.graph(), 0, DType::kS32));
  starts[0] = row;
  return DynamicUpdateSlice(stack, ExpandDims(IndexLeading(stack, row) + value, 0), starts);
}

// Walks the arguments of the backward body in the order in which they were listed.
class Reader {
 public:
  explicit Reader(std::span<const Value> values) : values_(values.begin(), values.end()) {}
  Value Next() { return values_[at_++]; }
  Values Next(size_t count) {
    Values taken;
    for (size_t i = 0; i < count; ++i) taken.push_back(Next());
    return taken;
  }

 private:
  Values values_;
  size_t at_ = 0;
};

}  // namespace

Values ScanPrimitive::Vjp(const VjpCall& call) const {
  Graph& graph = call.graph;
  const size_t num_carry = layout_.num_carry;
  const size_t num_xs = layout_.num_xs;
  const size_t num_captures = call.operands.size() - num_carry - num_xs;
  // Copies: SaveCarries replaces the node's primitive, and with the last reference this object.
  const Region& region = region_;
  const ScanLayout layout = layout_;
  const size_t ys = num_ys();

  // A carry is differentiated when its start is or when the body makes it depend on something that
  // is.
  std::vector<bool> needs = call.needs;
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<bool> results = DependentResults(region, needs);
    for (size_t i = 0; i < num_carry; ++i) {
      if (results[i] && !needs[i]) needs[i] = changed = true;
    }
  }
  const std::vector<bool> dependent = DependentResults(region, needs);

  // Backward carries: cotangents of active carries, the sums for captures, then those that xs are
  // added to.
  Values initial;
  std::vector<size_t> active;
  for (size_t i = 0; i < num_carry; ++i) {
    if (!needs[i]) continue;
    active.push_back(i);
    const Value& ct = call.cotangents[i];
    initial.push_back(ct.empty() ? ZerosLike(call.outputs[i]) : ct);
  }
  std::vector<size_t> captures;
  for (size_t i = num_carry + num_xs; i < call.operands.size(); ++i) {
    if (!needs[i]) continue;
    captures.push_back(i);
    initial.push_back(ZerosLike(call.operands[i]));
  }
  std::vector<bool> into_sum(num_xs, false);
  for (size_t i = 0; i < num_xs; ++i) {
    Value& sum = call.sums[num_carry + i];
    if (!needs[num_carry + i] || sum.empty()) continue;
    into_sum[i] = true;
    initial.push_back(std::exchange(sum, {}));
  }
  const auto num_sums = static_cast<size_t>(std::ranges::count(into_sum, true));
  // Backward xs: saved carries, xs, cotangents of ys and of saved carries, row numbers. Captures
  // are parameters too, so that the copy of the body depends on nothing else.
  Values xs = SaveCarries(graph, call.node, region, layout);
  for (size_t i = 0; i < num_xs; ++i) xs.push_back(call.operands[num_carry + i]);
  std::vector<size_t> active_ys;
  for (size_t i = 0; i < ys; ++i) {
    const Value& ct = call.cotangents[num_carry + i];
    if (ct.empty() || !dependent[num_carry + i]) continue;
    active_ys.push_back(i);
    xs.push_back(ct);
  }
  // In a second differentiation the saved carries have cotangents too: those of the first one's
  // recomputation.
  std::vector<bool> has_saved_ct(num_carry, false);
  for (const size_t i : active) {
    const size_t output = region.results.size() + i;
    if (output >= call.cotangents.size() || call.cotangents[output].empty()) continue;
    has_saved_ct[i] = true;
    xs.push_back(call.cotangents[output]);
  }
  const auto num_saved_cts = static_cast<size_t>(std::ranges::count(has_saved_ct, true));
  if (num_sums > 0) xs.push_back(Iota(graph, {DType::kS32, {layout.length}}, 0));
  Values operands = initial;
  operands.insert(operands.end(), xs.begin(), xs.end());
  operands.insert(operands.end(), call.operands.begin() + static_cast<int64_t>(num_carry + num_xs),
                  call.operands.end());

  std::vector<Shape> shapes;
  for (size_t i = 0; i < operands.size(); ++i) {
    Shape shape = operands[i].shape();
    const bool is_x = i >= initial.size() && i < initial.size() + xs.size();
    if (is_x) shape.dims.erase(shape.dims.begin());
    shapes.push_back(std::move(shape));
  }
  const auto body = [&](std::span<const Value> args) {
    Reader reader(args);
    const Values carry_cts = reader.Next(active.size());
    const Values sums = reader.Next(captures.size());
    Reader stacks(reader.Next(num_sums));
    Values inputs = reader.Next(num_carry + num_xs);
    const Values y_cts = reader.Next(active_ys.size());
    Reader saved_cts(reader.Next(num_saved_cts));
    const Value row = num_sums > 0 ? reader.Next() : Value();
    const Values captured = reader.Next(num_captures);
    inputs.insert(inputs.end(), captured.begin(), captured.end());
    const Values results = InlineRegion(graph, region, inputs);
    Values outputs;
    Values cotangents;
    for (size_t k = 0; k < active.size(); ++k) {
      outputs.push_back(results[active[k]]);
      cotangents.push_back(carry_cts[k]);
    }
    for (size_t k = 0; k < active_ys.size(); ++k) {
      outputs.push_back(results[num_carry + active_ys[k]]);
      cotangents.push_back(y_cts[k]);
    }
    Values wrt;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (needs[i]) wrt.push_back(inputs[i]);
    }
    const Values found = VjpOrEmpty(graph, outputs, cotangents, wrt);
    Values next(active.size());
    Values sum_results;
    Values stack_results;
    Values x_results;
    size_t at = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!needs[i]) continue;
      const Value ct = found[at++];
      if (i < num_carry) {
        Value& entering = next[at - 1];
        entering = ct.empty() ? ZerosLike(inputs[i]) : ct;
        if (has_saved_ct[i]) entering = entering + saved_cts.Next();
      } else if (i < num_carry + num_xs && into_sum[i - num_carry]) {
        const Value stack = stacks.Next();
        stack_results.push_back(ct.empty() ? stack : AddToRow(stack, row, ct));
      } else if (i < num_carry + num_xs) {
        x_results.push_back(ct.empty() ? ZerosLike(inputs[i]) : ct);
      } else {
        const Value& sum = sums[sum_results.size()];
        sum_results.push_back(ct.empty() ? sum : Add(sum, ct));
      }
    }
    next.insert(next.end(), sum_results.begin(), sum_results.end());
    next.insert(next.end(), stack_results.begin(), stack_results.end());
    next.insert(next.end(), x_results.begin(), x_results.end());
    return next;
  };
  TracedBody traced = TraceBody(graph, "Scan", body, shapes);
  Values out(call.operands.size());
  if (traced.region == nullptr) return out;
  operands.insert(operands.end(), traced.captures.begin(), traced.captures.end());
  const Values backward = AddScan(graph, *traced.region,
                                  {.num_carry = initial.size(),
                                   .num_xs = xs.size(),
                                   .length = layout.length,
                                   .reverse = !layout.reverse},
                                  std::move(operands));
  size_t at = 0;
  for (const size_t i : active) out[i] = backward[at++];
  for (const size_t i : captures) out[i] = backward[at++];
  for (const bool summed : {true, false}) {
    for (size_t i = 0; i < num_xs; ++i) {
      if (needs[num_carry + i] && into_sum[i] == summed) out[num_carry + i] = backward[at++];
    }
  }
  return out;
}

}  // namespace forebay::xla
