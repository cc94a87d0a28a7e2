// Tiles: a block of queries against a block of keys, forward and backward. Private to
// attention/host; a template of the kind of processor, see vectors.h.
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
class Tiles {
  using V = Vectors<Cpu>;
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int64_t kLanes = Cpu::kLanes, kRows = Cpu::kRows;
  // Rows of scores: all keys, and kRows - 1 more that transposed products run over.
  static constexpr int64_t kScoreRow = (kKeysMax + kRows - 1 + kLanes - 1) / kLanes * kLanes;
  static constexpr int64_t kKeyRows = (kKeysMax + kRows - 1) / kRows * kRows;
  static constexpr float kLowest = -1e30F;  // below any score; finite, as inf - inf is NaN

  static int64_t RoundUp(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

  // Where things lie in the scratch memory of a thread.
  struct Scratch {
    Scratch(const Problem& p, int64_t queries_max, float* memory)
        : width(RoundUp(p.head_dim, kLanes)), rows(RoundUp(p.group * queries_max, kRows)) {
      float* at = memory;
      const auto take = [&](int64_t floats) {
        float* taken = at;
        at += RoundUp(floats, 16);
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
      floats = at - memory;
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

  // ---- between arrays and scratch

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

  // ---- which keys a row sees

  // Keys [low, high) of the block.
  struct Seen {
    int32_t low, high;
  };
  static Seen SeenBy(const Problem& p, int32_t place, const Block& keys) {
    const int32_t high = place + 1 - keys.place;
    // No overflow: a window beyond the row is no window.
    const int32_t low = place < p.window ? 0 : place - p.window + 1 - keys.place;
    return {low < 0 ? 0 : low, high < 0 ? 0 : high > keys.count ? keys.count : high};
  }
  static Seen SeenByRow(const Problem& p, const Block& queries, const Block& keys, int64_t row) {
    const int64_t rows = p.group * queries.count;
    if (row >= rows) return {0, 0};
    return SeenBy(p, queries.place + static_cast<int32_t>(row % queries.count), keys);
  }
  // Whether each row sees all keys.
  static bool SeesAll(const Problem& p, const Block& queries, const Block& keys) {
    const Seen first = SeenBy(p, queries.place, keys);
    const Seen last = SeenBy(p, queries.place + queries.count - 1, keys);
    return first.high == keys.count && last.low == 0;
  }
  // The most keys, counted from the first, that one of kRows rows sees.
  static int32_t HighOf(const Problem& p, const Block& queries, const Block& keys, int64_t row,
                        Seen* seen) {
    int32_t high = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      seen[r] = SeenByRow(p, queries, keys, row + r);
      high = seen[r].high > high ? seen[r].high : high;
    }
    return high;
  }
  static I Visible(const Seen& seen, int64_t lane) {
    const I at = V::Iota() + static_cast<int32_t>(lane);
    return (at >= seen.low) & (at < seen.high);
  }

  static F Capped(const Problem& p, F x) { return V::Tanh(x * (1.0F / p.softcap)) * p.softcap; }

 public:
  static int64_t ScratchFloats(const Problem& problem) {
    return Scratch(problem, problem.queries_max, nullptr).floats;
  }

  // ---- forward

  template <typename E>
  static void Forward(const Problem& p, const Block& queries, int64_t head, float* memory) {
    const Call c(p, head, memory);
    const Scratch& s = c.s;
    const int64_t rows = p.group * queries.count, all_rows = RoundUp(rows, kRows);
    LoadQueries<E>(c, p.query, queries, true, s.query);
    for (int64_t r = 0; r < all_rows; ++r) {
      s.peak[r] = kLowest;
      s.sum[r] = 0;
    }
    for (int64_t i = 0; i < all_rows * s.width; ++i) s.sums[i] = 0;
    for (int32_t j = queries.first; j <= queries.last; ++j) {
      const Block& keys = p.key_blocks[j];
      LoadKeys<E>(c, p.key, keys, true, s.key);
      TurnAcross(c, keys, s.key, s.key_across);
      LoadKeys<E>(c, p.value, keys, false, s.value);
      const bool sees_all = SeesAll(p, queries, keys);
      for (int64_t r = 0; r < all_rows; r += kRows) {
        ForwardRows(c, queries, keys, r, sees_all);
      }
    }
    auto* out = static_cast<E*>(p.out);
    for (int64_t g = 0; g < p.group; ++g) {
      for (int64_t t = 0; t < queries.count; ++t) {
        const int64_t r = g * queries.count + t;
        const float scale = 1.0F / s.sum[r];
        E* to = out + c.QueryAt(queries.token + t, g);
        for (int64_t h = 0; h < p.head_dim; ++h) FromFloat(s.sums[r * s.width + h] * scale, to + h);
        p.log_sum[c.ColumnAt(queries.token + t, g)] = s.peak[r] + __builtin_logf(s.sum[r]);
      }
    }
  }

 private:
  // kRows rows from `row` on against a block of keys: their scores stay in the nearest cache.
  static void ForwardRows(const Call& c, const Block& queries, const Block& keys, int64_t row,
                          bool sees_all) {
    const Scratch& s = c.s;
    Seen seen[kRows];
    const int32_t high = sees_all ? keys.count : HighOf(c.p, queries, keys, row, seen);
    if (high == 0) return;
    const bool is_masked = !sees_all || high % kLanes != 0;
    if (is_masked && sees_all) {
      for (Seen& one : seen) one = {0, high};
    }
    const int64_t vectors = RoundUp(high, kLanes) / kLanes;
    float scores[kRows * kScoreRow];
    MultiplyRows<Cpu>({.a = s.query + row * s.width,
                       .a_row = s.width,
                       .a_column = 1,
                       .b = s.key_across,
                       .b_row = kScoreRow,
                       .depth = c.p.head_dim,
                       .c = scores,
                       .c_row = kScoreRow,
                       .adds = false,
                       .factors = nullptr},
                      vectors);
    float added[kRows];
    for (int64_t r = 0; r < kRows; ++r) {
      float* const own = scores + r * kScoreRow;
      F largest = V::All(kLowest);
      for (int64_t v = 0; v < vectors; ++v) {
        F x = V::Load(own + v * kLanes);
        if (c.p.softcap != 0) x = Capped(c.p, x);
        if (is_masked) x = Visible(seen[r], v * kLanes) ? x : V::All(kLowest);
        V::Store(own + v * kLanes, x);
        largest = V::Max(x, largest);
      }
      const float before = s.peak[row + r], in_tile = V::Largest(largest);
      const float peak = in_tile > before ? in_tile : before;
      F sum{};
      for (int64_t v = 0; v < vectors; ++v) {
        F weight = V::Exp(V::Load(own + v * kLanes) - peak);
        // A row that has seen no key yet has weights of e^0.
        if (is_masked) weight = Visible(seen[r], v * kLanes) ? weight : F{};
        V::Store(own + v * kLanes, weight);
        sum += weight;
      }
      s.factor[row + r] = before - peak;
      s.peak[row + r] = peak;
      added[r] = V::Sum(sum);
    }
    KeepRows(c, row, added);
    MultiplyRows<Cpu>({.a = scores,
                       .a_row = kScoreRow,
                       .a_column = 1,
                       .b = s.value,
                       .b_row = s.width,
                       .depth = high,
                       .c = s.sums + row * s.width,
                       .c_row = s.width,
                       .adds = true,
                       .factors = s.factor + row},
                      c.vectors());
  }

  // factor = e^factor, the part that is kept of what was summed under the peak before; sum = sum *
  // factor + new.
  static void KeepRows(const Call& c, int64_t row, const float* added) {
    float lanes[kLanes * ((kRows + kLanes - 1) / kLanes)] = {};
    for (int64_t r = 0; r < kRows; ++r) lanes[r] = c.s.factor[row + r];
    for (int64_t r = 0; r < kRows; r += kLanes) V::Store(lanes + r, V::Exp(V::Load(lanes + r)));
    for (int64_t r = 0; r < kRows; ++r) {
      c.s.factor[row + r] = lanes[r];
      c.s.sum[row + r] = c.s.sum[row + r] * lanes[r] + added[r];
    }
  }

 public:
  // ---- backward

  template <typename E>
  static void BackwardBegin(const Problem& p, const Block& keys, int64_t head, float* memory) {
    const Call c(p, head, memory);
    LoadKeys<E>(c, p.key, keys, true, c.s.key);
    LoadKeys<E>(c, p.value, keys, false, c.s.value);
    TurnAcross(c, keys, c.s.key, c.s.key_across);
    TurnAcross(c, keys, c.s.value, c.s.value_across);
    for (int64_t i = 0; i < kKeyRows * c.s.width; ++i) c.s.d_key[i] = c.s.d_value[i] = 0;
  }

  template <typename E>
  static void BackwardPair(const Problem& p, const Block& keys, const Block& queries, int64_t head,
                           float* memory) {
    const Call c(p, head, memory);
    const Scratch& s = c.s;
    LoadQueries<E>(c, p.query, queries, true, s.query);
    LoadQueries<E>(c, p.d_out, queries, false, s.d_out);
    LoadColumns<E>(c, queries);
    const int64_t all_rows = RoundUp(p.group * queries.count, kRows);
    const bool sees_all = SeesAll(p, queries, keys);
    for (int64_t r = 0; r < all_rows; r += kRows) BackwardRows(c, queries, keys, r, sees_all);
    AddToKeys(c, queries, keys, s.weights, s.d_out, s.d_value);
    AddToKeys(c, queries, keys, s.d_scores, s.query, s.d_key);
    Multiply<Cpu>({.a = s.d_scores,
                   .a_row = kScoreRow,
                   .a_column = 1,
                   .b = s.key,
                   .b_row = s.width,
                   .depth = keys.count,
                   .c = s.d_query,
                   .c_row = s.width,
                   .adds = false,
                   .factors = nullptr},
                  all_rows, c.vectors());
  }

  static void BackwardAdd(const Problem& p, const Block& queries, int64_t head, Part part,
                          float* memory) {
    const Call c(p, head, memory);
    float* row = c.s.d_query;
    for (int64_t g = 0; g < p.group; ++g) {
      for (int64_t t = 0; t < queries.count; ++t, row += c.s.width) {
        float* const to = p.d_query + c.QueryAt(queries.token + t, g);
        float* const sum = part.is_last ? row : to;
        if (!part.is_first) {
          for (int64_t h = 0; h < p.head_dim; ++h) sum[h] = to[h] + row[h];
        } else if (!part.is_last) {
          for (int64_t h = 0; h < p.head_dim; ++h) sum[h] = row[h];
        }
        if (part.is_last) RotateBack(sum, QueryRotation(p, queries.token + t), to);
      }
    }
  }

  static void BackwardEnd(const Problem& p, const Block& keys, int64_t head, float* memory) {
    const Call c(p, head, memory);
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t at = c.KeyAt(keys.token + j);
      RotateBack(c.s.d_key + j * c.s.width, KeyRotation(p, keys.token + j), p.d_key + at);
      for (int64_t h = 0; h < p.head_dim; ++h) p.d_value[at + h] = c.s.d_value[j * c.s.width + h];
    }
  }

 private:
  // Log-sum-exps, and deltas: the sum of d_out * out of a row.
  template <typename E>
  static void LoadColumns(const Call& c, const Block& queries) {
    const auto* out = static_cast<const E*>(c.p.out);
    int64_t r = 0;
    for (int64_t g = 0; g < c.p.group; ++g) {
      for (int64_t t = 0; t < queries.count; ++t, ++r) {
        const E* own = out + c.QueryAt(queries.token + t, g);
        const float* d_out = c.s.d_out + r * c.s.width;
        F sums{};
        int64_t h = 0;
        for (; h + kLanes <= c.p.head_dim; h += kLanes) {
          float values[kLanes];
          for (int64_t i = 0; i < kLanes; ++i) values[i] = ToFloat(own[h + i]);
          sums += V::Load(values) * V::Load(d_out + h);
        }
        float delta = V::Sum(sums);
        for (; h < c.p.head_dim; ++h) delta += ToFloat(own[h]) * d_out[h];
        c.s.sum[r] = delta;
        c.s.peak[r] = c.p.log_sum[c.ColumnAt(queries.token + t, g)];
      }
    }
    for (; r < c.s.rows; ++r) c.s.sum[r] = c.s.peak[r] = 0;
  }

  // Weights and d(scores) of kRows rows; zero where a row does not see a key.
  static void BackwardRows(const Call& c, const Block& queries, const Block& keys, int64_t row,
                           bool sees_all) {
    const Scratch& s = c.s;
    Seen seen[kRows];
    const int32_t high = sees_all ? keys.count : HighOf(c.p, queries, keys, row, seen);
    const int64_t vectors = RoundUp(high, kLanes) / kLanes;
    const int64_t all_vectors = RoundUp(keys.count, kLanes) / kLanes;
    float* const weights = s.weights + row * kScoreRow;
    float* const d_scores = s.d_scores + row * kScoreRow;
    Product product{.a = s.query + row * s.width,
                    .a_row = s.width,
                    .a_column = 1,
                    .b = s.key_across,
                    .b_row = kScoreRow,
                    .depth = c.p.head_dim,
                    .c = weights,
                    .c_row = kScoreRow,
                    .adds = false,
                    .factors = nullptr};
    MultiplyRows<Cpu>(product, vectors);
    product.a = s.d_out + row * s.width;
    product.b = s.value_across;
    product.c = d_scores;
    MultiplyRows<Cpu>(product, vectors);
    for (int64_t r = 0; r < kRows; ++r) {
      float* const weight_row = weights + r * kScoreRow;
      float* const d_row = d_scores + r * kScoreRow;
      const float log_sum = s.peak[row + r], delta = s.sum[row + r];
      for (int64_t v = 0; v < vectors; ++v) {
        F x = V::Load(weight_row + v * kLanes);
        F slope = V::All(1);
        if (c.p.softcap != 0) {
          x = Capped(c.p, x);
          const F part = x * (1.0F / c.p.softcap);
          slope = 1.0F - part * part;
        }
        F weight = V::Exp(x - log_sum);
        F d_score = weight * (V::Load(d_row + v * kLanes) - delta) * slope;
        if (!sees_all) {
          const I visible = Visible(seen[r], v * kLanes);
          weight = visible ? weight : F{};
          d_score = visible ? d_score : F{};
        }
        V::Store(weight_row + v * kLanes, weight);
        V::Store(d_row + v * kLanes, d_score);
      }
      for (int64_t v = vectors; v < all_vectors; ++v) {
        V::Store(weight_row + v * kLanes, F{});
        V::Store(d_row + v * kLanes, F{});
      }
    }
  }

  // sums [n, width] += rows^T [n, M] values [M, width].
  static void AddToKeys(const Call& c, const Block& queries, const Block& keys, const float* rows,
                        const float* values, float* sums) {
    Multiply<Cpu>({.a = rows,
                   .a_row = 1,
                   .a_column = kScoreRow,
                   .b = values,
                   .b_row = c.s.width,
                   .depth = c.p.group * queries.count,
                   .c = sums,
                   .c_row = c.s.width,
                   .adds = true,
                   .factors = nullptr},
                  keys.count, c.vectors());
  }
};

// The table of this processor; E is float or a bf16 as uint16_t.
template <class Cpu>
constexpr Code MakeCode() {
  using T = Tiles<Cpu>;
  return {
      .scratch_floats = T::ScratchFloats,
      .forward = {T::template Forward<float>, T::template Forward<uint16_t>},
      .backward_begin = {T::template BackwardBegin<float>, T::template BackwardBegin<uint16_t>},
      .backward_pair = {T::template BackwardPair<float>, T::template BackwardPair<uint16_t>},
      .backward_add = T::BackwardAdd,
      .backward_end = T::BackwardEnd,
  };
}

}  // namespace forebay::models::attention::host
