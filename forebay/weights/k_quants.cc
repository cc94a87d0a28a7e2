#include "forebay/weights/k_quants.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "forebay/weights/half.h"

namespace forebay::weights {
namespace {

constexpr size_t kHalfBlock = 16;  // of 32: elements i and i + 16 share a byte
constexpr size_t kGroup = 32;      // of 256: what has one scale (16 in Q6_K)
constexpr size_t kGroups = 8;

float Half(const std::byte* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return HalfToFloat(bits);
}

uint32_t Byte(const std::byte* bytes, size_t i) { return std::to_integer<uint32_t>(bytes[i]); }

// value = (nibble + 16 * its fifth bit) * scale + offset.
void FiveBits(const std::byte* fifth, const std::byte* nibbles, float scale, float offset,
              float* out) {
  uint32_t bits = 0;
  std::memcpy(&bits, fifth, sizeof(bits));
  for (size_t i = 0; i < kHalfBlock; ++i) {
    const uint32_t both = Byte(nibbles, i);
    const uint32_t low = (both & 0xFU) | ((bits >> i & 1U) << 4U);
    const uint32_t high = (both >> 4U) | ((bits >> (i + kHalfBlock) & 1U) << 4U);
    out[i] = static_cast<float>(low) * scale + offset;
    out[i + kHalfBlock] = static_cast<float>(high) * scale + offset;
  }
}

// Scale and minimum of one of the eight groups of Q4_K and Q5_K, 6 bits each in 12 bytes: of the
// first four as they are, of the others 4 bits there and 2 in the upper bits of the first eight.
struct ScaleMin {
  float scale, min;
};
ScaleMin GroupScale(const std::byte* packed, size_t group) {
  if (group < 4) {
    return {static_cast<float>(Byte(packed, group) & 63U),
            static_cast<float>(Byte(packed, group + 4) & 63U)};
  }
  const uint32_t low = Byte(packed, group + 4);
  return {static_cast<float>((low & 0xFU) | ((Byte(packed, group - 4) >> 6U) << 4U)),
          static_cast<float>((low >> 4U) | ((Byte(packed, group) >> 6U) << 4U))};
}

// `fifth`: 32 bytes, of which bit g belongs to group g; null for Q4_K.
void ScaledGroups(const std::byte* in, const std::byte* fifth, const std::byte* nibbles,
                  float* out) {
  const float scale = Half(in), min = Half(in + 2);
  for (size_t group = 0; group < kGroups; ++group) {
    const ScaleMin own = GroupScale(in + 4, group);
    const float d = scale * own.scale, m = min * own.min;
    const std::byte* const from = nibbles + group / 2 * kGroup;
    for (size_t i = 0; i < kGroup; ++i) {
      uint32_t q = group % 2 == 0 ? Byte(from, i) & 0xFU : Byte(from, i) >> 4U;
      if (fifth != nullptr) q |= (Byte(fifth, i) >> group & 1U) << 4U;
      out[group * kGroup + i] = d * static_cast<float>(q) - m;
    }
  }
}

}  // namespace

void DequantizeQ5_0(const std::byte* in, float* out) {
  const float scale = Half(in);
  FiveBits(in + 2, in + 6, scale, -16.0F * scale, out);
}

void DequantizeQ5_1(const std::byte* in, float* out) {
  FiveBits(in + 4, in + 8, Half(in), Half(in + 2), out);
}

void DequantizeQ4K(const std::byte* in, float* out) { ScaledGroups(in, nullptr, in + 16, out); }

void DequantizeQ5K(const std::byte* in, float* out) { ScaledGroups(in, in + 16, in + 48, out); }

// 128 bytes of lower 4 bits, 64 of upper 2, 16 scales (of 16 numbers each), one scale of all.
void DequantizeQ6K(const std::byte* in, float* out) {
  const float scale = Half(in + 208);
  for (size_t half = 0; half < 2; ++half) {
    const std::byte* const low = in + half * 64;
    const std::byte* const high = in + 128 + half * 32;
    const std::byte* const scales = in + 192 + half * 8;
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      for (size_t i = 0; i < 32; ++i) {
        const uint32_t both = Byte(low, i + quarter % 2 * 32);
        const uint32_t nibble = quarter < 2 ? both & 0xFU : both >> 4U;
        const uint32_t q = nibble | ((Byte(high, i) >> (2 * quarter) & 3U) << 4U);
        const auto own = std::to_integer<int8_t>(scales[quarter * 2 + i / 16]);
        out[half * 128 + quarter * 32 + i] =
            scale * static_cast<float>(own) * static_cast<float>(static_cast<int32_t>(q) - 32);
      }
    }
  }
}

}  // namespace forebay::weights
