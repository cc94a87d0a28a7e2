// GgufFile: the content of a GGUF file (versions 2 and 3), parsed in place and trusted in nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::weights {

// The tensor types that Forebay reads; the values are those of the file.
// NOLINTBEGIN(readability-identifier-naming): the format's own names
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30
};
// NOLINTEND(readability-identifier-naming)

// Elements and bytes of one block; the element types have blocks of one.
struct GgmlBlock {
  int64_t elements = 1, bytes = 1;
};
GgmlBlock BlockOf(GgmlType type);

struct GgufTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> dims;  // row-major: outermost first, the reverse of the file's order
  std::span<const std::byte> bytes;
};

// An array in the metadata, parsed when it is asked for.
struct GgufArray {
  uint32_t element_type = 0;
  uint64_t count = 0;
  std::span<const std::byte> bytes;
};

using GgufValue = std::variant<bool, uint64_t, int64_t, double, std::string_view, GgufArray>;

// Views into the bytes that it was parsed from, which must outlive it.
class GgufFile {
 public:
  // kDataLoss for corrupt or truncated bytes (with the offset), kInvalidArgument for a version or
  // tensor type that is not supported (by tensor name).
  static Result<GgufFile> Parse(std::span<const std::byte> bytes);

  const std::map<std::string_view, GgufTensor>& tensors() const { return tensors_; }

  bool Has(std::string_view key) const { return metadata_.contains(key); }
  // kNotFound without the key, kInvalidArgument if it is of another kind. Integers of any width are
  // one kind.
  Result<uint64_t> Unsigned(std::string_view key) const;
  Result<double> Float(std::string_view key) const;
  Result<bool> Bool(std::string_view key) const;
  Result<std::string_view> String(std::string_view key) const;
  Result<std::vector<std::string_view>> Strings(std::string_view key) const;
  Result<std::vector<int64_t>> Integers(std::string_view key) const;
  Result<std::vector<double>> Floats(std::string_view key) const;

 private:
  Result<const GgufValue*> Find(std::string_view key) const;

  std::map<std::string_view, GgufValue> metadata_;
  std::map<std::string_view, GgufTensor> tensors_;
};

}  // namespace forebay::weights
