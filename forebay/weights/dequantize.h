// Dequantize: the numbers of a GGUF tensor as f32.
#pragma once

#include <cstddef>
#include <span>

#include "forebay/weights/gguf.h"

namespace forebay::weights {

// Writes the elements of `bytes` (whole blocks of `type`) to `out`, which must have room for
// exactly these (CHECK).
void Dequantize(GgmlType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace forebay::weights
