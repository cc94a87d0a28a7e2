// Tracing of bodies into closed regions, and their inlining. Private to xla/.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {

struct TracedBody {
  Region* region = nullptr;  // null: the body failed and the error is on the graph
  Values captures;           // outside values for the region's last captures.size() parameters
  Values poisoned_results;   // when region is null: one poisoned Value a result of the body

  std::vector<Shape> ResultShapes() const;
};

// Runs `body` on fresh parameters of these shapes and closes what it traced. `op` names the caller
// in errors. With `poisoned`, parameters are poison (an operand of the op was): only the results
// are counted.
TracedBody TraceBody(Graph& graph, std::string_view op, const BodyFn& body,
                     std::span<const Shape> params, bool poisoned = false);

// Appends a copy of the region's nodes with parameters replaced by `args`; returns its results.
Values InlineRegion(Graph& graph, const Region& region, std::span<const Value> args);

// Gives `region` the parameters for `captures` of another region too (Cond: both branches take the
// same operands). `own` are the captures it has now; the result lists all, those of `own` first.
Values MergeCaptures(Graph& graph, Region& region, const Values& own, const Values& others);

// The cost of what the results need.
TracedCost RegionCost(const Region& region, std::span<const Value> results);

// True where the parameter is read by the region.
std::vector<bool> UsedParams(const Region& region);

}  // namespace forebay::xla
