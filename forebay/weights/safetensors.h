// Safetensors: the checkpoint format of Hugging Face, read by mapping and written aside and
// renamed.
//
// A file is a little-endian u64 header size, the header (JSON: name -> dtype, shape, data_offsets),
// and the tensors' bytes, which must lie in one piece without holes or overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {

// The whole of a file that is already in memory; the tensors view `bytes`, which `owner` keeps
// alive (a tensor that is not aligned for its type is copied). Nothing in `bytes` is trusted.
// kDataLoss (corrupt or truncated: what and where), kInvalidArgument (a dtype that Forebay has not,
// by tensor name).
Result<TensorMap> ParseSafetensors(std::span<const std::byte> bytes,
                                   const std::shared_ptr<const void>& owner);

// One file, mapped: pages are read when they are touched. As above, and kNotFound; errors name the
// file.
Result<TensorMap> ReadSafetensors(const std::string& path);

// All shards named by a model.safetensors.index.json in its folder. As above; kDataLoss when the
// index and the shards disagree about which tensors there are.
Result<TensorMap> ReadShardedSafetensors(const std::string& index_path);

// Writes one file aside, syncs it, renames it over `path` and syncs the folder: after a crash the
// old or the new file is there. Blocks until it is durable. kResourceExhausted when the disk is
// full.
Status WriteSafetensors(const std::string& path, const TensorMap& tensors);

// `folder`/model.safetensors, or, where that would have more than `shard_bytes_max` of tensors,
// shards (model-00001-of-00003.safetensors, ...; a tensor that is larger has its own) and then
// model.safetensors.index.json, as transformers writes them. Each file as by WriteSafetensors;
// shards that an earlier write left stay, and the index does not name them.
inline constexpr int64_t kShardBytesMax = 5'000'000'000;
Status WriteModelTensors(const std::string& folder, const TensorMap& tensors,
                         int64_t shard_bytes_max = kShardBytesMax);

}  // namespace forebay::weights
