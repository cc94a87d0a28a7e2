// What kernels for processors with AVX-512 share. Private to xla/ffi; for x86-64 alone.
//
// A function is compiled for these processors by FB_AVX512, the rest of its file for any: call it
// after HasAvx512 or HasAvx512Bf16 (xla/host_cpu.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace forebay::xla::ffi {

#define FB_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))
#define FB_AVX512_INLINE                                                           \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma"), \
                 always_inline)) inline

constexpr int64_t kLineBytes = 64;
// Elements of four bytes in a vector.
constexpr int64_t kLanes = 16;

// Elements of a product: how many a vector holds, and what is done with two vectors of them. A unit
// is four bytes of them: a float, or two bf16 beside each other.
struct F32 {
  using Element = float;
  using Vector = __m512;
  static constexpr int64_t kWidth = 16, kPerUnit = 1;
  FB_AVX512_INLINE static Vector Load(const Element* from) { return _mm512_loadu_ps(from); }
  FB_AVX512_INLINE static Vector LoadFirst(const Element* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), from);
  }
  FB_AVX512_INLINE static Vector FromUnits(__m512 units) { return units; }
  FB_AVX512_INLINE static __m512 MultiplyAdd(__m512 sum, Vector a, Vector b) {
    return _mm512_fmadd_ps(a, b, sum);
  }
};

struct Bf16 {
  using Element = uint16_t;
  using Vector = __m512bh;
  static constexpr int64_t kWidth = 32, kPerUnit = 2;
  FB_AVX512_INLINE static Vector Load(const Element* from) {
    return (Vector)(_mm512_loadu_si512(from));
  }
  FB_AVX512_INLINE static Vector LoadFirst(const Element* from, int64_t count) {
    return (Vector)(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ULL << count) - 1), from));
  }
  FB_AVX512_INLINE static Vector FromUnits(__m512 units) { return (Vector)units; }
  FB_AVX512_INLINE static __m512 MultiplyAdd(__m512 sum, Vector a, Vector b) {
    return _mm512_dpbf16_ps(sum, a, b);
  }
};

// Of each quarter of a and b: its elements kA and kB of a, then kC and kD of b.
template <int kA, int kB, int kC, int kD>
FB_AVX512_INLINE __m512 FromQuarters(__m512 a, __m512 b) {
  return __builtin_shufflevector(a, b, kA, kB, 16 + kC, 16 + kD, 4 + kA, 4 + kB, 20 + kC, 20 + kD,
                                 8 + kA, 8 + kB, 24 + kC, 24 + kD, 12 + kA, 12 + kB, 28 + kC,
                                 28 + kD);
}
// Quarters k and k + 2 of a, then of b.
template <int k>
FB_AVX512_INLINE __m512 EachOther(__m512 a, __m512 b) {
  constexpr int i = 4 * k;
  return __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, i + 8, i + 9, i + 10, i + 11, i + 16,
                                 i + 17, i + 18, i + 19, i + 24, i + 25, i + 26, i + 27);
}

// Rows become columns.
FB_AVX512_INLINE void Transpose(__m512 (&x)[kLanes]) {
  // column[4 g + j]: column j of each quarter, of rows 4 g to 4 g + 3.
  __m512 column[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const __m512 low01 = FromQuarters<0, 1, 0, 1>(x[i], x[i + 1]);
    const __m512 high01 = FromQuarters<2, 3, 2, 3>(x[i], x[i + 1]);
    const __m512 low23 = FromQuarters<0, 1, 0, 1>(x[i + 2], x[i + 3]);
    const __m512 high23 = FromQuarters<2, 3, 2, 3>(x[i + 2], x[i + 3]);
    column[i] = FromQuarters<0, 2, 0, 2>(low01, low23);
    column[i + 1] = FromQuarters<1, 3, 1, 3>(low01, low23);
    column[i + 2] = FromQuarters<0, 2, 0, 2>(high01, high23);
    column[i + 3] = FromQuarters<1, 3, 1, 3>(high01, high23);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 low_even = EachOther<0>(column[j], column[4 + j]);
    const __m512 low_odd = EachOther<1>(column[j], column[4 + j]);
    const __m512 high_even = EachOther<0>(column[8 + j], column[12 + j]);
    const __m512 high_odd = EachOther<1>(column[8 + j], column[12 + j]);
    x[j] = EachOther<0>(low_even, high_even);
    x[8 + j] = EachOther<1>(low_even, high_even);
    x[4 + j] = EachOther<0>(low_odd, high_odd);
    x[12 + j] = EachOther<1>(low_odd, high_odd);
  }
}

}  // namespace forebay::xla::ffi
