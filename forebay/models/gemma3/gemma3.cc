#include "forebay/models/gemma3/gemma3.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "forebay/models/decoder.h"
#include "forebay/models/gemma3/config.h"
#include "forebay/models/gemma3/weight_map.h"
#include "forebay/models/layers.h"
#include "forebay/models/rope.h"
#include "forebay/models/weight_map.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

using xla::Value;
using xla::Values;

namespace {

std::vector<LayerKind> Kinds(const Gemma3Config& config) {
  std::vector<LayerKind> kinds;
  kinds.reserve(config.sliding.size());
  for (const bool sliding : config.sliding) {
    kinds.push_back(sliding ? LayerKind{.rope = 1, .window = config.window} : LayerKind{});
  }
  return kinds;
}

}  // namespace

Gemma3::Gemma3(const Gemma3Config& config)
    : Decoder(
          {.map = {.config = config.base, .tensors = Gemma3LayerTensors(config), .norm_start = 0},
           .rotations = {MakeRotation(config.base.rope_theta, config.base.head_dim,
                                      config.rope_scaling),
                         MakeRotation(config.local_theta, config.base.head_dim,
                                      config.local_scaling)},
           .kinds = Kinds(config),
           .embed_scale = std::sqrt(static_cast<double>(config.base.width)),
           .score_scale = 1 / std::sqrt(config.query_scalar),
           .softcap = config.softcap}) {}

Value Gemma3::RunLayer(const LayerWeights& weights, Value x_ND, const AttendFn& attend) const {
  const Value normed = weights.Enter(Norm(x_ND, weights["input_layernorm.weight"]));
  const Values qkv =
      ProjectAll(normed, {weights["self_attn.q_proj.weight"], weights["self_attn.k_proj.weight"],
                          weights["self_attn.v_proj.weight"]});
  const Value attended =
      attend(HeadRmsNorm(qkv[0], weights["self_attn.q_norm.weight"] + 1, eps()),
             HeadRmsNorm(qkv[1], weights["self_attn.k_norm.weight"] + 1, eps()), qkv[2]);
  const Value mixed = weights.Leave(Project(attended, weights["self_attn.o_proj.weight"]));
  const Value middle = x_ND + Norm(mixed, weights["post_attention_layernorm.weight"]);
  const Value ready = weights.Enter(Norm(middle, weights["pre_feedforward_layernorm.weight"]));
  const Value fed =
      weights.Leave(GeGlu(ready, weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"],
                          weights["mlp.down_proj.weight"]));
  return middle + Norm(fed, weights["post_feedforward_layernorm.weight"]);
}

Value Gemma3::Norm(Value x, Value weight) const { return RmsNorm(x, weight + 1, eps()); }

}  // namespace forebay::models
