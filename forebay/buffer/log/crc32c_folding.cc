#include "forebay/buffer/log/crc32c_folding.h"

#include <cstddef>
#include <cstdint>

#include "forebay/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A register holds a polynomial with its highest power in bit 0. To move 128 bits of it D bits
// ahead in the message is to multiply them by x^D, modulo the CRC's polynomial: the half that comes
// first by x^(D + 64), the other by x^D, both one power less, because the product of two reflected
// numbers is one bit short. (Gopal and others, "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ", Intel 2009.)
namespace forebay::buffer {

#if defined(__x86_64__)
namespace {

#define FB_FOLDING_TARGET \
  __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2"), always_inline)) inline

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

// x^n modulo the polynomial, reflected in 64 bits.
constexpr int64_t PowerOfX(int n) {
  uint32_t power = 0x80000000;  // x^0
  for (int i = 0; i < n; ++i) power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
  return static_cast<int64_t>(uint64_t{power} << 32);
}

// What folds a register `bits` ahead.
template <int bits>
struct Ahead {
  static constexpr int64_t kFirst = PowerOfX(bits + 63);
  static constexpr int64_t kSecond = PowerOfX(bits - 1);
};

template <int bits>
FB_FOLDING_TARGET __m512i Fold(__m512i value, __m512i onto) {
  const __m512i by = _mm512_set_epi64(
      Ahead<bits>::kSecond, Ahead<bits>::kFirst, Ahead<bits>::kSecond, Ahead<bits>::kFirst,
      Ahead<bits>::kSecond, Ahead<bits>::kFirst, Ahead<bits>::kSecond, Ahead<bits>::kFirst);
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, by, 0x00),
                                   _mm512_clmulepi64_epi128(value, by, 0x11), onto, kXorOfThree);
}

template <int bits>
FB_FOLDING_TARGET __m128i Fold(__m128i value, __m128i onto) {
  const __m128i by = _mm_set_epi64x(Ahead<bits>::kSecond, Ahead<bits>::kFirst);
  const __m128i product =
      _mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11));
  return _mm_xor_si128(product, onto);
}

// The 64 bytes at `at`, copied if asked for.
template <bool kCopies>
FB_FOLDING_TARGET __m512i Next(const char* at, char* to) {
  __m512i bytes = _mm512_loadu_si512(at);
  if (kCopies) {
    asm("" : "+v"(bytes));  // read once: what is stored is what is summed
    _mm512_storeu_si512(to, bytes);
  }
  return bytes;
}

template <bool kCopies>
__attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2"))) uint32_t
Folded(const char* at, size_t bytes, uint32_t state, char* to) {
  constexpr int kLaneBits = 128, kRegisterBits = 512, kBlockBits = 2048;
  __m512i a = Next<kCopies>(at, to);
  __m512i b = Next<kCopies>(at + 64, to + 64);
  __m512i c = Next<kCopies>(at + 128, to + 128);
  __m512i d = Next<kCopies>(at + 192, to + 192);
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (size_t i = kFoldedBlockBytes; i < bytes; i += kFoldedBlockBytes) {
    a = Fold<kBlockBits>(a, Next<kCopies>(at + i, to + i));
    b = Fold<kBlockBits>(b, Next<kCopies>(at + i + 64, to + i + 64));
    c = Fold<kBlockBits>(c, Next<kCopies>(at + i + 128, to + i + 128));
    d = Fold<kBlockBits>(d, Next<kCopies>(at + i + 192, to + i + 192));
  }
  b = Fold<kRegisterBits>(a, b);
  c = Fold<kRegisterBits>(b, c);
  d = Fold<kRegisterBits>(c, d);
  __m128i sum = Fold<kLaneBits>(_mm512_maskz_extracti32x4_epi32(0xf, d, 0),
                                _mm512_maskz_extracti32x4_epi32(0xf, d, 1));
  sum = Fold<kLaneBits>(sum, _mm512_maskz_extracti32x4_epi32(0xf, d, 2));
  sum = Fold<kLaneBits>(sum, _mm512_maskz_extracti32x4_epi32(0xf, d, 3));
  // What is left stands for 16 bytes after a state of zero.
  uint64_t rest = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(sum)));
  rest = _mm_crc32_u64(rest, static_cast<uint64_t>(_mm_extract_epi64(sum, 1)));
  return static_cast<uint32_t>(rest);
}

#undef FB_FOLDING_TARGET

}  // namespace

bool HasFolding() {
  static const bool has =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
      __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

uint32_t FoldCrc32c(const char* at, size_t bytes, uint32_t state, char* to) {
  return to == nullptr ? Folded<false>(at, bytes, state, nullptr)
                       : Folded<true>(at, bytes, state, to);
}
#else
bool HasFolding() { return false; }
uint32_t FoldCrc32c(const char* /*at*/, size_t /*bytes*/, uint32_t /*state*/, char* /*to*/) {
  FB_CHECK(false, "this processor does not fold");
  return 0;
}
#endif

}  // namespace forebay::buffer
