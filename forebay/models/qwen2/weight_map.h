// The weights of one Qwen2 layer, by their names in Hugging Face checkpoints.
#pragma once

#include <vector>

#include "forebay/models/qwen2/config.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> Qwen2LayerTensors(const Qwen2Config& config);

}  // namespace forebay::models
