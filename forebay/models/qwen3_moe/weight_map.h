// The weights of one Qwen3-MoE layer, by their names in Hugging Face checkpoints.
#pragma once

#include <vector>

#include "forebay/models/qwen3_moe/config.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> Qwen3MoeLayerTensors(const Qwen3MoeConfig& config);

}  // namespace forebay::models
