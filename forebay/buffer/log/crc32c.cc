#include "forebay/buffer/log/crc32c.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

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
__attribute__((target("sse4.2"))) uint32_t Hardware(std::string_view bytes, uint32_t crc) {
  uint64_t state = ~crc;
  while (bytes.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    state = _mm_crc32_u64(state, word);
    bytes.remove_prefix(8);
  }
  auto tail = static_cast<uint32_t>(state);
  for (const char c : bytes) tail = _mm_crc32_u8(tail, static_cast<unsigned char>(c));
  return ~tail;
}
#endif

}  // namespace

uint32_t Crc32cPortable(std::string_view bytes, uint32_t crc) {
  crc = ~crc;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

uint32_t Crc32c(std::string_view bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return Hardware(bytes, crc);
#endif
  return Crc32cPortable(bytes, crc);
}

}  // namespace forebay::buffer
