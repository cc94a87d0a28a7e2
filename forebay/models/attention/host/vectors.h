// Vectors and the product of small matrices, templates over the kind of processor. Private to
// attention/host.
//
// Each file that includes this is compiled for another processor, so all functions here are
// templates of a type that is private to that file: no two files share code.
#pragma once

#include <cstdint>

namespace forebay::models::attention::host {

// kLanes floats; kRows x kVectors of them are the sums that a product keeps in registers.
template <int kLanesOf, int kRowsOf, int kVectorsOf>
struct Width {
  static constexpr int kLanes = kLanesOf, kRows = kRowsOf, kVectors = kVectorsOf;
  typedef float Floats __attribute__((vector_size(kLanesOf * 4)));
  typedef int32_t Ints __attribute__((vector_size(kLanesOf * 4)));
};

template <class Cpu>
struct Vectors {
  using F = typename Cpu::Floats;
  using I = typename Cpu::Ints;
  static constexpr int kLanes = Cpu::kLanes;

  static F Load(const float* from) {
    F x;
    __builtin_memcpy(&x, from, sizeof(x));
    return x;
  }
  static void Store(float* to, F x) { __builtin_memcpy(to, &x, sizeof(x)); }
  // x - 0 is x, which x + 0 is not for a negative zero: the compiler drops it.
  static F All(float x) { return x - F{}; }
  static I Bits(F x) { return reinterpret_cast<I>(x); }
  static F FromBits(I x) { return reinterpret_cast<F>(x); }
  static F Max(F a, F b) { return a > b ? a : b; }
  // 0, 1, 2, ...
  static I Iota() {
    I x;
    for (int i = 0; i < kLanes; ++i) x[i] = i;
    return x;
  }

  static float Sum(F x) {
    float lanes[kLanes];
    Store(lanes, x);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
  }
  static float Largest(F x) {
    float lanes[kLanes];
    Store(lanes, x);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) {
        lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
      }
    }
    return lanes[0];
  }

  // The transpose of kLanes x kLanes floats.
  static void Transpose(const float* from, int64_t from_row, float* to, int64_t to_row) {
    float square[kLanes][kLanes];
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < kLanes; ++j) square[j][i] = from[i * from_row + j];
    }
    for (int j = 0; j < kLanes; ++j) Store(to + j * to_row, Load(square[j]));
  }

  // e^x within 2 ulp; 0 below -87, NaN of NaN. x = n ln 2 + r, e^r by its series.
  static F Exp(F x) {
    constexpr float kLog2E = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
    constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer
    constexpr float kLowest = -87.0F, kHighest = 88.0F;
    const F low = All(kLowest), high = All(kHighest);
    const I is_low = x < low;
    x = is_low ? low : x;
    x = x > high ? high : x;
    const F shifted = x * kLog2E + kRound;
    const F n = shifted - kRound;
    const F r = x - n * kLn2High - n * kLn2Low;
    F y = All(1.9875691500e-4F);
    y = y * r + 1.3981999507e-3F;
    y = y * r + 8.3334519073e-3F;
    y = y * r + 4.1665795894e-2F;
    y = y * r + 1.6666665459e-1F;
    y = y * r + 5.0000001201e-1F;
    y = y * (r * r) + r + 1.0F;
    const I exponent = (Bits(shifted) - Bits(All(kRound)) + 127) << 23;
    return is_low ? F{} : y * FromBits(exponent);
  }

  // tanh(x): by its series near 0, where 1 - 2 / (e^2x + 1) would cancel.
  static F Tanh(F x) {
    const F square = x * x;
    F series = All(-0.00886323552F);
    series = series * square + 0.0218694885F;
    series = series * square - 0.0539682540F;
    series = series * square + 0.133333333F;
    series = series * square - 0.333333333F;
    series = x + x * square * series;
    const F far = 1.0F - 2.0F / (Exp(2.0F * x) + 1.0F);
    return square < 0.0625F ? series : far;
  }
};

// c [rows, vectors * kLanes] = a b, + c (times a factor a row). Strides in floats.
struct Product {
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;
  int64_t depth;
  float* c;
  int64_t c_row;
  bool adds;
  const float* factors;  // null: 1
};

// kRows rows and N vectors of it.
template <class Cpu, int N>
inline void MultiplyTile(const Product& p) {
  using V = Vectors<Cpu>;
  using F = typename V::F;
  constexpr int kRows = Cpu::kRows;
  F sums[kRows][N];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[r][n] = F{};
  }
  if (p.adds) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] = V::Load(p.c + r * p.c_row + n * V::kLanes);
    }
  }
  if (p.factors != nullptr) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] *= p.factors[r];
    }
  }
  const float* a = p.a;
  const float* b = p.b;
  const int64_t a_row = p.a_row;
  for (int64_t k = p.depth; k > 0; --k) {
    F columns[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) columns[n] = V::Load(b + n * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F factor = V::All(a[r * a_row]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] += factor * columns[n];
    }
    a += p.a_column;
    b += p.b_row;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) V::Store(p.c + r * p.c_row + n * V::kLanes, sums[r][n]);
  }
}

// kRows rows of any number of vectors.
template <class Cpu>
__attribute__((noinline)) void MultiplyRows(Product p, int64_t vectors) {
  constexpr int kStep = Cpu::kVectors;
  while (vectors > 0) {
    const int64_t step = vectors < kStep ? vectors : kStep;
    if constexpr (kStep >= 4) {
      if (step == 4) MultiplyTile<Cpu, 4>(p);
      if (step == 3) MultiplyTile<Cpu, 3>(p);
    }
    if (step == 2) MultiplyTile<Cpu, 2>(p);
    if (step == 1) MultiplyTile<Cpu, 1>(p);
    p.b += step * Cpu::kLanes;
    p.c += step * Cpu::kLanes;
    vectors -= step;
  }
}

// All rows, rounded up to whole kRows: a and c have as many. `factors` as well.
template <class Cpu>
void Multiply(Product p, int64_t rows, int64_t vectors) {
  for (int64_t r = 0; r < rows; r += Cpu::kRows) {
    MultiplyRows<Cpu>(p, vectors);
    p.a += Cpu::kRows * p.a_row;
    p.c += Cpu::kRows * p.c_row;
    if (p.factors != nullptr) p.factors += Cpu::kRows;
  }
}

}  // namespace forebay::models::attention::host
