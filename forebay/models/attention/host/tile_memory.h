// TileMemory: where the tiles of attention lie in a thread's memory, and how arrays come there and
// back. Private to attention/host; a template of the kind of processor, see vectors.h.
//
// Legend: m queries and n keys of a tile, G query heads of a key head, H head size. Rows of a tile
// are M = G * m, head by head, rounded up to whole kRows; H is rounded up to whole vectors, and so
// are keys. What is rounded up is zero or never read.
#pragma once

#include <cstdint>

#include "forebay/models/attention/host/problem.h"
#include "forebay/models/attention/host/vectors.h"

namespace forebay::models::attention::host {

template <class Cpu>
struct TileMemory {
  using V = Vectors<Cpu>;
  using F = typename V::F;
  static constexpr int64_t kLanes = Cpu::kLanes, kRows = Cpu::kRows;
  // Rows of scores: all keys, and kRows - 1 more that transposed products run over.
  static constexpr int64_t kScoreRow = (kKeysMax + kRows - 1 + kLanes - 1) / kLanes * kLanes;
  static constexpr int64_t kKeyRows = (kKeysMax + kRows - 1) / kRows * kRows;

  static int64_t RoundUp(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

  // Where things lie in the scratch memory of a thread.
  struct Scratch {
    Scratch(const Problem& p, int64_t queries_max, float* memory)
        : width(RoundUp(p.head_dim, kLanes)), rows(RoundUp(p.group * queries_max, kRows)) {
      // Without memory only the size is asked for.
      const auto take = [&](int64_t count) {
        float* const taken = memory == nullptr ? nullptr : memory + floats;
        floats += RoundUp(count, 16);
        return taken;
      };
      key_across = take(width * kScoreRow);
      value_across = take(width * kScoreRow);
      key = take(kKeyRows * width);
      value = take(kKeyRows * width);
      query = take(rows * width);
      d_out = take(rows * width);
      sums = d_out;  // forward only
      d_query = take(rows * width);
      d_key = take(kKeyRows * width);
      d_value = take(kKeyRows * width);
      weights = take(rows * kScoreRow);
      d_scores = take(rows * kScoreRow);
      peak = take(rows);
      sum = take(rows);
      factor = take(rows);
    }
    int64_t width, rows, floats = 0;
    float *key_across, *value_across;  // [H, kScoreRow]
    float *key, *value;                // [n, width]
    float *query, *d_out, *sums;       // [M, width]
    float* d_query;
    float *d_key, *d_value;     // [n, width]
    float *weights, *d_scores;  // [M, kScoreRow]
    // Of each row: forward its peak, sum and what is kept; backward its log-sum-exp and delta.
    float *peak, *sum, *factor;
  };

  // What a problem has one of for all blocks. queries_max is of no matter once the memory is there
  // but must be the same in all calls, hence the largest block of the plan.
  struct Call {
    Call(const Problem& problem, int64_t head_in, float* memory)
        : p(problem), s(problem, problem.queries_max, memory), head(head_in) {}
    const Problem& p;
    const Scratch s;
    int64_t head;

    int64_t query_width() const { return p.kv_heads * p.group * p.head_dim; }
    int64_t key_width() const { return p.kv_heads * p.head_dim; }
    int64_t QueryAt(int64_t token, int64_t g) const {
      return token * query_width() + (head * p.group + g) * p.head_dim;
    }
    int64_t KeyAt(int64_t token) const { return token * key_width() + head * p.head_dim; }
    int64_t ColumnAt(int64_t token, int64_t g) const {
      return (token * p.kv_heads + head) * p.group + g;
    }
    int64_t vectors() const { return s.width / kLanes; }
  };

  static float ToFloat(float x) { return x; }
  static float ToFloat(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float out;
    __builtin_memcpy(&out, &bits, sizeof(out));
    return out;
  }
  static void FromFloat(float x, float* to) { *to = x; }
  // To the nearest, ties to even; a NaN stays one.
  static void FromFloat(float x, uint16_t* to) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    *to = static_cast<uint16_t>(x == x ? rounded : (bits >> 16) | 0x40);
  }

  // The rotation of one token: none if cos is null. Pairs are (i, i + half).
  struct Rotation {
    const float *cos, *sin;
    int64_t half;
    float scale;
  };
  static Rotation QueryRotation(const Problem& p, int64_t token) {
    const int64_t half = p.head_dim / 2;
    return {p.query_cos + token * half, p.query_sin + token * half, half, p.scale};
  }
  static Rotation KeyRotation(const Problem& p, int64_t token) {
    const int64_t half = p.head_dim / 2;
    return {p.key_cos + token * half, p.key_sin + token * half, half, 1};
  }
  static Rotation NoRotation() { return {nullptr, nullptr, 0, 1}; }

  // A row of a head, zeros up to width.
  template <typename E>
  static void LoadRow(const Problem& p, const E* __restrict from, const Rotation& rotation,
                      float* __restrict to, int64_t width) {
    if (rotation.cos == nullptr) {
      for (int64_t i = 0; i < p.head_dim; ++i) to[i] = ToFloat(from[i]);
    } else {
      const float* __restrict cos = rotation.cos;
      const float* __restrict sin = rotation.sin;
      const int64_t half = rotation.half;
      for (int64_t i = 0; i < half; ++i) {
        const float a = ToFloat(from[i]) * rotation.scale;
        const float b = ToFloat(from[half + i]) * rotation.scale;
        to[i] = a * cos[i] - b * sin[i];
        to[half + i] = b * cos[i] + a * sin[i];
      }
    }
    for (int64_t i = p.head_dim; i < width; ++i) to[i] = 0;
  }
  // The gradient of a rotation, from that of its result.
  static void RotateBack(const float* from, const Rotation& rotation, float* to) {
    const int64_t half = rotation.half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = from[i] * rotation.scale, b = from[half + i] * rotation.scale;
      to[i] = a * rotation.cos[i] + b * rotation.sin[i];
      to[half + i] = b * rotation.cos[i] - a * rotation.sin[i];
    }
  }

  // The heads of a block of queries, and zeros up to whole kRows.
  template <typename E>
  static void LoadQueries(const Call& c, const void* array, const Block& block, bool rotates,
                          float* to) {
    const auto* from = static_cast<const E*>(array);
    float* row = to;
    for (int64_t g = 0; g < c.p.group; ++g) {
      for (int64_t t = 0; t < block.count; ++t, row += c.s.width) {
        LoadRow(c.p, from + c.QueryAt(block.token + t, g),
                rotates ? QueryRotation(c.p, block.token + t) : NoRotation(), row, c.s.width);
      }
    }
    const int64_t rows = c.p.group * block.count;
    for (int64_t i = rows * c.s.width; i < RoundUp(rows, kRows) * c.s.width; ++i) to[i] = 0;
  }

  template <typename E>
  static void LoadKeys(const Call& c, const void* array, const Block& block, bool rotates,
                       float* to) {
    const auto* from = static_cast<const E*>(array);
    for (int64_t j = 0; j < block.count; ++j) {
      LoadRow(c.p, from + c.KeyAt(block.token + j),
              rotates ? KeyRotation(c.p, block.token + j) : NoRotation(), to + j * c.s.width,
              c.s.width);
    }
    for (int64_t i = block.count * c.s.width; i < kKeyRows * c.s.width; ++i) to[i] = 0;
  }

  // Keys across: rows [n, width] -> [width, kScoreRow], with the zeros that follow the rows up to
  // whole vectors of keys.
  static void TurnAcross(const Call& c, const Block& block, const float* rows, float* to) {
    for (int64_t j = 0; j < block.count; j += kLanes) {
      for (int64_t h = 0; h < c.s.width; h += kLanes) {
        V::Transpose(rows + j * c.s.width + h, c.s.width, to + h * kScoreRow + j, kScoreRow);
      }
    }
  }
};

}  // namespace forebay::models::attention::host
