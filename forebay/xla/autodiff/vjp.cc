#include "forebay/xla/autodiff/vjp.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <ranges>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/varying.h"

namespace forebay::xla {
namespace {

class Differentiator {
 public:
  Differentiator(Graph& graph, std::span<const Value> wrt, std::span<const Value> sums)
      : graph_(graph), wrt_(wrt) {
    for (size_t i = 0; i < wrt.size(); ++i) {
      const Value& w = wrt[i];
      first_id_ = std::min(first_id_, w.node()->id);
      State& state = states_[w.node()];
      state.wrt.resize(w.node()->outputs.size());
      state.wrt[static_cast<size_t>(w.output())] = true;
      if (sums.empty()) continue;
      // Else the sum would go on as its gradient, or be lost.
      FB_CHECK(w.node()->operands.empty(), "only arguments have a sum that their gradient joins");
      FB_CHECK(state.sums.empty() || state.sums[static_cast<size_t>(w.output())].empty(),
               "an argument has one sum");
      state.sums.resize(w.node()->outputs.size());
      state.sums[static_cast<size_t>(w.output())] = sums[i];
    }
  }

  Values Run(std::span<const Value> outputs, std::span<const Value> cotangents) {
    Collect(outputs);
    for (Node* node : order_) {
      State& state = states_[node];
      state.through = node->primitive != nullptr && node->primitive->passes_gradient() &&
                      std::ranges::any_of(node->operands, [&](const Value& v) { return Needs(v); });
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!cotangents[i].empty() && Needs(outputs[i])) Accumulate(outputs[i], cotangents[i]);
    }
    for (Node* node : order_ | std::views::reverse) Propagate(*node);
    Values result;
    for (const Value& w : wrt_) {
      const State& state = states_[w.node()];
      const Value sum = Of(state.sums, w), ct = Of(state.cotangents, w);
      result.push_back(sum.empty() || ct.empty() ? (sum.empty() ? ct : sum) : Add(sum, ct));
    }
    return result;
  }

 private:
  struct State {
    std::vector<bool> wrt;  // which outputs are asked for; empty: none
    bool through = false;   // outputs depend on something asked for
    bool visited = false;
    Values cotangents;
    Values sums;  // of outputs asked for, until something was added to them; empty: none
  };

  // The entry of a list of one a node's output.
  static Value Of(const Values& list, const Value& v) {
    return list.empty() ? Value() : list[static_cast<size_t>(v.output())];
  }

  // Every node between wrt and outputs, by id: operands before users. An explicit stack, because a
  // graph may be tens of thousands of nodes deep.
  void Collect(std::span<const Value> outputs) {
    std::vector<Node*> pending;
    const auto visit = [&](const Value& v) {
      Node* node = v.node();
      if (node->id < first_id_) return;
      State& state = states_[node];
      if (std::exchange(state.visited, true)) return;
      order_.push_back(node);
      pending.push_back(node);
    };
    for (const Value& v : outputs) visit(v);
    while (!pending.empty()) {
      const Node* node = pending.back();
      pending.pop_back();
      for (const Value& v : node->operands) visit(v);
    }
    std::ranges::sort(order_, {}, &Node::id);
  }

  bool Needs(const Value& v) const {
    if (!IsFloat(v.dtype())) return false;
    const auto it = states_.find(v.node());
    if (it == states_.end()) return false;
    const State& state = it->second;
    return state.through || (!state.wrt.empty() && state.wrt[static_cast<size_t>(v.output())]);
  }

  void Accumulate(const Value& v, const Value& cotangent) {
    FB_CHECK(
        IsPoison(cotangent) || cotangent.shape() == v.shape(),
        fmt::format("a VJP made {} for {}", cotangent.shape().ToString(), v.shape().ToString()));
    Values& cts = states_[v.node()].cotangents;
    cts.resize(v.node()->outputs.size());
    Value& ct = cts[static_cast<size_t>(v.output())];
    ct = ct.empty() ? cotangent : Add(ct, cotangent);
  }

  void Propagate(Node& node) {
    const State& state = states_[&node];
    if (!state.through || state.cotangents.empty()) return;
    const Values cotangents = state.cotangents;
    // Copies: a Scan's VJP adds outputs to its node, and ops append to the graph's nodes.
    const Values operands = node.operands;
    std::vector<bool> needs;
    for (const Value& v : operands) needs.push_back(Needs(v));
    // Out of their place, so that an operand that stands twice brings its sum once.
    Values sums;
    for (const Value& v : operands) {
      Values& known = states_[v.node()].sums;
      sums.push_back(known.empty() ? Value()
                                   : std::exchange(known[static_cast<size_t>(v.output())], {}));
    }
    Values outputs;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      outputs.emplace_back(&graph_, &node, static_cast<int>(i));
    }
    Values full = cotangents;
    full.resize(outputs.size());
    const Values contributions = node.primitive->Vjp({.graph = graph_,
                                                      .node = node,
                                                      .operands = operands,
                                                      .outputs = outputs,
                                                      .cotangents = full,
                                                      .needs = needs,
                                                      .sums = sums});
    FB_CHECK(contributions.size() == operands.size(), node.primitive->name());
    for (size_t i = 0; i < operands.size(); ++i) {
      if (sums[i].empty()) continue;
      states_[operands[i].node()].sums[static_cast<size_t>(operands[i].output())] = sums[i];
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      if (needs[i] && !contributions[i].empty()) Accumulate(operands[i], contributions[i]);
    }
  }

  Graph& graph_;
  std::span<const Value> wrt_;
  int64_t first_id_ = std::numeric_limits<int64_t>::max();
  std::unordered_map<const Node*, State> states_;
  std::vector<Node*> order_;
};

}  // namespace

Values VjpOrEmpty(Graph& graph, std::span<const Value> outputs, std::span<const Value> cotangents,
                  std::span<const Value> wrt, std::span<const Value> sums) {
  FB_CHECK(outputs.size() == cotangents.size(), "one cotangent an output");
  FB_CHECK(sums.empty() || sums.size() == wrt.size(), "one sum a wrt");
  return Differentiator(graph, wrt, sums).Run(outputs, cotangents);
}

namespace {

// What Vjp and Gradients ask for, checked.
Values CheckedVjp(std::span<const Value> outputs, std::span<const Value> cotangents,
                  std::span<const Value> wrt, std::span<const Value> sums) {
  if (wrt.empty()) return {};
  Values all(outputs.begin(), outputs.end());
  all.insert(all.end(), cotangents.begin(), cotangents.end());
  all.insert(all.end(), wrt.begin(), wrt.end());
  const Operands in("Vjp", all);
  const auto fail = [&](std::string_view message) { return Values(wrt.size(), in.Fail(message)); };
  if (!in.ok()) return Values(wrt.size(), in.poison());
  if (outputs.size() != cotangents.size()) {
    return fail(fmt::format("{} outputs but {} cotangents", outputs.size(), cotangents.size()));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].shape() != cotangents[i].shape()) {
      return fail(fmt::format("output {} is {} but its cotangent {}", i,
                              outputs[i].shape().ToString(), cotangents[i].shape().ToString()));
    }
  }
  for (size_t i = 0; i < wrt.size(); ++i) {
    if (!IsFloat(wrt[i].dtype())) {
      return fail(
          fmt::format("wrt {} is {}; only floats have gradients", i, wrt[i].shape().ToString()));
    }
  }
  Values result = VjpOrEmpty(in.graph(), outputs, cotangents, wrt, sums);
  for (size_t i = 0; i < wrt.size(); ++i) {
    if (result[i].empty()) result[i] = ZerosLike(wrt[i]);
  }
  return result;
}

Values GradientsOf(std::string_view op, Value loss, std::span<const Value> wrt,
                   std::span<const Value> sums) {
  const Operands in(op, {loss});
  if (!in.ok()) return Values(wrt.size(), in.poison());
  if (!IsFloat(loss.dtype()) || !loss.dims().empty()) {
    return Values(wrt.size(), in.Fail(fmt::format("the loss is {}; it must be a float scalar",
                                                  loss.shape().ToString())));
  }
  const Graph::Impl& impl = in.graph().impl();
  if (impl.shard_body == nullptr || impl.mesh->size() == 1) {
    const Value one = Constant(in.graph(), 1.0, loss.dtype());
    return CheckedVjp(std::span(&loss, 1), std::span(&one, 1), wrt, sums);
  }
  // The mean of the loss over all devices: each gives its share. See xla/shard_map.h.
  const Value share =
      Constant(in.graph(), 1.0 / static_cast<double>(impl.mesh->size()), loss.dtype());
  // A sum that several devices have is added once.
  const Values own = sums.empty() ? Values() : ShareAmongReplicas(in.graph(), wrt, sums);
  return SumOverReplicas(in.graph(), wrt,
                         CheckedVjp(std::span(&loss, 1), std::span(&share, 1), wrt, own));
}

}  // namespace

Values Vjp(std::span<const Value> outputs, std::span<const Value> cotangents,
           std::span<const Value> wrt) {
  return CheckedVjp(outputs, cotangents, wrt, {});
}

Values Gradients(Value loss, std::span<const Value> wrt) {
  return GradientsOf("Gradients", loss, wrt, {});
}

Values AddGradients(Value loss, std::span<const Value> wrt, std::span<const Value> sums) {
  Values all{loss};
  std::ranges::copy_if(sums, std::back_inserter(all), [](const Value& v) { return !v.empty(); });
  const Operands in("AddGradients", all);
  if (!in.ok()) return Values(wrt.size(), in.poison());
  if (sums.size() != wrt.size()) {
    return Values(wrt.size(),
                  in.Fail(fmt::format("{} sums for {} gradients", sums.size(), wrt.size())));
  }
  for (size_t i = 0; i < wrt.size(); ++i) {
    if (sums[i].empty() || wrt[i].empty() || sums[i].shape() == wrt[i].shape()) continue;
    return Values(wrt.size(),
                  in.Fail(fmt::format("sum {} is {}, what it is of {}", i,
                                      sums[i].shape().ToString(), wrt[i].shape().ToString())));
  }
  return GradientsOf("AddGradients", loss, wrt, sums);
}

}  // namespace forebay::xla
