// The weights of one Llama layer, by their names in Hugging Face checkpoints.
#pragma once

#include <vector>

#include "forebay/models/model.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

std::vector<LayerTensor> LlamaLayerTensors(const ModelConfig& config);

}  // namespace forebay::models
