// ShardMap: code for one device, run on all devices of a mesh.
#pragma once

#include <span>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

// Runs `body` on every device: its arguments are that device's parts of xs, as in_specs say; its
// results are parts of the results, as out_specs say. Inside, values of other devices are reached
// through collectives (xla/collectives.h) alone. Values of the outside that the body uses are whole
// on every device. A Graph has one mesh; ShardMaps do not nest. On a mesh of one device, nothing is
// left of it.
//
// Parameters of the Graph that go into a ShardMap, and results that come out of it, are split as
// its specs say when the program runs (Program::argument_specs); others are whole on every device.
//
// Gradients work inside and outside. Gradients(loss, wrt) in the body differentiates the mean of
// `loss` over all devices (so: the loss itself, where all have the same) and returns for each wrt
// the gradient of the whole array, split like wrt: nothing remains to be summed or scaled by the
// caller. Vjp in the body gives this device's terms, unsummed. docs/sharding.md has the rules and
// why they hold.
//
// Errors (recorded on the Graph): a spec that does not fit its array, naming the axis, the size and
// the valid ones; a result that differs along an axis which its spec does not name.
Values ShardMap(const Mesh& mesh, std::span<const PartitionSpec> in_specs,
                std::span<const PartitionSpec> out_specs, const BodyFn& body,
                std::span<const Value> xs);

}  // namespace forebay::xla
