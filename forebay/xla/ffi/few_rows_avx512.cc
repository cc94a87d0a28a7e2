#include "forebay/xla/ffi/few_rows.h"

#include <cstdint>

#include "forebay/xla/shape.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace forebay::xla::ffi {

#if defined(__x86_64__)
namespace {

#define FB_AVX512_TARGET                                                           \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma"), \
                 always_inline)) inline

// How far ahead of its use a weight is asked for.
constexpr int64_t kAheadBytes = 16384;
constexpr int64_t kLineBytes = 64;
// Rows and columns whose sums are held in registers.
constexpr int kRowTile = 4;

struct F32 {
  using Element = float;
  using Vector = __m512;
  static constexpr int64_t kWidth = 16;
  FB_AVX512_TARGET static Vector Load(const Element* from) { return _mm512_loadu_ps(from); }
  FB_AVX512_TARGET static Vector LoadFirst(const Element* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), from);
  }
  FB_AVX512_TARGET static __m512 MultiplyAdd(__m512 sum, Vector a, Vector b) {
    return _mm512_fmadd_ps(a, b, sum);
  }
};

struct Bf16 {
  using Element = uint16_t;
  using Vector = __m512bh;
  static constexpr int64_t kWidth = 32;
  FB_AVX512_TARGET static Vector Load(const Element* from) {
    return (Vector)(_mm512_loadu_si512(from));
  }
  FB_AVX512_TARGET static Vector LoadFirst(const Element* from, int64_t count) {
    return (Vector)(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ULL << count) - 1), from));
  }
  FB_AVX512_TARGET static __m512 MultiplyAdd(__m512 sum, Vector a, Vector b) {
    return _mm512_dpbf16_ps(sum, a, b);
  }
};

FB_AVX512_TARGET __m128 Quarter(__m512 x) {
  const __m256 half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) +
         __builtin_shufflevector(half, half, 4, 5, 6, 7);
}

// The sums of four vectors' elements.
FB_AVX512_TARGET __m128 Sums(const __m512* four) {
  const __m128 low = _mm_hadd_ps(Quarter(four[0]), Quarter(four[1]));
  const __m128 high = _mm_hadd_ps(Quarter(four[2]), Quarter(four[3]));
  return _mm_hadd_ps(low, high);
}

// Adds the products of one step to the sums. `count`: its elements, fewer than a vector at the end.
template <typename Type, int kRows, int kColumns, bool kWhole>
FB_AVX512_TARGET void Step(const typename Type::Element* x, const typename Type::Element* weight,
                           int64_t depth, int64_t count, __m512 (&sums)[kRows][kColumnTile]) {
  typename Type::Vector columns[kColumns];
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    const typename Type::Element* from = weight + c * depth;
    columns[c] = kWhole ? Type::Load(from) : Type::LoadFirst(from, count);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const typename Type::Element* from = x + r * depth;
    const typename Type::Vector row = kWhole ? Type::Load(from) : Type::LoadFirst(from, count);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      sums[r][c] = Type::MultiplyAdd(sums[r][c], row, columns[c]);
    }
  }
}

// kRows rows at `x` by kColumns columns at `weight`, of `depth` elements each. `ahead`: where
// weights are prefetched, kLines lines a step.
template <typename Type, int kRows, int kColumns, int kLines>
FB_AVX512_TARGET void Tile(const typename Type::Element* x, const typename Type::Element* weight,
                           int64_t depth, const char* ahead, float* out, int64_t out_stride) {
  __m512 sums[kRows][kColumnTile];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    for (__m512& sum : sums[r]) sum = _mm512_setzero_ps();
  }
  int64_t k = 0;
  for (; k + Type::kWidth <= depth; k += Type::kWidth) {
    for (int line = 0; line < kLines; ++line) {
      _mm_prefetch(ahead + line * kLineBytes, _MM_HINT_T0);
    }
    ahead += kLines * kLineBytes;
    Step<Type, kRows, kColumns, true>(x + k, weight + k, depth, Type::kWidth, sums);
  }
  if (k < depth) Step<Type, kRows, kColumns, false>(x + k, weight + k, depth, depth - k, sums);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    constexpr auto kMask = static_cast<__mmask8>((1U << kColumns) - 1);
    _mm_mask_storeu_ps(out + r * out_stride, kMask, Sums(sums[r]));
  }
}

// All rows by kColumns columns. The lines of the columns to come are spread over the steps of up to
// kColumnTile row tiles.
template <typename Type, int kColumns>
FB_AVX512_TARGET void AllRows(const FewRows& p, int64_t column) {
  using Element = typename Type::Element;
  const auto* x = static_cast<const Element*>(p.x);
  const Element* weight = static_cast<const Element*>(p.weight) + column * p.depth;
  const auto row_bytes = p.depth * static_cast<int64_t>(sizeof(Element));
  const char* ahead = reinterpret_cast<const char*>(weight) + kAheadBytes;
  float* out = p.out + column;
  const int64_t tiles = p.rows / kRowTile;
  int64_t row = 0;
  for (int64_t tile = 0; tile < tiles; ++tile, row += kRowTile) {
    const Element* rows = x + row * p.depth;
    float* to = out + row * p.columns;
    if (tiles == 1) {
      Tile<Type, kRowTile, kColumns, 4>(rows, weight, p.depth, ahead, to, p.columns);
    } else if (tiles < kColumnTile && tile < 2) {
      Tile<Type, kRowTile, kColumns, 2>(rows, weight, p.depth, ahead + tile * 2 * row_bytes, to,
                                        p.columns);
    } else if (tiles >= kColumnTile && tile < kColumnTile) {
      Tile<Type, kRowTile, kColumns, 1>(rows, weight, p.depth, ahead + tile * row_bytes, to,
                                        p.columns);
    } else {
      Tile<Type, kRowTile, kColumns, 0>(rows, weight, p.depth, ahead, to, p.columns);
    }
  }
  for (; row < p.rows; ++row) {
    const Element* rows = x + row * p.depth;
    float* to = out + row * p.columns;
    if (row == 0) {
      Tile<Type, 1, kColumns, 4>(rows, weight, p.depth, ahead, to, p.columns);
    } else {
      Tile<Type, 1, kColumns, 0>(rows, weight, p.depth, ahead, to, p.columns);
    }
  }
}

#undef FB_AVX512_TARGET

template <typename Type>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma"))) void Columns(
    const FewRows& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + kColumnTile <= end; column += kColumnTile) AllRows<Type, 4>(p, column);
  switch (end - column) {
    case 1:
      return AllRows<Type, 1>(p, column);
    case 2:
      return AllRows<Type, 2>(p, column);
    case 3:
      return AllRows<Type, 3>(p, column);
    default:
      return;
  }
}

}  // namespace

FewRowsColumns Avx512FewRows(DType dtype) {
  const bool wide =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512bf16") != 0;
  if (!wide) return nullptr;
  return dtype == DType::kBF16 ? Columns<Bf16> : Columns<F32>;
}

#else

FewRowsColumns Avx512FewRows(DType) { return nullptr; }

#endif

}  // namespace forebay::xla::ffi
