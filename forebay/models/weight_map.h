// WeightMap: the names, shapes and layouts of a model's weights: Hugging Face checkpoints on one
// side, the parameters of our programs on the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {

inline constexpr std::string_view kEmbedName = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";
inline constexpr std::string_view kHeadName =
    "lm_head.weight";  // absent when tied to the embedding

// Which dimension of a weight [out, in] (or a bias [out]) is split over tensor; a matrix is split
// over fsdp in the other one.
enum class Split { kNone, kOut, kIn };

// One weight of each layer; its name is "model.layers.N." + suffix.
struct LayerTensor {
  std::string suffix;
  xla::Dims dims;
  Split split = Split::kNone;
  bool decay = true;
  std::optional<float> start;  // see ParamSpec
  // Above 0: the checkpoint has that many of them, named by the number at the suffix's "*"; the
  // parameter is one tensor [experts, dims...].
  int64_t experts = 0;
};

struct WeightMap {
  ModelConfig config;
  std::vector<LayerTensor> tensors;
  float norm_start = 1;  // of the final norm
};

// How the embedding and the head [V, D] lie over a mesh.
xla::PartitionSpec TablePartition();
// How a layer's parameter lies over a mesh, without the dimension of stacked layers.
xla::PartitionSpec PartitionOf(const LayerTensor& tensor);

// "model.layers.7." + suffix; layer -1 gives the stacked name, "model.layers.*." + suffix.
std::string LayerName(int64_t layer, std::string_view suffix);

// The embedding, the layers' parameters, the final norm and, if it is not tied, the head.
std::vector<ParamSpec> ParamsOf(const WeightMap& map, LayerLayout layout);

// See Model::FromCheckpoint and Model::ToCheckpoint. A tied checkpoint may also hold lm_head.weight
// if it equals the embedding: then nothing is lost by leaving it out.
Result<weights::TensorMap> ParamsFromCheckpoint(const WeightMap& map,
                                                const weights::TensorMap& tensors,
                                                LayerLayout layout);
Result<weights::TensorMap> ParamsToCheckpoint(const WeightMap& map,
                                              const weights::TensorMap& params, LayerLayout layout);

}  // namespace forebay::models
