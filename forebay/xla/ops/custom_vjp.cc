// CustomVjp and Remat: bodies printed inline, with their own ways back.
#include <fmt/core.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/autodiff/vjp.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/region.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/varying.h"
#include "forebay/xla/stablehlo/emitter.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {
namespace {

// A node whose region is printed in place.
class InlinedPrimitive : public Primitive {
 public:
  explicit InlinedPrimitive(const Region* region) : region_(*region) {}
  void Emit(const Node& node, Emitter& out) const override {
    std::vector<std::string> arguments;
    arguments.reserve(node.operands.size());
    for (const Value& v : node.operands) arguments.push_back(out.Name(v));
    const int count = static_cast<int>(node.outputs.size());
    std::vector<bool> live;
    live.reserve(node.outputs.size());
    for (int i = 0; i < count; ++i) live.push_back(out.IsLive(node, i));
    std::vector<std::string> results = out.Inline(region_, arguments, live);
    for (int i = 0; i < count; ++i) {
      out.SetName(node, i, std::move(results[static_cast<size_t>(i)]));
    }
  }

  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet> operands) const override {
    return VaryingResults(region_, operands);
  }
  TracedCost Cost(const Node&) const override { return RegionCost(region_, region_.results); }

 protected:
  const Region& region() const { return region_; }

 private:
  const Region& region_;
};

class CustomVjpPrimitive final : public InlinedPrimitive {
 public:
  CustomVjpPrimitive(const Region* region, VjpFn vjp, size_t num_xs)
      : InlinedPrimitive(region), vjp_(std::move(vjp)), num_xs_(num_xs) {}
  std::string_view name() const override { return "CustomVjp"; }
  Values Vjp(const VjpCall& call) const override {
    for (size_t i = num_xs_; i < call.operands.size(); ++i) {
      if (!call.needs[i]) continue;
      call.graph.Fail(fmt::format(
          "CustomVjp: the body uses a value {} of the outside that a gradient is asked for; pass "
          "it in xs, so that the rule can answer for it",
          call.operands[i].shape().ToString()));
      return Values(call.operands.size());
    }
    const std::span<const Value> xs = std::span(call.operands).first(num_xs_);
    Values cotangents = call.cotangents;
    for (size_t i = 0; i < cotangents.size(); ++i) {
      if (cotangents[i].empty()) cotangents[i] = ZerosLike(call.outputs[i]);
    }
    Values result = vjp_(xs, call.outputs, cotangents);
    if (result.size() != num_xs_) {
      call.graph.Fail(fmt::format("CustomVjp: the rule returns {} cotangents for {} operands",
                                  result.size(), num_xs_));
      return Values(call.operands.size());
    }
    for (size_t i = 0; i < num_xs_; ++i) {
      if (!call.needs[i] || result[i].empty() || IsPoison(result[i])) continue;
      if (result[i].graph() != &call.graph || result[i].shape() != xs[i].shape()) {
        call.graph.Fail(fmt::format("CustomVjp: the rule returns {} for operand {}, which is {}",
                                    result[i].shape().ToString(), i, xs[i].shape().ToString()));
        return Values(call.operands.size());
      }
    }
    result.resize(call.operands.size());
    return result;
  }

 private:
  VjpFn vjp_;
  size_t num_xs_;
};

class RematPrimitive final : public InlinedPrimitive {
 public:
  using InlinedPrimitive::InlinedPrimitive;
  std::string_view name() const override { return "Remat"; }
  // The barrier keeps XLA from merging the copy with the original, and, as it also takes the
  // cotangents, from starting it before the backward pass has come here.
  Values Vjp(const VjpCall& call) const override {
    Values kept = call.operands;
    for (const Value& ct : call.cotangents) {
      if (!ct.empty()) kept.push_back(ct);
    }
    const Values held = OptimizationBarrier(kept);
    const std::span<const Value> inputs = std::span(held).first(call.operands.size());
    Values cotangents(call.cotangents.size());
    size_t next = call.operands.size();
    for (size_t i = 0; i < cotangents.size(); ++i) {
      if (!call.cotangents[i].empty()) cotangents[i] = held[next++];
    }
    const Values outputs = InlineRegion(call.graph, region(), inputs);
    Values wrt;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (call.needs[i]) wrt.push_back(inputs[i]);
    }
    const Values found = VjpOrEmpty(call.graph, outputs, cotangents, wrt);
    Values result(call.operands.size());
    size_t at = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (call.needs[i]) result[i] = found[at++];
    }
    return result;
  }
};

}  // namespace

Values CustomVjp(const BodyFn& body, const VjpFn& vjp, std::span<const Value> xs) {
  const Operands in("CustomVjp", xs);
  std::vector<Shape> shapes;
  for (const Value& x : xs) shapes.push_back(x.empty() ? Shape{} : x.shape());
  const TracedBody traced = TraceBody(in.graph(), "CustomVjp", body, shapes, !in.ok());
  if (traced.region == nullptr) return traced.poisoned_results;
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), traced.captures.begin(), traced.captures.end());
  return AddNode(in.graph(), std::make_shared<CustomVjpPrimitive>(traced.region, vjp, xs.size()),
                 std::move(operands), traced.ResultShapes());
}

Values Remat(const BodyFn& body, std::span<const Value> xs) {
  const Operands in("Remat", xs);
  std::vector<Shape> shapes;
  for (const Value& x : xs) shapes.push_back(x.empty() ? Shape{} : x.shape());
  const TracedBody traced = TraceBody(in.graph(), "Remat", body, shapes, !in.ok());
  if (traced.region == nullptr) return traced.poisoned_results;
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), traced.captures.begin(), traced.captures.end());
  return AddNode(in.graph(), std::make_shared<RematPrimitive>(traced.region), std::move(operands),
                 traced.ResultShapes());
}

}  // namespace forebay::xla
