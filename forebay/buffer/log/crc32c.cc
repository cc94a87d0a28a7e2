#include "forebay/buffer/log/crc32c.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "forebay/buffer/log/crc32c_folding.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace forebay::buffer {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reversed

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
// The instruction takes three cycles but starts one a cycle: three lanes side by side are three
// times as fast as one. Their sums are joined by advancing a sum over a lane's length of zeros,
// which is linear, so four tables of 256 do it.
constexpr size_t kLaneBytes = 1024;

struct ZeroLane {
  std::array<std::array<uint32_t, 256>, 4> table{};
  ZeroLane() {
    std::array<uint32_t, 32> basis{};
    for (size_t bit = 0; bit < 32; ++bit) {
      uint32_t crc = uint32_t{1} << bit;
      for (size_t i = 0; i < kLaneBytes; ++i) crc = (crc >> 8) ^ kTable[crc & 0xff];
      basis[bit] = crc;
    }
    for (size_t byte = 0; byte < 4; ++byte) {
      for (size_t value = 0; value < 256; ++value) {
        for (size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) table[byte][value] ^= basis[byte * 8 + bit];
        }
      }
    }
  }
  uint32_t Advance(uint32_t crc) const {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
           table[3][crc >> 24];
  }
};

uint64_t Word(const char* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, 8);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t Hardware(std::string_view bytes, uint32_t crc) {
  static const ZeroLane lane;
  uint64_t state = ~crc;
  while (bytes.size() >= 3 * kLaneBytes) {
    const char* at = bytes.data();
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      state = _mm_crc32_u64(state, Word(at + i));
      second = _mm_crc32_u64(second, Word(at + kLaneBytes + i));
      third = _mm_crc32_u64(third, Word(at + 2 * kLaneBytes + i));
    }
    state = lane.Advance(static_cast<uint32_t>(state)) ^ second;
    state = lane.Advance(static_cast<uint32_t>(state)) ^ third;
    bytes.remove_prefix(3 * kLaneBytes);
  }
  while (bytes.size() >= 8) {
    state = _mm_crc32_u64(state, Word(bytes.data()));
    bytes.remove_prefix(8);
  }
  auto tail = static_cast<uint32_t>(state);
  for (const char c : bytes) tail = _mm_crc32_u8(tail, static_cast<unsigned char>(c));
  return ~tail;
}
#endif

// Without the instruction.
uint32_t ByTable(std::string_view bytes, uint32_t crc) {
  crc = ~crc;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

uint32_t ByInstruction(std::string_view bytes, uint32_t crc) {
#if defined(__x86_64__)
  return Hardware(bytes, crc);
#else
  return ByTable(bytes, crc);
#endif
}

// Whole blocks are folded, the rest is left to the instruction.
uint32_t ByFolding(std::string_view bytes, uint32_t crc, char* to) {
  const size_t folded = bytes.size() / kFoldedBlockBytes * kFoldedBlockBytes;
  if (folded > 0) crc = ~FoldCrc32c(bytes.data(), folded, ~crc, to);
  bytes.remove_prefix(folded);
  if (bytes.empty()) return crc;
  if (to == nullptr) return ByInstruction(bytes, crc);
  std::memcpy(to + folded, bytes.data(), bytes.size());
  return ByInstruction({to + folded, bytes.size()}, crc);
}

Crc32cMeans BestMeans() {
  static const Crc32cMeans best = [] {
    for (const Crc32cMeans means : {Crc32cMeans::kFolding, Crc32cMeans::kInstruction}) {
      if (HasCrc32cMeans(means)) return means;
    }
    return Crc32cMeans::kTable;
  }();
  return best;
}

}  // namespace

bool HasCrc32cMeans(Crc32cMeans means) {
  switch (means) {
    case Crc32cMeans::kTable:
      return true;
    case Crc32cMeans::kInstruction:
#if defined(__x86_64__)
      return __builtin_cpu_supports("sse4.2") != 0;
#else
      return false;
#endif
    case Crc32cMeans::kFolding:
      return HasFolding();
  }
  return false;
}

uint32_t Crc32cBy(Crc32cMeans means, std::string_view bytes, uint32_t crc) {
  switch (means) {
    case Crc32cMeans::kTable:
      break;
    case Crc32cMeans::kInstruction:
      return ByInstruction(bytes, crc);
    case Crc32cMeans::kFolding:
      return ByFolding(bytes, crc, nullptr);
  }
  return ByTable(bytes, crc);
}

uint32_t Crc32cCopyBy(Crc32cMeans means, char* to, std::string_view from) {
  if (means == Crc32cMeans::kFolding) return ByFolding(from, 0, to);
  // In pieces that stay in the first-level cache.
  constexpr size_t kPieceBytes = size_t{12} << 10;
  uint32_t crc = 0;
  while (!from.empty()) {
    const size_t n = std::min(kPieceBytes, from.size());
    std::memcpy(to, from.data(), n);
    crc = Crc32cBy(means, {to, n}, crc);
    to += n;
    from.remove_prefix(n);
  }
  return crc;
}

uint32_t Crc32c(std::string_view bytes, uint32_t crc) { return Crc32cBy(BestMeans(), bytes, crc); }

uint32_t Crc32cCopy(char* to, std::string_view from) { return Crc32cCopyBy(BestMeans(), to, from); }

}  // namespace forebay::buffer
