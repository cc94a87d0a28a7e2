// Named collectives: what the body of a ShardMap (xla/shard_map.h) says to the devices along one or
// several mesh axes. Over several, the first axis counts slowest.
//
// Gradients: the VJP of each is its exact transpose as a function of the values of all devices (the
// convention is in docs/sharding.md): Psum <-> Psum, AllGather <-> ReduceScatter, Ppermute and
// AllToAll <-> their inverses. Along axes of one device they are the identity and cost nothing.
// Errors (recorded on the Graph, xla/graph.h): outside of a ShardMap body; an axis that the mesh
// does not have; a size that does not divide, with the sizes that would.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "forebay/xla/graph.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

// The sum, mean or maximum over the devices, on each of them. PMax has no gradient: ask for it of a
// StopGradient.
Value Psum(Value x, const Axes& axes);
Value PMean(Value x, const Axes& axes);
Value PMax(Value x, const Axes& axes);

// The devices' values, joined along dimension `dim`: [n, ...] -> [n * devices, ...].
Value AllGather(Value x, const Axes& axes, int dim);
// The sum over the devices, of which each keeps its part of dimension `dim`: [n, ...] -> [n /
// devices, ...]. Half the traffic of Psum.
Value ReduceScatter(Value x, const Axes& axes, int dim);

// Device `second` of each pair gets the value of device `first`; who gets none has zeros. Each
// device may send once and receive once.
using DevicePairs = std::span<const std::pair<int64_t, int64_t>>;
Value Ppermute(Value x, const Axes& axes, DevicePairs pairs);
// Around the ring: device i gets the value of device i - by.
Value RingShift(Value x, const Axes& axes, int64_t by);

// Dimension `split` is cut into one block a device; device i gets everyone's block i, joined along
// `concat`: [s, c] -> [s / devices, c * devices].
Value AllToAll(Value x, const Axes& axes, int split, int concat);

// This device's position along the axes, an s32 scalar, and the number of positions.
Value AxisIndex(Graph& graph, const Axes& axes);
int64_t AxisSize(Graph& graph, const Axes& axes);

}  // namespace forebay::xla
