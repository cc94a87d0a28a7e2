// Reverse-mode differentiation, as primitives' VJPs use it on copies of their bodies. Private to
// xla/.
#pragma once

#include <span>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::xla {

// sum_i <cotangent_i, d output_i / d wrt>, empty where that is zero. An empty cotangent is zero.
// With `sums`, one for each wrt or empty: added to them.
Values VjpOrEmpty(Graph& graph, std::span<const Value> outputs, std::span<const Value> cotangents,
                  std::span<const Value> wrt, std::span<const Value> sums = {});

}  // namespace forebay::xla
