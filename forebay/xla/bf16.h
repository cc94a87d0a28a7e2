// bf16 as the processor's integers hold it: the upper half of an f32. ToFloat and Round are for
// kernels that are templates over float and it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace forebay::xla {

inline float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float ToFloat(float x) { return x; }
inline float ToFloat(uint16_t bf16) { return FromBf16(bf16); }
inline void Round(float x, float* to) { *to = x; }
inline void Round(float x, uint16_t* to) { *to = ToBf16(x); }

}  // namespace forebay::xla
