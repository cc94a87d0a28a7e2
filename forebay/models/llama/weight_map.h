// The names, shapes and layouts of a Llama model's weights: Hugging Face checkpoints on one side,
// the parameters of our programs on the other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"

namespace forebay::models {

inline constexpr std::string_view kEmbedName = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";
inline constexpr std::string_view kHeadName =
    "lm_head.weight";  // absent when tied to the embedding

// One weight of each layer; its name is "model.layers.N." + suffix.
struct LayerTensor {
  std::string_view suffix;
  std::vector<int64_t> dims;
  bool decay;
};
std::vector<LayerTensor> LlamaLayerTensors(const ModelConfig& config);

// "model.layers.7." + suffix; layer -1 gives the stacked name, "model.layers.*." + suffix.
std::string LayerName(int64_t layer, std::string_view suffix);

std::vector<ParamSpec> LlamaParams(const ModelConfig& config, LayerLayout layout);

// See Model::FromCheckpoint and Model::ToCheckpoint. A tied checkpoint may also hold lm_head.weight
// if it equals the embedding: then nothing is lost by leaving it out.
Result<weights::TensorMap> LlamaFromCheckpoint(const ModelConfig& config,
                                               const weights::TensorMap& tensors,
                                               LayerLayout layout);
Result<weights::TensorMap> LlamaToCheckpoint(const ModelConfig& config,
                                             const weights::TensorMap& params, LayerLayout layout);

}  // namespace forebay::models
