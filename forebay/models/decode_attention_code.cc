#include <cmath>
#include <cstdint>
#include <cstring>

#include "forebay/models/decode_attention.h"
#include "forebay/xla/host_cpu.h"
#include "forebay/xla/shape.h"

namespace forebay::models::decode_attention {
namespace {

// Inlined into functions that are compiled for one processor each.
#define FB_INLINE __attribute__((always_inline)) inline

using Vector = float __attribute__((vector_size(64)));
using Integers = int32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));
using Eight = float __attribute__((vector_size(32)));
using Four = float __attribute__((vector_size(16)));

// Rows of keys, and heads, that are worked on together.
constexpr int64_t kTile = 4;
// Entries that keys are asked for ahead of their use.
constexpr int64_t kAhead = 24;
// Vectors of a row of values whose sums are held in registers.
constexpr int64_t kSums = 4;

FB_INLINE void Load(const float* from, Vector& to) { std::memcpy(&to, from, sizeof(to)); }
FB_INLINE void Load(const uint16_t* from, Vector& to) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  to = (Vector)(__builtin_convertvector(halves, Integers) << 16);
}
FB_INLINE void Store(const Vector& from, float* to) { std::memcpy(to, &from, sizeof(from)); }

FB_INLINE void Quarter(const Vector& x, Four& out) {
  const Eight half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  out = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
        __builtin_shufflevector(half, half, 4, 5, 6, 7);
}

// The sums of four vectors' elements.
FB_INLINE void Sums(const Vector (&x)[kTile], float* out) {
  Four quarters[kTile];
  for (int i = 0; i < kTile; ++i) Quarter(x[i], quarters[i]);
  const Four low = __builtin_shufflevector(quarters[0], quarters[1], 0, 4, 2, 6) +
                   __builtin_shufflevector(quarters[0], quarters[1], 1, 5, 3, 7);
  const Four high = __builtin_shufflevector(quarters[2], quarters[3], 0, 4, 2, 6) +
                    __builtin_shufflevector(quarters[2], quarters[3], 1, 5, 3, 7);
  const Four sums = __builtin_shufflevector(low, high, 0, 1, 4, 5) +
                    __builtin_shufflevector(low, high, 2, 3, 6, 7);
  std::memcpy(out, &sums, sizeof(sums));
}

// e^x for x <= 0, within 2e-7 of it; 0 below -87.
FB_INLINE void Exp(Vector& x) {
  constexpr float kLowest = -87.0F, kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  const Integers keeps = x > kLowest;
  x = x > kLowest ? x : Vector{} + kLowest;
  const Integers power = __builtin_convertvector(x * kLog2E - 0.5F, Integers);
  const Vector whole = __builtin_convertvector(power, Vector);
  const Vector r = x - whole * kLn2High - whole * kLn2Low;
  Vector p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const Integers bits = (Integers)p + (power << 23);
  x = (Vector)(bits & keeps);
}

// scores[h][e] = query h . key e, for kHeads heads and all entries.
template <typename Element, int kHeads>
FB_INLINE void Scores(const Pair& p, int64_t head, int64_t stride) {
  const auto* keys = static_cast<const Element*>(p.keys);
  const float* query = p.query + head * p.size;
  for (int64_t entry = 0; entry < p.entries; entry += kTile) {
    Vector sums[kHeads][kTile] = {};
    const Element* rows[kTile];
    for (int64_t i = 0; i < kTile; ++i) {
      // Past the end the last one is taken again; what it gives is not looked at.
      rows[i] = keys + (entry + i < p.entries ? entry + i : p.entries - 1) * p.size;
    }
    if (head == 0) {
      // The keys some tiles on, and the values beside these keys, which are needed soon.
      const auto* ahead = reinterpret_cast<const char*>(rows[0] + kAhead * p.size);
      const auto* beside = static_cast<const char*>(p.values) +
                           entry * p.size * static_cast<int64_t>(sizeof(Element));
      const int64_t bytes = kTile * p.size * static_cast<int64_t>(sizeof(Element));
      for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(ahead + line);
        __builtin_prefetch(beside + line);
      }
    }
    for (int64_t k = 0; k < p.size; k += kLanes) {
      Vector row[kTile];
      for (int i = 0; i < kTile; ++i) Load(rows[i] + k, row[i]);
      for (int h = 0; h < kHeads; ++h) {
        Vector q;
        Load(query + h * p.size + k, q);
        for (int i = 0; i < kTile; ++i) sums[h][i] += q * row[i];
      }
    }
    for (int h = 0; h < kHeads; ++h) Sums(sums[h], p.scores + (head + h) * stride + entry);
  }
}

// Makes scores into weights; returns one over their sum. What is not finite spreads.
FB_INLINE float Softmax(const Pair& p, float* scores, int64_t stride) {
  if (p.softcap > 0) {
    const auto cap = static_cast<float>(p.softcap);
    for (int64_t i = 0; i < p.entries; ++i) scores[i] = cap * std::tanh(scores[i] / cap);
  }
  for (int64_t i = p.entries; i < stride; ++i) scores[i] = -INFINITY;
  Vector most_of;
  Load(scores, most_of);
  for (int64_t i = kLanes; i < stride; i += kLanes) {
    Vector x;
    Load(scores + i, x);
    most_of = x > most_of ? x : most_of;
  }
  float most = most_of[0];
  for (int64_t i = 1; i < kLanes; ++i) most = most_of[i] > most ? most_of[i] : most;
  Vector sum = {};
  for (int64_t i = 0; i < stride; i += kLanes) {
    Vector x;
    Load(scores + i, x);
    x -= most;
    const Integers numbers = x == x;
    Exp(x);
    x = numbers != 0 ? x : Vector{} + NAN;
    Store(x, scores + i);
    sum += x;
  }
  float total = 0;
  for (int64_t i = 0; i < kLanes; ++i) total += sum[i];
  return 1 / total;
}

// out[h] = sum of weight * value over all entries, for kHeads heads and kVectors vectors at
// `column`.
template <typename Element, int kHeads, int kVectors>
FB_INLINE void Mix(const Pair& p, int64_t head, int64_t column, int64_t stride,
                   const float* factors) {
  const Element* row = static_cast<const Element*>(p.values) + column;
  const float* weights = p.scores + head * stride;
  Vector sums[kHeads][kVectors] = {};
  for (int64_t entry = 0; entry < p.entries; ++entry, row += p.size) {
    Vector values[kVectors];
    for (int v = 0; v < kVectors; ++v) Load(row + v * kLanes, values[v]);
    for (int h = 0; h < kHeads; ++h) {
      const float weight = weights[h * stride + entry];
      for (int v = 0; v < kVectors; ++v) sums[h][v] += values[v] * weight;
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      Store(sums[h][v] * factors[h], p.out + (head + h) * p.size + column + v * kLanes);
    }
  }
}

template <typename Element, int kHeads>
FB_INLINE void Heads(const Pair& p, int64_t head, int64_t stride) {
  Scores<Element, kHeads>(p, head, stride);
  float factors[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    factors[h] = Softmax(p, p.scores + (head + h) * stride, stride);
  }
  int64_t column = 0;
  for (; column + kSums * kLanes <= p.size; column += kSums * kLanes) {
    Mix<Element, kHeads, kSums>(p, head, column, stride, factors);
  }
  for (; column < p.size; column += kLanes) {
    Mix<Element, kHeads, 1>(p, head, column, stride, factors);
  }
}

template <typename Element>
FB_INLINE void AttendPair(const Pair& p) {
  const int64_t stride = (p.entries + kLanes - 1) / kLanes * kLanes;
  int64_t head = 0;
  for (; head + 4 <= p.heads; head += 4) Heads<Element, 4>(p, head, stride);
  switch (p.heads - head) {
    case 1:
      return Heads<Element, 1>(p, head, stride);
    case 2:
      return Heads<Element, 2>(p, head, stride);
    case 3:
      return Heads<Element, 3>(p, head, stride);
    default:
      return;
  }
}

#undef FB_INLINE

template <typename Element>
void AttendAnywhere(const Pair& p) {
  AttendPair<Element>(p);
}

#if defined(__x86_64__)
template <typename Element>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))) void AttendAvx512(
    const Pair& p) {
  AttendPair<Element>(p);
}
#endif

}  // namespace

AttendFn Portable(xla::DType cache) {
  return cache == xla::DType::kBF16 ? AttendAnywhere<uint16_t> : AttendAnywhere<float>;
}

AttendFn Avx512(xla::DType cache) {
#if defined(__x86_64__)
  if (xla::HasAvx512()) {
    return cache == xla::DType::kBF16 ? AttendAvx512<uint16_t> : AttendAvx512<float>;
  }
#endif
  return nullptr;
}

}  // namespace forebay::models::decode_attention
