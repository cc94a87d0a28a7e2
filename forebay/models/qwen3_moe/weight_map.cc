#include "forebay/models/qwen3_moe/weight_map.h"

#include <cstdint>
#include <vector>

#include "forebay/models/qwen3_moe/config.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> Qwen3MoeLayerTensors(const Qwen3MoeConfig& config) {
  const ModelConfig& c = config.base;
  const int64_t width = c.width, ff = config.expert_width, experts = c.experts;
  const int64_t query = c.query_heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {{"input_layernorm.weight", {width}, Split::kNone, false, 1.0F},
          {"self_attn.q_proj.weight", {query, width}, Split::kOut},
          {"self_attn.k_proj.weight", {kv, width}, Split::kOut},
          {"self_attn.v_proj.weight", {kv, width}, Split::kOut},
          {"self_attn.q_norm.weight", {c.head_dim}, Split::kNone, false, 1.0F},
          {"self_attn.k_norm.weight", {c.head_dim}, Split::kNone, false, 1.0F},
          {"self_attn.o_proj.weight", {width, query}, Split::kIn},
          {"post_attention_layernorm.weight", {width}, Split::kNone, false, 1.0F},
          {"mlp.gate.weight", {experts, width}},
          {"mlp.experts.*.gate_proj.weight", {ff, width}, Split::kOut, true, {}, experts},
          {"mlp.experts.*.up_proj.weight", {ff, width}, Split::kOut, true, {}, experts},
          {"mlp.experts.*.down_proj.weight", {width, ff}, Split::kIn, true, {}, experts}};
}

}  // namespace forebay::models
