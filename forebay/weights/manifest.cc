#include "forebay/weights/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "forebay/base/json_depth.h"
#include "forebay/base/status.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMembersMax = 8;
constexpr size_t kNameBytesMax = 1024;
constexpr size_t kRankMax = 16;
constexpr size_t kFields = 4;  // name, dtype, dims, content

std::string ToHex(const ContentId& id) { return fmt::format("{:016x}{:016x}", id.high, id.low); }

std::optional<ContentId> FromHex(std::string_view text) {
  constexpr size_t kHalf = 16;
  if (text.size() != 2 * kHalf) return std::nullopt;
  ContentId id;
  const char* middle = text.data() + kHalf;
  const char* end = middle + kHalf;
  const auto high = std::from_chars(text.data(), middle, id.high, 16);
  const auto low = std::from_chars(middle, end, id.low, 16);
  const bool whole =
      high.ec == std::errc() && high.ptr == middle && low.ec == std::errc() && low.ptr == end;
  return whole ? std::optional(id) : std::nullopt;
}

std::optional<xla::DType> FloatByName(std::string_view name) {
  for (const xla::DType dtype : {xla::DType::kF32, xla::DType::kBF16, xla::DType::kF16}) {
    if (xla::Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// Lengths go in before contents, so that no two manifests give one text.
std::string Root(const Manifest& manifest) {
  std::string text = fmt::format("{} {}", manifest.policy_version, manifest.tensors.size());
  for (const ManifestTensor& tensor : manifest.tensors) {
    text += fmt::format("\n{} {} {} {}", tensor.name.size(), tensor.name, tensor.shape.ToString(),
                        ToHex(tensor.content));
  }
  return ToHex(ContentOf(std::as_bytes(std::span(text))));
}

Result<ManifestTensor> ParseTensor(const Json& entry) {
  if (!entry.is_array() || entry.size() != kFields || !entry[0].is_string() ||
      !entry[1].is_string() || !entry[2].is_array() || !entry[3].is_string()) {
    return DataLoss("an entry is not [name, dtype, dims, content]");
  }
  ManifestTensor out{.name = entry[0].get<std::string>()};
  if (out.name.empty() || out.name.size() > kNameBytesMax) {
    return DataLoss(
        fmt::format("a name has {} bytes, not 1 to {}", out.name.size(), kNameBytesMax));
  }
  const std::optional<xla::DType> dtype = FloatByName(entry[1].get_ref<const std::string&>());
  if (!dtype) return DataLoss("'" + out.name + "' is of none of f32, bf16, f16");
  out.shape.dtype = *dtype;
  if (entry[2].size() > kRankMax) return DataLoss("'" + out.name + "' has too many dimensions");
  for (const Json& dim : entry[2]) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > uint64_t{INT64_MAX}) {
      return DataLoss("a dimension of '" + out.name + "' is no integer from 0");
    }
    out.shape.dims.push_back(dim.get<int64_t>());
  }
  const std::optional<ContentId> content = FromHex(entry[3].get_ref<const std::string&>());
  if (!content) return DataLoss("the content of '" + out.name + "' is not 32 hexadecimal digits");
  out.content = *content;
  return out;
}

}  // namespace

ContentId ContentOf(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.high = hash.high64, .low = hash.low64};
}

Manifest MakeManifest(const Snapshot& snapshot) {
  Manifest out{.policy_version = snapshot.policy_version};
  out.tensors.reserve(snapshot.tensors.size());
  for (const auto& [name, tensor] : snapshot.tensors) {
    out.tensors.push_back(
        {.name = name, .shape = tensor.shape(), .content = ContentOf(tensor.bytes())});
  }
  return out;
}

std::string FormatManifest(const Manifest& manifest) {
  Json tensors = Json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    tensors.push_back(
        {tensor.name, xla::Name(tensor.shape.dtype), tensor.shape.dims, ToHex(tensor.content)});
  }
  return Json({{"policy_version", manifest.policy_version},
               {"tensors", std::move(tensors)},
               {"root", Root(manifest)}})
      .dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Result<Manifest> ParseManifest(std::string_view text) {
  if (TooDeep(text) || TooCrowded(text, kMembersMax)) {
    return DataLoss("the manifest is nested too deep or has too many members");
  }
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("policy_version") || !value.contains("tensors") ||
      !value.contains("root")) {
    return DataLoss("the manifest is no JSON object with policy_version, tensors and root");
  }
  const Json& version = value["policy_version"];
  const Json& tensors = value["tensors"];
  if (!version.is_number_unsigned() || version.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return DataLoss("the manifest's policy_version is no integer from 0");
  }
  if (!tensors.is_array()) return DataLoss("the manifest's tensors are no list");
  Manifest out{.policy_version = version.get<int64_t>()};
  for (const Json& entry : tensors) {
    Result<ManifestTensor> tensor = ParseTensor(entry);
    if (!tensor.ok()) return tensor.status().WithContext("the manifest");
    if (!out.tensors.empty() && out.tensors.back().name >= tensor->name) {
      return DataLoss("the manifest's names are not in order, each once: '" + tensor->name + "'");
    }
    out.tensors.push_back(std::move(*tensor));
  }
  if (value["root"] != Root(out)) {
    return DataLoss("the manifest's root does not belong to its content: it was torn or changed");
  }
  return out;
}

}  // namespace forebay::weights
