// DType and Shape: the type of every array that a program touches. Static, row-major.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace forebay::xla {

enum class DType { kPred, kS8, kU8, kS32, kU32, kS64, kU64, kF16, kBF16, kF32 };

// Bytes of one element (kPred is 1).
int64_t ByteSize(DType dtype);
// The StableHLO spelling: i1, i8, ui8, i32, ui32, i64, ui64, f16, bf16, f32.
std::string_view Name(DType dtype);
bool IsFloat(DType dtype);

struct Shape {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // empty: a scalar

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t elements() const;
  int64_t bytes() const { return elements() * ByteSize(dtype); }
  // "f32[2,512,576]", as users read it in errors.
  std::string ToString() const;

  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace forebay::xla
