#include "forebay/models/llama/weight_map.h"

#include <cstdint>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> LlamaLayerTensors(const ModelConfig& config) {
  const int64_t width = config.width, ff = config.ff_width;
  const int64_t query = config.query_heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  return {{"input_layernorm.weight", {width}, Split::kNone, false, 1.0F},
          {"self_attn.q_proj.weight", {query, width}, Split::kOut},
          {"self_attn.k_proj.weight", {kv, width}, Split::kOut},
          {"self_attn.v_proj.weight", {kv, width}, Split::kOut},
          {"self_attn.o_proj.weight", {width, query}, Split::kIn},
          {"post_attention_layernorm.weight", {width}, Split::kNone, false, 1.0F},
          {"mlp.gate_proj.weight", {ff, width}, Split::kOut},
          {"mlp.up_proj.weight", {ff, width}, Split::kOut},
          {"mlp.down_proj.weight", {width, ff}, Split::kIn}};
}

}  // namespace forebay::models
