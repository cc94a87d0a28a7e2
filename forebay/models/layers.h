// The layers that model families share, as functions on traced values.
//
// Legend: N tokens (all rows together), D width, F feed-forward width, A heads, H head size.
// Activations are two-dimensional, [N, D]: matrix products with [B, T, D] cost XLA's CPU compiler a
// reshape each.
//
// Sizes come from the values, not from a model's configuration: a layer runs as well on the local
// shards of its weights.
//
// Activations may be f32 or bf16. Products accumulate in f32; norms, activations and rotations are
// computed in f32; each result has the dtype of its first argument. Weights may stay f32 (master
// weights) under bf16 activations.
#pragma once

#include <initializer_list>

#include "forebay/models/rope.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

// x, converted if need be.
xla::Value As(xla::Value x, xla::DType dtype);

// x [N, in] times weight [out, in] -> [N, out]. An f32 weight is rounded for the product with a
// bf16 x; its gradient is not.
xla::Value Project(xla::Value x, xla::Value weight);
// The same x times each weight. On the CPU's decode steps they are one kernel.
xla::Values ProjectAll(xla::Value x, std::initializer_list<xla::Value> weights);
// Plus a bias [out].
xla::Value AddBias(xla::Value projected, xla::Value bias);

// x * weight / sqrt(mean(x^2) + eps), over the last axis.
xla::Value RmsNorm(xla::Value x_ND, xla::Value weight_D, double eps);

// x [N, A * H]: the same over each head, weight [H].
xla::Value HeadRmsNorm(xla::Value x, xla::Value weight_H, double eps);

// down(act(gate(x)) * up(x)), weights [out, in], with silu or the tanh form of gelu.
xla::Value SwiGlu(xla::Value x_ND, xla::Value gate_FD, xla::Value up_FD, xla::Value down_DF);
xla::Value GeGlu(xla::Value x_ND, xla::Value gate_FD, xla::Value up_FD, xla::Value down_DF);

// cos and sin of each token's angles, times the rotation's amplitude. Computed once for all layers.
struct RopeTables {
  xla::Value cos_NH, sin_NH;  // [N, H / 2]
};
RopeTables MakeRopeTables(xla::Value positions_N, const Rotation& rotation);

// Rotates the pairs (i, i + H/2) of each head by the token's angle, as Hugging Face does; `inverse`
// rotates the other way, which is the rotation's gradient.
xla::Value ApplyRope(xla::Value x_NAH, const RopeTables& rope, bool inverse = false);

}  // namespace forebay::models
