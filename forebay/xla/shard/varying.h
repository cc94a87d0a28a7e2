// Along which mesh axes the values of a ShardMap body differ between devices. Private to xla/.
//
// Inferred from the body's parameters (their specs) and the collectives; used to refuse results
// that are said to be equal and may not be, and to sum gradients of values that every device has.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

// Axes with more than one device, as a set.
AxisSet SetOf(const Mesh& mesh, const Axes& axes);
// All axes of the mesh that are not in the set and have more than one device.
Axes AxesOutside(const Mesh& mesh, AxisSet set);
Axes AxesInside(const Mesh& mesh, AxisSet set);

// The sets of a closed region's results, given those of its parameters.
std::vector<AxisSet> VaryingResults(const Region& region, std::span<const AxisSet> params);

// The set of a value of a ShardMap body under trace; none when it depends on the arguments of a
// body inside it (a Scan's) whose sets are not known yet.
std::optional<AxisSet> VaryingOf(const Value& value);

// In a ShardMap body, makes per-device cotangents of `wrt` gradients of the whole arrays: sums over
// the axes along which all devices have the same wrt. Records an error where that is unknown.
Values SumOverReplicas(Graph& graph, std::span<const Value> wrt, Values cotangents);
// What each device brings so that SumOverReplicas gives `sums`, which all devices with the same wrt
// have; empty where a sum is.
Values ShareAmongReplicas(Graph& graph, std::span<const Value> wrt, std::span<const Value> sums);

}  // namespace forebay::xla
