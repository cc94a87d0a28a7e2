// Products of up to eight rows: each sum is held in a vector and summed across its lanes at the
// end. Private to xla/ffi; for AVX-512.
#pragma once

#include <cstdint>

#include "forebay/xla/ffi/avx512.h"
#include "forebay/xla/ffi/few_rows.h"

namespace forebay::xla::ffi::dots {

constexpr int64_t kRowsMax = 8;
// How far ahead of its use a weight is asked for.
constexpr int64_t kAheadBytes = 16384;
// Rows and columns whose sums are held in registers.
constexpr int kRowTile = 4, kTileColumns = 4;

FB_AVX512_INLINE __m128 Quarter(__m512 x) {
  const __m256 half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) +
         __builtin_shufflevector(half, half, 4, 5, 6, 7);
}

// The sums of four vectors' elements.
FB_AVX512_INLINE __m128 Sums(const __m512* four) {
  const __m128 low = _mm_hadd_ps(Quarter(four[0]), Quarter(four[1]));
  const __m128 high = _mm_hadd_ps(Quarter(four[2]), Quarter(four[3]));
  return _mm_hadd_ps(low, high);
}

// Adds the products of one step to the sums. `count`: its elements, fewer than a vector at the end.
template <typename Type, int kRows, int kColumns, bool kWhole>
FB_AVX512_INLINE void Step(const typename Type::Element* x, const typename Type::Element* weight,
                           int64_t depth, int64_t count, __m512 (&sums)[kRows][kTileColumns]) {
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
FB_AVX512_INLINE void Tile(const typename Type::Element* x, const typename Type::Element* weight,
                           int64_t depth, const char* ahead, float* out, int64_t out_stride) {
  __m512 sums[kRows][kTileColumns];
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

// All rows by kColumns columns. The lines of the columns to come are spread over the steps of the
// first tiles.
template <typename Type, int kColumns>
FB_AVX512_INLINE void AllRows(const FewRows& p, int64_t column) {
  using Element = typename Type::Element;
  const auto* x = static_cast<const Element*>(p.x);
  const Element* weight = static_cast<const Element*>(p.weight) + column * p.depth;
  const auto row_bytes = p.depth * static_cast<int64_t>(sizeof(Element));
  const char* ahead = reinterpret_cast<const char*>(weight) + kAheadBytes;
  float* out = p.out + column;
  const bool two = p.rows >= 2 * kRowTile;
  int64_t row = 0;
  for (; row + kRowTile <= p.rows; row += kRowTile) {
    const Element* rows = x + row * p.depth;
    float* to = out + row * p.columns;
    if (two) {
      Tile<Type, kRowTile, kColumns, 2>(rows, weight, p.depth, ahead, to, p.columns);
      ahead += 2 * row_bytes;
    } else {
      Tile<Type, kRowTile, kColumns, 4>(rows, weight, p.depth, ahead, to, p.columns);
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

template <typename Type>
FB_AVX512 void Columns(const FewRows& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + kTileColumns <= end; column += kTileColumns) AllRows<Type, 4>(p, column);
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

}  // namespace forebay::xla::ffi::dots
