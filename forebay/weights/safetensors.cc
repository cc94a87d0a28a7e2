#include "forebay/weights/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/mapped_file.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::json;
using xla::DType;

constexpr size_t kPrefixBytes = 8;
// A checkpoint of 700 tensors has a header of 0.1 MB.
constexpr uint64_t kHeaderBytesMax = uint64_t{32} << 20;
constexpr int kHeaderDepthMax = 3;
constexpr size_t kRankMax = 16;
constexpr size_t kIndexBytesMax = size_t{32} << 20;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr std::array<DTypeName, 10> kDTypeNames = {{{"BOOL", DType::kPred},
                                                    {"I8", DType::kS8},
                                                    {"U8", DType::kU8},
                                                    {"I32", DType::kS32},
                                                    {"U32", DType::kU32},
                                                    {"I64", DType::kS64},
                                                    {"U64", DType::kU64},
                                                    {"F16", DType::kF16},
                                                    {"BF16", DType::kBF16},
                                                    {"F32", DType::kF32}}};

std::optional<DType> DTypeByName(std::string_view name) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

struct Entry {
  std::string name;
  xla::Shape shape;
  uint64_t begin = 0, end = 0;  // in the data section
};

// An error inside `json` is not thrown but nullopt. Depth and repeated keys are refused while
// reading, so that a hostile header takes memory in proportion to its size at most and means one
// thing only.
std::optional<Json> ParseHeaderJson(std::string_view text) {
  bool valid = true;
  std::set<std::string> names;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kHeaderDepthMax) valid = false;
    if (event == Json::parse_event_t::key && depth == 1) {
      if (!names.insert(parsed.get<std::string>()).second) valid = false;
    }
    return valid;
  };
  Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (!valid || !json.is_object()) return std::nullopt;
  return json;
}

// Numbers of a JSON array as u64; nullopt if anything else is in it.
std::optional<std::vector<uint64_t>> Numbers(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const Json& item : *found) {
    if (!item.is_number_unsigned()) return std::nullopt;
    numbers.push_back(item.get<uint64_t>());
  }
  return numbers;
}

Result<Entry> ParseEntry(const std::string& name, const Json& json, uint64_t data_bytes) {
  const auto dtype_text = json.is_object() ? json.find("dtype") : json.end();
  if (!json.is_object() || dtype_text == json.end() || !dtype_text->is_string()) {
    return DataLoss(fmt::format("header: tensor {} has no dtype", name));
  }
  const auto dtype = DTypeByName(dtype_text->get_ref<const std::string&>());
  if (!dtype) {
    return InvalidArgument(fmt::format("tensor {} has the dtype {}, which is not supported", name,
                                       dtype_text->get_ref<const std::string&>()));
  }
  const auto dims = Numbers(json, "shape");
  const auto offsets = Numbers(json, "data_offsets");
  if (!dims || dims->size() > kRankMax || !offsets || offsets->size() != 2) {
    return DataLoss(fmt::format("header: tensor {} has no valid shape and data_offsets", name));
  }

  Entry entry{
      .name = name, .shape = {.dtype = *dtype}, .begin = (*offsets)[0], .end = (*offsets)[1]};
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return DataLoss(
        fmt::format("tensor {} lies at [{}, {}) of a data section of {} bytes: the file is "
                    "truncated or its header is corrupt",
                    name, entry.begin, entry.end, data_bytes));
  }
  bool overflow = false;
  int64_t bytes = xla::ByteSize(*dtype);
  for (const uint64_t dim : *dims) {
    int64_t signed_dim = 0;
    overflow |= __builtin_add_overflow(dim, uint64_t{0}, &signed_dim);
    overflow |= __builtin_mul_overflow(bytes, signed_dim, &bytes);
    entry.shape.dims.push_back(signed_dim);
  }
  if (overflow || static_cast<uint64_t>(bytes) != entry.end - entry.begin) {
    return DataLoss(fmt::format("tensor {}: its shape does not fill its {} bytes at [{}, {})", name,
                                entry.end - entry.begin, entry.begin, entry.end));
  }
  return entry;
}

// Every byte of the data section belongs to exactly one tensor.
Status CheckCoverage(std::vector<Entry>* entries, uint64_t data_bytes) {
  std::sort(entries->begin(), entries->end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const Entry& entry : *entries) {
    if (entry.begin != end) {
      return DataLoss(
          fmt::format("tensor {} starts at {} of the data section, but the tensor before it "
                      "ends at {}: the header is corrupt",
                      entry.name, entry.begin, end));
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    return DataLoss(
        fmt::format("the data section has {} bytes, but its tensors end at {}", data_bytes, end));
  }
  return OkStatus();
}

HostTensor MakeTensor(const Entry& entry, std::span<const std::byte> data,
                      const std::shared_ptr<const void>& owner) {
  const auto view = data.subspan(entry.begin, entry.end - entry.begin);
  const auto alignment = static_cast<uintptr_t>(xla::ByteSize(entry.shape.dtype));
  if (reinterpret_cast<uintptr_t>(view.data()) % alignment == 0) {
    return {entry.shape, view, owner};
  }
  std::span<std::byte> copy;
  HostTensor tensor = HostTensor::Allocate(entry.shape, &copy);
  if (!view.empty()) std::memcpy(copy.data(), view.data(), view.size());
  return tensor;
}

}  // namespace

Result<TensorMap> ParseSafetensors(std::span<const std::byte> bytes,
                                   const std::shared_ptr<const void>& owner) {
  if (bytes.size() < kPrefixBytes) {
    return DataLoss(fmt::format("{} bytes are too few for a safetensors file", bytes.size()));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kHeaderBytesMax || header_bytes > bytes.size() - kPrefixBytes) {
    return DataLoss(
        fmt::format("the header says that it has {} bytes; the file has {} (and a header {} at "
                    "most): truncated, or not a safetensors file",
                    header_bytes, bytes.size(), kHeaderBytesMax));
  }
  const auto header = bytes.subspan(kPrefixBytes, header_bytes);
  const auto data = bytes.subspan(kPrefixBytes + header_bytes);
  const auto json = ParseHeaderJson({reinterpret_cast<const char*>(header.data()), header.size()});
  if (!json) return DataLoss("the header is not a JSON object of tensors");

  std::vector<Entry> entries;
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") continue;
    FB_ASSIGN_OR_RETURN(Entry entry, ParseEntry(name, value, data.size()));
    entries.push_back(std::move(entry));
  }
  FB_RETURN_IF_ERROR(CheckCoverage(&entries, data.size()));

  TensorMap tensors;
  for (const Entry& entry : entries) tensors.emplace(entry.name, MakeTensor(entry, data, owner));
  return tensors;
}

Result<TensorMap> ReadSafetensors(const std::string& path) {
  FB_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  Result<TensorMap> tensors = ParseSafetensors(file->bytes(), file);
  if (!tensors.ok()) return tensors.status().WithContext(path);
  return tensors;
}

Result<TensorMap> ReadShardedSafetensors(const std::string& index_path) {
  FB_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path, kIndexBytesMax));
  const Json index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return DataLoss(fmt::format("{}: not a JSON object with a weight_map", index_path));
  }
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    // A shard lies beside its index: a path would let a model file read anything on the machine.
    if (!shard.is_string() || shard.get_ref<const std::string&>().find('/') != std::string::npos) {
      return DataLoss(fmt::format("{}: the shard of {} is not a file name", index_path, name));
    }
    shards.insert(shard.get<std::string>());
  }

  const std::string folder = index_path.substr(0, index_path.rfind('/') + 1);
  TensorMap tensors;
  for (const std::string& shard : shards) {
    FB_ASSIGN_OR_RETURN(TensorMap part, ReadSafetensors(folder + shard));
    for (auto& [name, tensor] : part) {
      const auto expected = map->find(name);
      if (expected == map->end() || expected->get_ref<const std::string&>() != shard) {
        return DataLoss(fmt::format("{}: tensor {} is in {}, where the index does not have it",
                                    index_path, name, shard));
      }
      tensors.emplace(name, std::move(tensor));
    }
  }
  for (const auto& [name, shard] : map->items()) {
    if (!tensors.contains(name)) {
      return DataLoss(fmt::format("{}: tensor {} is missing from {}", index_path, name,
                                  shard.get_ref<const std::string&>()));
    }
  }
  return tensors;
}

}  // namespace forebay::weights
