#include "forebay/weights/gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/byte_reader.h"

namespace forebay::weights {
namespace {

constexpr std::string_view kMagic = "GGUF";
// Far above any model that exists (405 B: 1138 tensors, some 50 keys).
constexpr uint64_t kTensorsMax = 100'000;
constexpr uint64_t kKeysMax = 100'000;
constexpr uint64_t kNameBytesMax = 65'535;
constexpr uint32_t kRankMax = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kAlignmentMax = 65'536;

// The value types of the file format.
enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kValueTypes
};

// Bytes of a value of fixed size; 0 for strings and arrays.
constexpr size_t kValueBytes[kValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

GgufValue ReadScalar(uint32_t type, ByteReader* reader) {
  switch (type) {
    case kUint8:
      return uint64_t{reader->Number<uint8_t>()};
    case kInt8:
      return int64_t{reader->Number<int8_t>()};
    case kUint16:
      return uint64_t{reader->Number<uint16_t>()};
    case kInt16:
      return int64_t{reader->Number<int16_t>()};
    case kUint32:
      return uint64_t{reader->Number<uint32_t>()};
    case kInt32:
      return int64_t{reader->Number<int32_t>()};
    case kFloat32:
      return double{reader->Number<float>()};
    case kBool:
      return reader->Number<uint8_t>() != 0;
    case kUint64:
      return reader->Number<uint64_t>();
    case kInt64:
      return reader->Number<int64_t>();
    case kFloat64:
      return reader->Number<double>();
    default:
      return reader->String();
  }
}

Result<GgufArray> ReadArray(std::string_view key, ByteReader* reader) {
  GgufArray array;
  array.element_type = reader->Number<uint32_t>();
  array.count = reader->Number<uint64_t>();
  if (array.element_type >= kValueTypes || array.element_type == kArray) {
    return DataLoss(fmt::format("metadata {}: array elements of type {} at offset {}", key,
                                array.element_type, reader->at()));
  }
  ByteReader elements = *reader;
  const size_t element_bytes = kValueBytes[array.element_type];
  if (element_bytes > 0) {
    if (array.count > elements.left() / element_bytes) return reader->Truncated(key);
    elements.Bytes(array.count * element_bytes);
  } else {
    // A string takes 8 bytes at least, so this ends within the file.
    for (uint64_t i = 0; i < array.count && !elements.failed(); ++i) elements.String();
  }
  if (elements.failed()) return reader->Truncated(key);
  array.bytes = reader->Bytes(elements.at() - reader->at());
  return array;
}

Result<std::pair<std::string_view, GgufValue>> ReadMetadata(ByteReader* reader) {
  const std::string_view key = reader->String();
  const auto type = reader->Number<uint32_t>();
  if (reader->failed()) return reader->Truncated("the metadata");
  if (key.size() > kNameBytesMax || type >= kValueTypes) {
    return DataLoss(fmt::format(
        "the metadata has a key of {} bytes with a value of type {} at offset {}: corrupt",
        key.size(), type, reader->at()));
  }
  if (type == kArray) {
    FB_ASSIGN_OR_RETURN(const GgufArray array, ReadArray(key, reader));
    return std::pair(key, GgufValue(array));
  }
  GgufValue value = ReadScalar(type, reader);
  if (reader->failed()) return reader->Truncated("the metadata");
  return std::pair(key, value);
}

std::optional<GgmlType> KnownType(uint32_t type) {
  for (const GgmlType known : {GgmlType::kF32, GgmlType::kF16, GgmlType::kQ4_0, GgmlType::kQ4_1,
                               GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ8_0, GgmlType::kQ4_K,
                               GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kBF16}) {
    if (type == static_cast<uint32_t>(known)) return known;
  }
  return std::nullopt;
}

std::string_view TypeName(uint32_t type) {
  constexpr std::string_view kNames[] = {
      "F32",     "F16",    "Q4_0",    "Q4_1",  "(removed)", "(removed)", "Q5_0",  "Q5_1",
      "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",      "Q5_K",      "Q6_K",  "Q8_K",
      "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",    "IQ3_S",     "IQ2_S", "IQ4_XS",
      "I8",      "I16",    "I32",     "I64",   "F64",       "IQ1_M",     "BF16"};
  return type < std::size(kNames) ? kNames[type] : "(unknown)";
}

struct TensorInfo {
  std::string_view name;
  GgufTensor tensor;
  uint64_t offset = 0, size = 0;
};

Result<TensorInfo> ReadTensorInfo(ByteReader* reader) {
  TensorInfo info{.name = reader->String()};
  const auto rank = reader->Number<uint32_t>();
  if (reader->failed()) return reader->Truncated("the list of tensors");
  if (rank > kRankMax || info.name.size() > kNameBytesMax) {
    return DataLoss(
        fmt::format("a tensor at offset {} has {} dimensions: corrupt", reader->at(), rank));
  }
  for (uint32_t i = 0; i < rank; ++i) info.tensor.dims.push_back(reader->Number<int64_t>());
  std::reverse(info.tensor.dims.begin(), info.tensor.dims.end());
  const auto type = reader->Number<uint32_t>();
  info.offset = reader->Number<uint64_t>();
  if (reader->failed()) return reader->Truncated("the list of tensors");

  const auto known = KnownType(type);
  if (!known) {
    return InvalidArgument(
        fmt::format("tensor {} has the type {} ({}); F32, F16, BF16, Q8_0, Q4_1 and Q4_0 are "
                    "supported: convert the model to one of them",
                    info.name, TypeName(type), type));
  }
  info.tensor.type = *known;
  const GgmlBlock block = BlockOf(*known);
  int64_t elements = 1;
  bool valid = rank > 0;
  for (const int64_t dim : info.tensor.dims) {
    valid = valid && dim > 0 && !__builtin_mul_overflow(elements, dim, &elements);
  }
  int64_t size = 0;
  valid = valid && info.tensor.dims.back() % block.elements == 0 &&
          !__builtin_mul_overflow(elements / block.elements, block.bytes, &size) &&
          // Dequantised, it must be addressable too.
          elements <= std::numeric_limits<int64_t>::max() / 8;
  if (!valid) {
    return DataLoss(fmt::format("tensor {} has a shape that no {} tensor can have, near offset {}",
                                info.name, TypeName(type), reader->at()));
  }
  info.size = static_cast<uint64_t>(size);
  return info;
}

// Gives each tensor its bytes; they must lie within the data section and apart from each other.
Status PlaceTensors(std::span<const std::byte> data, uint64_t alignment,
                    std::vector<TensorInfo>* infos) {
  std::sort(infos->begin(), infos->end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (TensorInfo& info : *infos) {
    if (info.offset > data.size() || info.size > data.size() - info.offset) {
      return DataLoss(fmt::format(
          "tensor {} lies at {} of the data section and has {} bytes, but the section ends at "
          "{}: the file is truncated or corrupt",
          info.name, info.offset, info.size, data.size()));
    }
    if (info.offset < end || info.offset % alignment != 0) {
      return DataLoss(fmt::format(
          "tensor {} at {} of the data section overlaps another or is not aligned to {}: "
          "the file is corrupt",
          info.name, info.offset, alignment));
    }
    info.tensor.bytes = data.subspan(info.offset, info.size);
    end = info.offset + info.size;
  }
  return OkStatus();
}

}  // namespace

GgmlBlock BlockOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return {.elements = 1, .bytes = 4};
    case GgmlType::kF16:
    case GgmlType::kBF16:
      return {.elements = 1, .bytes = 2};
    case GgmlType::kQ4_0:
      return {.elements = 32, .bytes = 18};
    case GgmlType::kQ4_1:
      return {.elements = 32, .bytes = 20};
    case GgmlType::kQ5_0:
      return {.elements = 32, .bytes = 22};
    case GgmlType::kQ5_1:
      return {.elements = 32, .bytes = 24};
    case GgmlType::kQ8_0:
      return {.elements = 32, .bytes = 34};
    case GgmlType::kQ4_K:
      return {.elements = 256, .bytes = 144};
    case GgmlType::kQ5_K:
      return {.elements = 256, .bytes = 176};
    case GgmlType::kQ6_K:
      return {.elements = 256, .bytes = 210};
  }
  return {};
}

Result<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.Bytes(kMagic.size());
  const auto version = reader.Number<uint32_t>();
  if (reader.failed() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return DataLoss("not a GGUF file: it does not start with \"GGUF\"");
  }
  if (version != 2 && version != 3) {
    return InvalidArgument(fmt::format(
        "GGUF version {} is not supported; little-endian versions 2 and 3 are", version));
  }
  const auto tensor_count = reader.Number<uint64_t>();
  const auto key_count = reader.Number<uint64_t>();
  if (reader.failed()) return reader.Truncated("the file's header");
  if (tensor_count > kTensorsMax || key_count > kKeysMax) {
    return DataLoss(
        fmt::format("the header says {} tensors and {} metadata keys; {} of each are the limit",
                    tensor_count, key_count, kTensorsMax));
  }

  GgufFile file;
  for (uint64_t i = 0; i < key_count; ++i) {
    FB_ASSIGN_OR_RETURN(auto entry, ReadMetadata(&reader));
    if (!file.metadata_.insert(entry).second) {
      return DataLoss(fmt::format("the metadata key {} appears twice", entry.first));
    }
  }
  std::vector<TensorInfo> infos;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    FB_ASSIGN_OR_RETURN(TensorInfo info, ReadTensorInfo(&reader));
    infos.push_back(std::move(info));
  }

  uint64_t alignment = kDefaultAlignment;
  if (file.Has("general.alignment")) {
    FB_ASSIGN_OR_RETURN(alignment, file.Unsigned("general.alignment"));
    if (!std::has_single_bit(alignment) || alignment > kAlignmentMax) {
      return DataLoss(fmt::format("general.alignment is {}: not a power of two up to {}", alignment,
                                  kAlignmentMax));
    }
  }
  const size_t padding = (alignment - reader.at() % alignment) % alignment;
  const auto data = bytes.subspan(std::min(reader.at() + padding, bytes.size()));
  FB_RETURN_IF_ERROR(PlaceTensors(data, alignment, &infos));
  for (TensorInfo& info : infos) {
    if (!file.tensors_.emplace(info.name, std::move(info.tensor)).second) {
      return DataLoss(fmt::format("the tensor {} appears twice", info.name));
    }
  }
  return file;
}

Result<const GgufValue*> GgufFile::Find(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return NotFound(fmt::format("the GGUF metadata has no {}", key));
  return &found->second;
}

Result<uint64_t> GgufFile::Unsigned(std::string_view key) const {
  FB_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (const auto* number = std::get_if<uint64_t>(value)) return *number;
  const auto* number = std::get_if<int64_t>(value);
  if (number != nullptr && *number >= 0) return static_cast<uint64_t>(*number);
  return InvalidArgument(
      fmt::format("the GGUF metadata {} is not a single number of 0 or more", key));
}

Result<double> GgufFile::Float(std::string_view key) const {
  FB_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (const auto* number = std::get_if<double>(value)) return *number;
  return InvalidArgument(fmt::format("the GGUF metadata {} is not a floating-point number", key));
}

Result<bool> GgufFile::Bool(std::string_view key) const {
  FB_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  return InvalidArgument(fmt::format("the GGUF metadata {} is not true or false", key));
}

Result<std::string_view> GgufFile::String(std::string_view key) const {
  FB_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (const auto* text = std::get_if<std::string_view>(value)) return *text;
  return InvalidArgument(fmt::format("the GGUF metadata {} is not a string", key));
}

Result<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  FB_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->element_type != kString) {
    return InvalidArgument(fmt::format("the GGUF metadata {} is not an array of strings", key));
  }
  ByteReader reader(array->bytes);
  std::vector<std::string_view> strings;
  strings.reserve(array->count);  // Parse has seen as many in the file
  for (uint64_t i = 0; i < array->count; ++i) strings.push_back(reader.String());
  return strings;
}

Result<std::vector<int64_t>> GgufFile::Integers(std::string_view key) const {
  FB_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr)
    return InvalidArgument(fmt::format("the GGUF metadata {} is not an array", key));
  ByteReader reader(array->bytes);
  std::vector<int64_t> integers;
  for (uint64_t i = 0; i < array->count; ++i) {
    const GgufValue element = ReadScalar(array->element_type, &reader);
    if (const auto* number = std::get_if<int64_t>(&element)) {
      integers.push_back(*number);
    } else if (const auto* wide = std::get_if<uint64_t>(&element);
               wide != nullptr && *wide <= uint64_t{std::numeric_limits<int64_t>::max()}) {
      integers.push_back(static_cast<int64_t>(*wide));
    } else {
      return InvalidArgument(fmt::format("the GGUF metadata {} is not an array of integers", key));
    }
  }
  return integers;
}

Result<std::vector<double>> GgufFile::Floats(std::string_view key) const {
  FB_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr)
    return InvalidArgument(fmt::format("the GGUF metadata {} is not an array", key));
  ByteReader reader(array->bytes);
  std::vector<double> numbers;
  for (uint64_t i = 0; i < array->count; ++i) {
    const GgufValue element = ReadScalar(array->element_type, &reader);
    const auto* number = std::get_if<double>(&element);
    if (number == nullptr) {
      return InvalidArgument(fmt::format("the GGUF metadata {} is not an array of floats", key));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace forebay::weights
