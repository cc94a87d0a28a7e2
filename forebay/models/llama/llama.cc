#include "forebay/models/llama/llama.h"

#include <cstddef>
#include <vector>

#include "forebay/models/decoder.h"
#include "forebay/models/layers.h"
#include "forebay/models/llama/config.h"
#include "forebay/models/llama/weight_map.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

using xla::Value;
using xla::Values;

Llama::Llama(const LlamaConfig& config)
    : Decoder({.map = {.config = config.base, .tensors = LlamaLayerTensors(config.base)},
               .rotations = {MakeRotation(config.base.rope_theta, config.base.head_dim,
                                          config.rope_scaling)},
               .kinds = std::vector<LayerKind>(static_cast<size_t>(config.base.layers))}) {}

Value Llama::RunLayer(const LayerWeights& weights, Value x_ND, const AttendFn& attend) const {
  const Value normed = weights.Enter(Norm(x_ND, weights["input_layernorm.weight"]));
  const Values qkv =
      ProjectAll(normed, {weights["self_attn.q_proj.weight"], weights["self_attn.k_proj.weight"],
                          weights["self_attn.v_proj.weight"]});
  const Value attended = attend(qkv[0], qkv[1], qkv[2]);
  const Value middle = x_ND + weights.Leave(Project(attended, weights["self_attn.o_proj.weight"]));
  const Value ready = weights.Enter(Norm(middle, weights["post_attention_layernorm.weight"]));
  return middle +
         weights.Leave(SwiGlu(ready, weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"],
                              weights["mlp.down_proj.weight"]));
}

}  // namespace forebay::models
