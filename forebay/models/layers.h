// The layers that model families share, as functions on traced values.
//
// Legend: N tokens (all rows together), D width, F feed-forward width, A heads, H head size.
// Activations are two-dimensional, [N, D]: matrix products with [B, T, D] cost XLA's CPU compiler a
// reshape each.
#pragma once

#include <span>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models {

// x * weight / sqrt(mean(x^2) + eps), over the last axis.
xla::Value RmsNorm(xla::Value x_ND, xla::Value weight_D, double eps);

// down(silu(gate(x)) * up(x)), weights [out, in].
xla::Value SwiGlu(xla::Value x_ND, xla::Value gate_FD, xla::Value up_FD, xla::Value down_DF);

// cos and sin of each token's angles. Computed once for all layers.
struct RopeTables {
  xla::Value cos_NH, sin_NH;  // [N, H / 2]
};
RopeTables MakeRopeTables(xla::Value positions_N, std::span<const float> frequencies);

// Rotates the pairs (i, i + H/2) of each head by the token's angle, as Hugging Face does; `inverse`
// rotates back, which is also the rotation's gradient.
xla::Value ApplyRope(xla::Value x_NAH, const RopeTables& rope, bool inverse = false);

}  // namespace forebay::models
