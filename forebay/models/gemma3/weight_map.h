// The weights of one Gemma 3 layer, by their names in Hugging Face checkpoints.
#pragma once

#include <vector>

#include "forebay/models/gemma3/config.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> Gemma3LayerTensors(const Gemma3Config& config);

}  // namespace forebay::models
