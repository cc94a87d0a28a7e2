#include "forebay/weights/dequantize.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "forebay/base/check.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/half.h"
#include "forebay/weights/k_quants.h"

namespace forebay::weights {
namespace {

constexpr size_t kHalfBlock = 16;  // 4-bit blocks keep elements i and i + 16 in one byte

uint16_t ReadU16(const std::byte* bytes) {
  uint16_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// value = nibble * scale + offset.
void FourBits(const std::byte* nibbles, float scale, float offset, float* out) {
  for (size_t i = 0; i < kHalfBlock; ++i) {
    const auto both = std::to_integer<uint8_t>(nibbles[i]);
    out[i] = static_cast<float>(both & 0xfU) * scale + offset;
    out[i + kHalfBlock] = static_cast<float>(both >> 4U) * scale + offset;
  }
}

// convert(block's bytes, its elements) for each block; the types differ once per tensor, not per
// block.
template <size_t kElements, size_t kBytes, typename Convert>
void ForEachBlock(std::span<const std::byte> bytes, std::span<float> out, Convert convert) {
  const size_t blocks = out.size() / kElements;
  for (size_t i = 0; i < blocks; ++i) {
    convert(bytes.data() + i * kBytes, out.data() + i * kElements);
  }
}

}  // namespace

void Dequantize(GgmlType type, std::span<const std::byte> bytes, std::span<float> out) {
  const GgmlBlock block = BlockOf(type);
  const size_t blocks = bytes.size() / static_cast<size_t>(block.bytes);
  FB_CHECK(blocks * static_cast<size_t>(block.bytes) == bytes.size() &&
               blocks * static_cast<size_t>(block.elements) == out.size(),
           "room for exactly the tensor's elements");
  if (out.empty()) return;
  switch (type) {
    case GgmlType::kF32:
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case GgmlType::kF16:
      return ForEachBlock<1, 2>(
          bytes, out, [](const std::byte* in, float* to) { *to = HalfToFloat(ReadU16(in)); });
    case GgmlType::kBF16:
      return ForEachBlock<1, 2>(
          bytes, out, [](const std::byte* in, float* to) { *to = BFloat16ToFloat(ReadU16(in)); });
    case GgmlType::kQ4_0:
      return ForEachBlock<32, 18>(bytes, out, [](const std::byte* in, float* to) {
        const float scale = HalfToFloat(ReadU16(in));
        FourBits(in + 2, scale, -8.0F * scale, to);
      });
    case GgmlType::kQ4_1:
      return ForEachBlock<32, 20>(bytes, out, [](const std::byte* in, float* to) {
        FourBits(in + 4, HalfToFloat(ReadU16(in)), HalfToFloat(ReadU16(in + 2)), to);
      });
    case GgmlType::kQ5_0:
      return ForEachBlock<32, 22>(bytes, out, DequantizeQ5_0);
    case GgmlType::kQ5_1:
      return ForEachBlock<32, 24>(bytes, out, DequantizeQ5_1);
    case GgmlType::kQ4_K:
      return ForEachBlock<256, 144>(bytes, out, DequantizeQ4K);
    case GgmlType::kQ5_K:
      return ForEachBlock<256, 176>(bytes, out, DequantizeQ5K);
    case GgmlType::kQ6_K:
      return ForEachBlock<256, 210>(bytes, out, DequantizeQ6K);
    case GgmlType::kQ8_0:
      return ForEachBlock<32, 34>(bytes, out, [](const std::byte* in, float* to) {
        const float scale = HalfToFloat(ReadU16(in));
        for (size_t i = 0; i < 2 * kHalfBlock; ++i) {
          to[i] = static_cast<float>(std::to_integer<int8_t>(in[2 + i])) * scale;
        }
      });
  }
}

}  // namespace forebay::weights
