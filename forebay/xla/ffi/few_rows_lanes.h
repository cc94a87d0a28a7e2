// Products of nine rows and more: a lane of a vector is a row. Private to xla/ffi; for AVX-512.
//
// x lies as [units, rows], rows rounded up to whole vectors, so that one unit of all rows is a few
// loads and one unit of a column of the weight is a broadcast: nothing is summed across lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "forebay/xla/ffi/avx512.h"
#include "forebay/xla/ffi/few_rows.h"

namespace forebay::xla::ffi::lanes {

// Units that are summed in registers before they go to the total: long sums in one order would
// lose more digits than others lose.
constexpr int64_t kBlock = 128;
// Units between two rounds of prefetching, a line of each column.
constexpr int64_t kLineUnits = kLineBytes / 4;
// How far ahead of its use the second cache hands a column's units to the first.
constexpr int64_t kAheadUnits = 2 * kLineUnits;
// Vectors of rows, and columns for one and for two of them, whose sums are held in registers.
constexpr int kVectorsMax = 2;
constexpr int kColumnsOf1 = 16, kColumnsOf2 = 12;
// Columns that one panel of rows takes before the next does: still in the second cache.
constexpr int64_t kColumnGroup = 48;

inline int64_t RoundUp(int64_t rows) { return (rows + kLanes - 1) / kLanes * kLanes; }

template <typename Type>
int64_t PackedBytes(int64_t rows, int64_t depth) {
  return (depth + Type::kPerUnit - 1) / Type::kPerUnit * RoundUp(rows) * 4;
}

template <typename Type>
FB_AVX512 void Pack(const void* x, int64_t rows, int64_t depth, int64_t begin, int64_t end,
                    void* packed) {
  using Element = typename Type::Element;
  const auto* from = static_cast<const Element*>(x);
  const int64_t stride = RoundUp(rows);
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t k = begin; k < end; k += Type::kWidth) {
      __m512 block[kLanes];
      const int64_t count = std::min(Type::kWidth, end - k);
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = row + i < rows ? (__m512)Type::LoadFirst(from + (row + i) * depth + k, count)
                                  : _mm512_setzero_ps();
      }
      Transpose(block);
      auto* to = static_cast<float*>(packed) + k / Type::kPerUnit * stride + row;
      const int64_t units = (count + Type::kPerUnit - 1) / Type::kPerUnit;
      for (int64_t u = 0; u < units; ++u) _mm512_storeu_ps(to + u * stride, block[u]);
    }
  }
}

template <int kVectors, int kColumns>
struct Sums {
  __m512 of[kColumns][kVectors];
};

// Adds the products of kUnits units. One column after the other, so that addresses are one sum
// each; the processor overlaps the columns.
template <typename Type, int kVectors, int kColumns, int kUnits>
FB_AVX512_INLINE void Add(const float* x, int64_t stride, const char* weight, int64_t row_bytes,
                          Sums<kVectors, kColumns>& sums) {
  __m512 rows[kUnits][kVectors];
#pragma GCC unroll 16
  for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      rows[u][v] = _mm512_loadu_ps(x + u * stride + v * kLanes);
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 16
    for (int u = 0; u < kUnits; ++u) {
      float unit;
      std::memcpy(&unit, weight + u * 4, sizeof(unit));
      const __m512 all = _mm512_set1_ps(unit);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums.of[c][v] =
            Type::MultiplyAdd(sums.of[c][v], Type::FromUnits(rows[u][v]), Type::FromUnits(all));
      }
    }
    weight += row_bytes;
    // Or the compiler keeps an address a column, for which there are no registers.
    asm volatile("" : "+r"(weight));
  }
}

// total[c][v] = the sums of kColumns columns at `weight`. `ahead`: the weight that comes next.
template <typename Type, int kVectors, int kColumns>
FB_AVX512_INLINE void Tile(const float* x, int64_t stride, const char* weight, int64_t depth,
                           const char* ahead, Sums<kVectors, kColumns>& total) {
  constexpr int kUnits = kVectors == 1 ? 8 : 4;
  const int64_t row_bytes = depth * static_cast<int64_t>(sizeof(typename Type::Element));
  const int64_t units = depth / Type::kPerUnit;
  for (int64_t begin = 0; begin == 0 || begin < units; begin += kBlock) {
    const int64_t end = std::min(units, begin + kBlock);
    Sums<kVectors, kColumns> sums;
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums.of[c][v] = _mm512_setzero_ps();
    }
    int64_t u = begin;
    for (; u + kLineUnits <= end; u += kLineUnits) {
      const char* soon = weight + (u + kAheadUnits) * 4;
#pragma GCC unroll 1
      for (int c = 0; c < kColumns; ++c) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        _mm_prefetch(soon, _MM_HINT_T0);
        ahead += kLineBytes;
        soon += row_bytes;
      }
#pragma GCC unroll 1
      for (int64_t i = u; i < u + kLineUnits; i += kUnits) {
        Add<Type, kVectors, kColumns, kUnits>(x + i * stride, stride, weight + i * 4, row_bytes,
                                              sums);
      }
    }
#pragma GCC unroll 1
    for (; u < end; ++u) {
      Add<Type, kVectors, kColumns, 1>(x + u * stride, stride, weight + u * 4, row_bytes, sums);
    }
#pragma GCC unroll 1
    for (int c = 0; c < kColumns; ++c) {
      for (int v = 0; v < kVectors; ++v) {
        total.of[c][v] = begin == 0 ? sums.of[c][v] : total.of[c][v] + sums.of[c][v];
      }
    }
  }
  if (units * Type::kPerUnit == depth) return;
  // Half a unit is left; the packed row has a zero beside it, and so must the weight.
#pragma GCC unroll 1
  for (int c = 0; c < kColumns; ++c) {
    uint32_t half = 0;
    std::memcpy(&half, weight + c * row_bytes + units * 4, sizeof(typename Type::Element));
    for (int v = 0; v < kVectors; ++v) {
      const __m512 row = _mm512_loadu_ps(x + units * stride + v * kLanes);
      total.of[c][v] =
          Type::MultiplyAdd(total.of[c][v], Type::FromUnits(row),
                            Type::FromUnits((__m512)_mm512_set1_epi32(static_cast<int>(half))));
    }
  }
}

// The columns that a tile has, of up to 16 * kVectors rows that begin at `row`.
template <typename Type, int kVectors, int kColumns>
FB_AVX512_INLINE void Rows(const FewRows& p, int64_t row, int64_t column) {
  const auto* weight = static_cast<const char*>(p.weight) +
                       column * p.depth * static_cast<int64_t>(sizeof(typename Type::Element));
  const char* ahead =
      weight + kColumns * p.depth * static_cast<int64_t>(sizeof(typename Type::Element));
  Sums<kVectors, kColumns> total;
  Tile<Type, kVectors, kColumns>(static_cast<const float*>(p.packed) + row, RoundUp(p.rows), weight,
                                 p.depth, ahead, total);
  for (int v = 0; v < kVectors; ++v) {
    __m512 block[kLanes];
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) {
      block[c] = c < kColumns ? total.of[c < kColumns ? c : 0][v] : _mm512_setzero_ps();
    }
    Transpose(block);
    const int64_t first = row + v * kLanes;
    const int64_t count = std::min(kLanes, p.rows - first);
    constexpr auto kMask = static_cast<__mmask16>((1U << kColumns) - 1);
    for (int64_t i = 0; i < count; ++i) {
      _mm512_mask_storeu_ps(p.out + (first + i) * p.columns + column, kMask, block[i]);
    }
  }
}

// All columns of [begin, end) for one panel of rows.
template <typename Type, int kVectors, int kColumns>
FB_AVX512 void Panel(const FewRows& p, int64_t row, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (; column + kColumns <= end; column += kColumns) {
    Rows<Type, kVectors, kColumns>(p, row, column);
  }
  for (; column + 4 <= end; column += 4) Rows<Type, kVectors, 4>(p, row, column);
  for (; column < end; ++column) Rows<Type, kVectors, 1>(p, row, column);
}

template <typename Type>
FB_AVX512 void Columns(const FewRows& p, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; column += kColumnGroup) {
    const int64_t last = std::min(end, column + kColumnGroup);
    int64_t row = 0;
    for (; p.rows - row > kLanes; row += kVectorsMax * kLanes) {
      Panel<Type, 2, kColumnsOf2>(p, row, column, last);
    }
    if (row < p.rows) Panel<Type, 1, kColumnsOf1>(p, row, column, last);
  }
}

}  // namespace forebay::xla::ffi::lanes
