// While: a loop of unknown length, without gradient.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Operands: state, captures of the condition, captures of the body.
class WhilePrimitive final : public Primitive {
 public:
  WhilePrimitive(const Region* condition, const Region* body)
      : condition_(*condition), body_(*body) {}
  std::string_view name() const override { return "While"; }
  void Emit(const Node& node, Emitter& out) const override {
    std::vector<std::string> initial;
    for (const Value& v : node.operands) initial.push_back(out.Name(v));
    const size_t state_size = node.outputs.size();
    const auto condition = [&](LoopNames state) {
      return out.Inline(condition_, state.first(condition_.params.size()))[0];
    };
    const auto body = [&](LoopNames state) {
      std::vector<std::string> arguments(state.begin(),
                                         state.begin() + static_cast<int64_t>(state_size));
      const size_t captures = body_.params.size() - state_size;
      arguments.insert(arguments.end(), state.end() - static_cast<int64_t>(captures), state.end());
      std::vector<std::string> next = out.Inline(body_, arguments);
      next.insert(next.end(), state.begin() + static_cast<int64_t>(state_size), state.end());
      return next;
    };
    const std::vector<std::string> final =
        EmitWhile(out, initial, Emitter::OperandShapes(node), condition, body);
    for (size_t i = 0; i < state_size; ++i) out.SetName(node, static_cast<int>(i), final[i]);
  }
  std::vector<AxisSet> Varying(const Node& node, std::span<const AxisSet> operands) const override {
    const size_t state = node.outputs.size();
    const size_t tests = condition_.params.size();
    std::vector<AxisSet> now(operands.begin(), operands.begin() + static_cast<int64_t>(state));
    for (bool changed = true; changed;) {
      changed = false;
      std::vector<AxisSet> inputs = now;
      inputs.insert(inputs.end(), operands.begin() + static_cast<int64_t>(state),
                    operands.begin() + static_cast<int64_t>(tests));
      const AxisSet steps = VaryingResults(condition_, inputs)[0];
      inputs.resize(state);
      inputs.insert(inputs.end(), operands.begin() + static_cast<int64_t>(tests), operands.end());
      const std::vector<AxisSet> next = VaryingResults(body_, inputs);
      for (size_t i = 0; i < state; ++i) {
        const AxisSet grown = now[i] | next[i] | steps;
        changed = changed || grown != now[i];
        now[i] = grown;
      }
    }
    return now;
  }
  TracedCost Cost(const Node&) const override {
    TracedCost cost = RegionCost(body_, body_.results);
    cost.has_while = true;
    return cost;
  }

 private:
  const Region& condition_;
  const Region& body_;
};

}  // namespace

Values While(const BodyFn& condition, const BodyFn& body, std::span<const Value> state) {
  const Operands in("While", state);
  std::vector<Shape> shapes;
  for (const Value& v : state) shapes.push_back(in.ok() ? v.shape() : Shape{});
  const TracedBody test = TraceBody(in.graph(), "While", condition, shapes, !in.ok());
  const TracedBody traced = TraceBody(in.graph(), "While", body, shapes, !in.ok());
  const auto poisoned = [&](std::string_view message) {
    return Values(state.size(), in.Fail(message));
  };
  if (!in.ok() || test.region == nullptr || traced.region == nullptr) {
    return Values(state.size(), in.poison());
  }
  const Values& tests = test.region->results;
  if (tests.size() != 1 || tests[0].shape() != Shape{DType::kPred, {}}) {
    return poisoned(fmt::format("the condition returns {}; it must be one pred scalar",
                                tests[0].shape().ToString()));
  }
  const Values& results = traced.region->results;
  if (results.size() != state.size()) {
    return poisoned(
        fmt::format("the body returns {} values for a state of {}", results.size(), state.size()));
  }
  for (size_t i = 0; i < state.size(); ++i) {
    if (results[i].shape() == state[i].shape()) continue;
    return poisoned(fmt::format("state {} enters the body as {} and leaves it as {}", i,
                                state[i].shape().ToString(), results[i].shape().ToString()));
  }
  Values operands(state.begin(), state.end());
  operands.insert(operands.end(), test.captures.begin(), test.captures.end());
  operands.insert(operands.end(), traced.captures.begin(), traced.captures.end());
  return AddNode(in.graph(), std::make_shared<WhilePrimitive>(test.region, traced.region),
                 std::move(operands), traced.ResultShapes());
}

}  // namespace forebay::xla
