#include "forebay/models/qwen2/weight_map.h"

#include <cstdint>
#include <vector>

#include "forebay/models/qwen2/config.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> Qwen2LayerTensors(const Qwen2Config& config) {
  const ModelConfig& c = config.base;
  const int64_t width = c.width, ff = c.ff_width;
  const int64_t query = c.query_heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {{"input_layernorm.weight", {width}, Split::kNone, false, 1.0F},
          {"self_attn.q_proj.weight", {query, width}, Split::kOut},
          {"self_attn.q_proj.bias", {query}, Split::kOut, false, 0.0F},
          {"self_attn.k_proj.weight", {kv, width}, Split::kOut},
          {"self_attn.k_proj.bias", {kv}, Split::kOut, false, 0.0F},
          {"self_attn.v_proj.weight", {kv, width}, Split::kOut},
          {"self_attn.v_proj.bias", {kv}, Split::kOut, false, 0.0F},
          {"self_attn.o_proj.weight", {width, query}, Split::kIn},
          {"post_attention_layernorm.weight", {width}, Split::kNone, false, 1.0F},
          {"mlp.gate_proj.weight", {ff, width}, Split::kOut},
          {"mlp.up_proj.weight", {ff, width}, Split::kOut},
          {"mlp.down_proj.weight", {width, ff}, Split::kIn}};
}

}  // namespace forebay::models
