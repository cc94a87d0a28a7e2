// Scan and ForLoop: tracing and checks. The text is in scan_emit.cc, the gradient in scan_vjp.cc.
#include "forebay/xla/ops/scan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/region.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/varying.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {

Values AddScan(Graph& graph, Region& region, ScanLayout layout, Values operands) {
  const std::vector<bool> used = UsedParams(region);
  std::vector<Node*> params;
  Values kept;
  size_t kept_xs = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool is_x = i >= layout.num_carry && i < layout.num_carry + layout.num_xs;
    if (is_x && !used[i]) continue;
    if (is_x) ++kept_xs;
    params.push_back(region.params[i]);
    kept.push_back(operands[i]);
  }
  region.params = std::move(params);
  layout.num_xs = kept_xs;
  std::vector<Shape> outputs;
  for (size_t i = 0; i < region.results.size(); ++i) {
    Shape shape = region.results[i].shape();
    if (i >= layout.num_carry) shape.dims.insert(shape.dims.begin(), layout.length);
    outputs.push_back(std::move(shape));
  }
  return AddNode(graph, std::make_shared<ScanPrimitive>(&region, layout), std::move(kept),
                 std::move(outputs));
}

std::vector<AxisSet> ScanPrimitive::Varying(const Node& node,
                                            std::span<const AxisSet> operands) const {
  std::vector<AxisSet> inputs(operands.begin(), operands.end());
  std::vector<AxisSet> results;
  for (bool changed = true; changed;) {
    changed = false;
    results = VaryingResults(region_, inputs);
    for (size_t i = 0; i < layout_.num_carry; ++i) {
      const AxisSet grown = inputs[i] | results[i];
      changed = changed || grown != inputs[i];
      inputs[i] = results[i] = grown;
    }
  }
  // Past the ys: the carries that each iteration began with.
  for (size_t i = 0; results.size() < node.outputs.size(); ++i) results.push_back(inputs[i]);
  return results;
}

TracedCost ScanPrimitive::Cost(const Node&) const {
  TracedCost cost;
  cost.Add(RegionCost(region_, region_.results), layout_.length);
  return cost;
}

Values Scan(const BodyFn& body, std::span<const Value> carry, std::span<const Value> xs,
            const ScanOptions& options) {
  Values operands(carry.begin(), carry.end());
  operands.insert(operands.end(), xs.begin(), xs.end());
  const Operands in("Scan", operands);
  bool ok = in.ok();
  if (ok && xs.empty()) {
    in.Fail("there are no xs to scan over; ForLoop counts steps without them");
    ok = false;
  }
  std::vector<Shape> shapes;
  for (size_t i = 0; i < operands.size(); ++i) {
    Shape shape = ok ? operands[i].shape() : Shape{};
    if (ok && i >= carry.size()) {
      const Shape& first = xs[0].shape();
      if (shape.dims.empty() || shape.dims[0] == 0 || shape.dims[0] != first.dims[0]) {
        in.Fail(
            fmt::format("x {} is {} and x 0 is {}; all need one leading axis of equal size, "
                        "above 0",
                        i - carry.size(), shape.ToString(), first.ToString()));
        ok = false;
      } else {
        shape.dims.erase(shape.dims.begin());
      }
    }
    shapes.push_back(std::move(shape));
  }
  TracedBody traced = TraceBody(in.graph(), "Scan", body, shapes, !ok);
  if (traced.region == nullptr) return traced.poisoned_results;
  const Values& results = traced.region->results;
  for (size_t i = 0; i < carry.size(); ++i) {
    if (i < results.size() && results[i].shape() == carry[i].shape()) continue;
    const Value poison = in.Fail(
        i < results.size()
            ? fmt::format("carry {} enters the body as {} and leaves it as {}; they must be equal",
                          i, carry[i].shape().ToString(), results[i].shape().ToString())
            : fmt::format("the body returns {} values but has {} carries", results.size(),
                          carry.size()));
    return Values(std::max(results.size(), carry.size()), poison);
  }
  operands.insert(operands.end(), traced.captures.begin(), traced.captures.end());
  return AddScan(in.graph(), *traced.region,
                 {.num_carry = carry.size(),
                  .num_xs = xs.size(),
                  .length = xs[0].dims()[0],
                  .reverse = options.reverse},
                 std::move(operands));
}

Values ForLoop(Graph& graph, int64_t length, const BodyFn& body, std::span<const Value> carry) {
  if (length <= 0 || carry.empty()) {
    const Value poison = graph.Fail(fmt::format(
        "ForLoop: {} steps over {} carries; both must be above 0", length, carry.size()));
    return Values(carry.size(), poison);
  }
  const Value steps = Iota(graph, {DType::kS32, {length}}, 0);
  const size_t count = carry.size();
  Values results = Scan(
      [&](std::span<const Value> args) {
        Values out = body(args);
        if (out.size() != count) {
          graph.Fail(
              fmt::format("ForLoop: the body returns {} values for {} carries", out.size(), count));
        }
        return out;
      },
      carry, std::span(&steps, 1));
  results.resize(count, Poison(graph));
  return results;
}

}  // namespace forebay::xla
