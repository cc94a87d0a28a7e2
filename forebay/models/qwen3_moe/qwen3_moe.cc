#include "forebay/models/qwen3_moe/qwen3_moe.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "forebay/models/decoder.h"
#include "forebay/models/experts.h"
#include "forebay/models/layers.h"
#include "forebay/models/qwen3_moe/config.h"
#include "forebay/models/qwen3_moe/weight_map.h"
#include "forebay/models/rope.h"
#include "forebay/models/weight_map.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

using xla::Value;
using xla::Values;

Qwen3Moe::Qwen3Moe(const Qwen3MoeConfig& config)
    : Decoder({.map = {.config = config.base, .tensors = Qwen3MoeLayerTensors(config)},
               .rotations = {MakeRotation(config.base.rope_theta, config.base.head_dim,
                                          config.rope_scaling)},
               .kinds = WindowKinds(config.windows)}),
      experts_per_token_(config.base.experts_per_token),
      normalize_(config.normalize) {}

Value Qwen3Moe::RunLayer(const LayerWeights& weights, Value x_ND, const AttendFn& attend) const {
  const Value normed = weights.Enter(Norm(x_ND, weights["input_layernorm.weight"]));
  const Values qkv =
      ProjectAll(normed, {weights["self_attn.q_proj.weight"], weights["self_attn.k_proj.weight"],
                          weights["self_attn.v_proj.weight"]});
  const Value attended =
      attend(HeadRmsNorm(qkv[0], weights["self_attn.q_norm.weight"], eps()),
             HeadRmsNorm(qkv[1], weights["self_attn.k_norm.weight"], eps()), qkv[2]);
  const Value middle = x_ND + weights.Leave(Project(attended, weights["self_attn.o_proj.weight"]));
  const Value ready = weights.Enter(Norm(middle, weights["post_attention_layernorm.weight"]));
  const Routing routing = Route(ready, weights["mlp.gate.weight"], experts_per_token_, normalize_);
  const ExpertWeights experts{weights["mlp.experts.*.gate_proj.weight"],
                              weights["mlp.experts.*.up_proj.weight"],
                              weights["mlp.experts.*.down_proj.weight"]};
  return middle + weights.Leave(SpreadExperts(weights.parallel(), ready, routing, experts));
}

}  // namespace forebay::models
