// Half and bfloat16 as bit patterns, to and from float: round to nearest even, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace forebay::weights {

inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // Rounding could carry a NaN's mantissa into infinity: keep its upper half and make it quiet.
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  const uint32_t lowest_kept = (bits >> 16) & 1U;
  return static_cast<uint16_t>((bits + 0x7fffU + lowest_kept) >> 16);
}

inline float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t rest = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  const uint32_t exponent = rest & 0x0f800000U;
  if (exponent == 0x0f800000U) return std::bit_cast<float>(sign | rest | 0x7f800000U);
  // 2^-14 is the smallest normal half. A subnormal's mantissa counts in units of 2^-24.
  const float magnitude = exponent == 0 ? static_cast<float>(bits & 0x3ffU) * 0x1p-24F
                                        : std::bit_cast<float>(rest + ((127U - 15U) << 23));
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7e00U;   // NaN
  if (magnitude >= 0x477ff000U) return sign | 0x7c00U;  // rounds above 65504: infinity
  if (magnitude < 0x38800000U) {                        // below 2^-14: subnormal or zero
    // Adding 0.5 leaves the value in units of 2^-24 in the mantissa, rounded by the hardware.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const uint32_t lowest_kept = (magnitude >> 13) & 1U;
  const uint32_t rounded = magnitude - ((127U - 15U) << 23) + 0xfffU + lowest_kept;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

}  // namespace forebay::weights
