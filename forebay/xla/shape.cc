#include "forebay/xla/shape.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/check.h"

namespace forebay::xla {

int64_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kPred:
    case DType::kS8:
    case DType::kU8:
      return 1;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kS32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kS64:
    case DType::kU64:
      return 8;
  }
  FB_CHECK(false, "unknown dtype");
}

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return "i1";
    case DType::kS8:
      return "i8";
    case DType::kU8:
      return "ui8";
    case DType::kS32:
      return "i32";
    case DType::kU32:
      return "ui32";
    case DType::kS64:
      return "i64";
    case DType::kU64:
      return "ui64";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF32:
      return "f32";
  }
  FB_CHECK(false, "unknown dtype");
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

std::string Shape::ToString() const {
  // XLA's spelling, which is also that of the code (kS32), where StableHLO says i32.
  std::string out;
  const std::string_view name = Name(dtype);
  if (dtype == DType::kPred) {
    out = "pred";
  } else if (name.starts_with("ui")) {
    out.append("u").append(name.substr(2));
  } else if (name.starts_with("i")) {
    out.append("s").append(name.substr(1));
  } else {
    out = name;
  }
  out += '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(dims[i]);
  }
  out += ']';
  return out;
}

}  // namespace forebay::xla
