// Cond: one of two bodies, chosen at run time.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/autodiff/vjp.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/loop_text.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/region.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/varying.h"
#include "forebay/xla/stablehlo/emitter.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {
namespace {

// Operands: predicate, then what both regions take.
class CondPrimitive final : public Primitive {
 public:
  CondPrimitive(const Region* on_true, const Region* on_false)
      : on_true_(*on_true), on_false_(*on_false) {}
  std::string_view name() const override { return "Cond"; }
  void Emit(const Node& node, Emitter& out) const override {
    std::vector<std::string> arguments;
    for (size_t i = 1; i < node.operands.size(); ++i) {
      arguments.push_back(out.Name(node.operands[i]));
    }
    const std::string types = TypesText(node.outputs);
    // Branches take no arguments in StableHLO: they read the names of the outside.
    const auto branch = [&](const Region& region) {
      out.BeginNested(/*isolated=*/false);
      const std::vector<std::string> results = out.Inline(region, arguments);
      out.Line(fmt::format("stablehlo.return {} : {}", JoinNames(results), types));
      return out.EndNested();
    };
    const std::string on_true = branch(on_true_);
    const std::string on_false = branch(on_false_);
    const int count = static_cast<int>(node.outputs.size());
    const std::vector<std::string> names = out.DefineMany(
        fmt::format("\"stablehlo.if\"({}) ({{\n{}}}, {{\n{}}}) : (tensor<i1>) -> ({})",
                    out.Name(node.operands[0]), on_true, on_false, types),
        count);
    for (int i = 0; i < count; ++i) out.SetName(node, i, names[static_cast<size_t>(i)]);
  }
  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet> operands) const override {
    std::vector<AxisSet> out = VaryingResults(on_true_, operands.subspan(1));
    const std::vector<AxisSet> other = VaryingResults(on_false_, operands.subspan(1));
    for (size_t i = 0; i < out.size(); ++i) out[i] |= other[i] | operands[0];
    return out;
  }
  TracedCost Cost(const Node&) const override {
    const TracedCost yes = RegionCost(on_true_, on_true_.results);
    const TracedCost no = RegionCost(on_false_, on_false_.results);
    const bool same_flops = yes.dot_flops == no.dot_flops;
    return (same_flops ? yes.sent_bytes() > no.sent_bytes() : yes.dot_flops > no.dot_flops) ? yes
                                                                                            : no;
  }
  // A Cond again, whose branches run their copy and differentiate it.
  Values Vjp(const VjpCall& call) const override {
    Values inputs(call.operands.begin() + 1, call.operands.end());
    const size_t num_inputs = inputs.size();
    std::vector<size_t> outputs;
    for (size_t i = 0; i < call.cotangents.size(); ++i) {
      if (call.cotangents[i].empty()) continue;
      outputs.push_back(i);
      inputs.push_back(call.cotangents[i]);
    }
    const auto branch = [&](const Region& region) {
      return [&, region = &region](std::span<const Value> args) {
        const std::span<const Value> own = args.first(num_inputs);
        const Values results = InlineRegion(call.graph, *region, own);
        Values ys;
        for (const size_t i : outputs) ys.push_back(results[i]);
        Values wrt;
        for (size_t i = 0; i < num_inputs; ++i) {
          if (call.needs[1 + i]) wrt.push_back(own[i]);
        }
        Values found = VjpOrEmpty(call.graph, ys, args.subspan(num_inputs), wrt);
        for (size_t i = 0; i < wrt.size(); ++i) {
          if (found[i].empty()) found[i] = ZerosLike(wrt[i]);
        }
        return found;
      };
    };
    const Values found = xla::Cond(call.operands[0], branch(on_true_), branch(on_false_), inputs);
    Values result(call.operands.size());
    size_t at = 0;
    for (size_t i = 0; i < num_inputs; ++i) {
      if (call.needs[1 + i]) result[1 + i] = found[at++];
    }
    return result;
  }

 private:
  const Region& on_true_;
  const Region& on_false_;
};

}  // namespace

Values Cond(Value predicate, const BodyFn& on_true, const BodyFn& on_false,
            std::span<const Value> operands) {
  Values all{predicate};
  all.insert(all.end(), operands.begin(), operands.end());
  const Operands in("Cond", all);
  bool ok = in.ok();
  if (ok && predicate.shape() != Shape{DType::kPred, {}}) {
    in.Fail(
        fmt::format("the predicate is {}; it must be a pred scalar", predicate.shape().ToString()));
    ok = false;
  }
  std::vector<Shape> shapes;
  for (const Value& v : operands) shapes.push_back(ok ? v.shape() : Shape{});
  const TracedBody yes = TraceBody(in.graph(), "Cond", on_true, shapes, !ok);
  const TracedBody no = TraceBody(in.graph(), "Cond", on_false, shapes, !ok);
  if (yes.region == nullptr || no.region == nullptr) {
    const size_t count =
        yes.region == nullptr ? yes.poisoned_results.size() : yes.region->results.size();
    return Values(count, in.poison());
  }
  if (yes.ResultShapes() != no.ResultShapes()) {
    std::string text;
    for (const Shape& s : yes.ResultShapes()) text += s.ToString() + " ";
    text += "when true and ";
    for (const Shape& s : no.ResultShapes()) text += s.ToString() + " ";
    return Values(
        yes.region->results.size(),
        in.Fail(fmt::format("the branches return {}when false; they must be equal", text)));
  }
  // Both regions take all captures, in one order: those of on_true, then the rest of on_false's.
  const size_t num_operands = operands.size();
  const Values captures = MergeCaptures(in.graph(), *yes.region, yes.captures, no.captures);
  MergeCaptures(in.graph(), *no.region, no.captures, captures);
  const std::vector<Node*> params = no.region->params;
  Values no_order = no.captures;
  for (const Value& v : captures) {
    if (std::ranges::find(no_order, v) == no_order.end()) no_order.push_back(v);
  }
  for (size_t i = 0; i < captures.size(); ++i) {
    const auto at =
        static_cast<size_t>(std::ranges::find(no_order, captures[i]) - no_order.begin());
    no.region->params[num_operands + i] = params[num_operands + at];
  }
  all.insert(all.end(), captures.begin(), captures.end());
  return AddNode(in.graph(), std::make_shared<CondPrimitive>(yes.region, no.region), std::move(all),
                 yes.ResultShapes());
}

}  // namespace forebay::xla
