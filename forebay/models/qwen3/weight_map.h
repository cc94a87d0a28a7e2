// The weights of one Qwen3 layer, by their names in Hugging Face checkpoints.
#pragma once

#include <vector>

#include "forebay/models/qwen3/config.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> Qwen3LayerTensors(const Qwen3Config& config);

}  // namespace forebay::models
