#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "forebay/rollout/engine/host_sampler.h"
#include "forebay/xla/host_cpu.h"

namespace forebay::rollout::host_sampler {
namespace {

// Inlined into functions that are compiled for one processor each.
#define FB_INLINE __attribute__((always_inline)) inline

using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using Eight = int32_t __attribute__((vector_size(32)));
using Four = int32_t __attribute__((vector_size(16)));
using Bits = uint32_t __attribute__((vector_size(64)));

constexpr int64_t kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What lies past the end takes no part: its weight is 0.
FB_INLINE void Load(const float* from, int64_t count, Floats& to) {
  if (count >= kLanes) {
    std::memcpy(&to, from, sizeof(to));
    return;
  }
  to = Floats{} - kInfinity;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

// MurmurHash3's finalizer.
FB_INLINE void Finalize(Bits& x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6BU;
  x = (x ^ (x >> 13)) * 0xC2B2AE35U;
  x ^= x >> 16;
}

// e^x for x <= 0, within 2e-7 of it; 0 below -87; NaN stays.
FB_INLINE void Exp(Floats& x) {
  constexpr float kLowest = -87.0F;
  const Ints vanishes = x < kLowest;
  const Ints nan = x != x;
  Floats y = vanishes != 0 ? Floats{} + kLowest : x;
  y = nan != 0 ? Floats{} : y;
  const Ints power = __builtin_convertvector(y * 1.44269504F - 0.5F, Ints);
  const Floats whole = __builtin_convertvector(power, Floats);
  const Floats r = y - whole * 0.693359375F + whole * 2.12194440e-4F;
  Floats p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  y = (Floats)((Ints)p + (power << 23));
  y = vanishes != 0 ? Floats{} : y;
  x = nan != 0 ? x : y;
}

// log(x) for normal x > 0, within 2 units in the last place away from 1.
FB_INLINE void Log(Floats& x) {
  constexpr float kRoot = 0.707106781F;
  Ints power = ((Ints)x >> 23) - 126;
  Floats m = (Floats)(((Ints)x & 0x007FFFFF) | 0x3F000000);  // [0.5, 1)
  const Ints low = m < kRoot;
  power = low != 0 ? power - 1 : power;
  m = low != 0 ? m + m - 1.0F : m - 1.0F;
  Floats p = m * 7.0376836292e-2F - 1.1514610310e-1F;
  p = p * m + 1.1676998740e-1F;
  p = p * m - 1.2420140846e-1F;
  p = p * m + 1.4249322787e-1F;
  p = p * m - 1.6668057665e-1F;
  p = p * m + 2.0000714765e-1F;
  p = p * m - 2.4999993993e-1F;
  p = p * m + 3.3333331174e-1F;
  const Floats square = m * m;
  const Floats whole = __builtin_convertvector(power, Floats);
  x = m + (p * m * square + whole * -2.12194440e-4F - square * 0.5F) + whole * 0.693359375F;
}

// In (0, 1), from 32 random bits.
FB_INLINE void Uniform(const Bits& bits, Floats& out) {
  constexpr float kMost = 1.0F - 0x1.0p-24F;
  out = (__builtin_convertvector(bits, Floats) + 0.5F) * 0x1.0p-32F;
  out = out < kMost ? out : Floats{} + kMost;
}

// How long a clock of rate 1 takes: -log1p(-u), where small u keep all their digits (log(y) / (y -
// 1) hardly changes with the rounding of y = 1 - u). At least u, but for its last digits.
FB_INLINE void Exponential(const Floats& u, Floats& out) {
  const Floats y = 1.0F - u;
  const Floats d = y - 1.0F;
  Floats log = y;
  Log(log);
  out = d == 0.0F ? u : log * u / d;
}

FB_INLINE bool Any(const Ints& x) {
  const Eight half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) |
                     __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) |
                       __builtin_shufflevector(half, half, 4, 5, 6, 7);
  return (quarter[0] | quarter[1] | quarter[2] | quarter[3]) != 0;
}

template <int>
FB_INLINE void DrawRow(const Row& row, Draw* out) {
  const float scale = row.temperature > 0 ? 1 / row.temperature : 1.0F;
  Floats most_of = Floats{} - kInfinity;
  for (int64_t i = 0; i < row.vocab; i += kLanes) {
    Floats x;
    Load(row.logits + i, row.vocab - i, x);
    x *= scale;
    most_of = x > most_of ? x : most_of;
  }
  float most = most_of[0];
  for (int64_t i = 1; i < kLanes; ++i) most = most_of[i] > most ? most_of[i] : most;

  Ints column;
  for (int32_t i = 0; i < kLanes; ++i) column[i] = i;
  Floats best = Floats{} - kInfinity, sum = {};
  Ints best_column = {};
  const bool greedy = !(row.temperature > 0);
  for (int64_t i = 0; i < row.vocab; i += kLanes, column += static_cast<int32_t>(kLanes)) {
    Floats x;
    Load(row.logits + i, row.vocab - i, x);
    x *= scale;
    Floats score = x;
    x -= most;
    Exp(x);
    sum += x;
    if (!greedy) {
      Bits bits = (Bits)column ^ row.key0;
      Finalize(bits);
      bits += row.key1;
      Finalize(bits);
      Floats u;
      Uniform(bits, u);
      // Few can still win: x / u is the most that x can score.
      constexpr float kRounding = 1.0F - 1e-5F;
      if (!Any(!(x < best * u * kRounding))) continue;
      Floats clock;
      Exponential(u, clock);
      score = x / clock;
    }
    const Ints better = score > best;
    best = better != 0 ? score : best;
    best_column = better != 0 ? column : best_column;
  }
  float total = 0;
  int64_t first = 0;
  for (int64_t i = 0; i < kLanes; ++i) {
    total += sum[i];
    const bool wins =
        best[i] > best[first] || (best[i] == best[first] && best_column[i] < best_column[first]);
    if (wins) first = i;
  }
  // Where nothing is finite no column is a token's, and the log-probability says so.
  out->token = best_column[first] < row.vocab ? best_column[first] : 0;
  out->logprob = row.logits[out->token] * scale - most - std::log(total);
}

#undef FB_INLINE

Draw DrawAnywhere(const Row& row) {
  Draw out = {};
  DrawRow<0>(row, &out);
  return out;
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))) Draw
DrawAvx512(const Row& row) {
  Draw out = {};
  DrawRow<1>(row, &out);
  return out;
}
#endif

}  // namespace

DrawFn Portable() { return DrawAnywhere; }

DrawFn Avx512() {
#if defined(__x86_64__)
  if (xla::HasAvx512()) return DrawAvx512;
#endif
  return nullptr;
}

}  // namespace forebay::rollout::host_sampler
