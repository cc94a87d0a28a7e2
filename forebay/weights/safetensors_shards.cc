// WriteModelTensors: one file, or shards with their index.
#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {

Status WriteModelTensors(const std::string& folder, const TensorMap& tensors,
                         int64_t shard_bytes_max) {
  if (shard_bytes_max <= 0) return InvalidArgument("a shard must have room for a tensor");
  std::vector<TensorMap> shards;
  int64_t total = 0, filled = shard_bytes_max;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.bytes().size());
    // A tensor larger than a shard gets one of its own.
    if (shards.empty() || filled + bytes > shard_bytes_max) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().emplace(name, tensor);
    filled += bytes;
    total += bytes;
  }
  if (shards.size() <= 1) return WriteSafetensors(folder + "/model.safetensors", tensors);

  nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}};
  // Filled apart: looking a key up in an ordered_json is linear in its size.
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    FB_RETURN_IF_ERROR(WriteSafetensors(fmt::format("{}/{}", folder, file), shards[i]));
    for (const auto& [name, tensor] : shards[i]) weight_map[name] = file;
  }
  index["weight_map"] = weight_map;
  // Last: a folder with an index has all that it names.
  return WriteFileAtomic(folder + "/model.safetensors.index.json", index.dump(2));
}

}  // namespace forebay::weights
