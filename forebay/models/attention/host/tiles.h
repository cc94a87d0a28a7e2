// Tiles: a block of queries against a block of keys, forward and backward. Private to
// attention/host; a template of the kind of processor, see vectors.h. The legend is that of
// tile_memory.h.
#pragma once

#include <cstdint>

#include "forebay/models/attention/host/problem.h"
#include "forebay/models/attention/host/tile_memory.h"
#include "forebay/models/attention/host/vectors.h"

namespace forebay::models::attention::host {

template <class Cpu>
class Tiles {
  using M = TileMemory<Cpu>;
  using V = Vectors<Cpu>;
  using F = typename V::F;
  using I = typename V::I;
  using Scratch = typename M::Scratch;
  using Call = typename M::Call;
  static constexpr int64_t kLanes = M::kLanes, kRows = M::kRows, kScoreRow = M::kScoreRow,
                           kKeyRows = M::kKeyRows;
  static constexpr float kLowest = -1e30F;  // below any score; finite, as inf - inf is NaN

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
    const int64_t rows = p.group * queries.count, all_rows = M::RoundUp(rows, kRows);
    M::template LoadQueries<E>(c, p.query, queries, true, s.query);
    for (int64_t r = 0; r < all_rows; ++r) {
      s.peak[r] = kLowest;
      s.sum[r] = 0;
    }
    for (int64_t i = 0; i < all_rows * s.width; ++i) s.sums[i] = 0;
    for (int32_t j = queries.first; j <= queries.last; ++j) {
      const Block& keys = p.key_blocks[j];
      M::template LoadKeys<E>(c, p.key, keys, true, s.key);
      M::TurnAcross(c, keys, s.key, s.key_across);
      M::template LoadKeys<E>(c, p.value, keys, false, s.value);
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
        for (int64_t h = 0; h < p.head_dim; ++h)
          M::FromFloat(s.sums[r * s.width + h] * scale, to + h);
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
    const int64_t vectors = M::RoundUp(high, kLanes) / kLanes;
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
    M::template LoadKeys<E>(c, p.key, keys, true, c.s.key);
    M::template LoadKeys<E>(c, p.value, keys, false, c.s.value);
    M::TurnAcross(c, keys, c.s.key, c.s.key_across);
    M::TurnAcross(c, keys, c.s.value, c.s.value_across);
    for (int64_t i = 0; i < kKeyRows * c.s.width; ++i) c.s.d_key[i] = c.s.d_value[i] = 0;
  }

  template <typename E>
  static void BackwardPair(const Problem& p, const Block& keys, const Block& queries, int64_t head,
                           float* memory) {
    const Call c(p, head, memory);
    const Scratch& s = c.s;
    M::template LoadQueries<E>(c, p.query, queries, true, s.query);
    M::template LoadQueries<E>(c, p.d_out, queries, false, s.d_out);
    LoadColumns<E>(c, queries);
    const int64_t all_rows = M::RoundUp(p.group * queries.count, kRows);
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
        if (part.is_last) M::RotateBack(sum, M::QueryRotation(p, queries.token + t), to);
      }
    }
  }

  static void BackwardEnd(const Problem& p, const Block& keys, int64_t head, float* memory) {
    const Call c(p, head, memory);
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t at = c.KeyAt(keys.token + j);
      M::RotateBack(c.s.d_key + j * c.s.width, M::KeyRotation(p, keys.token + j), p.d_key + at);
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
          for (int64_t i = 0; i < kLanes; ++i) values[i] = M::ToFloat(own[h + i]);
          sums += V::Load(values) * V::Load(d_out + h);
        }
        float delta = V::Sum(sums);
        for (; h < c.p.head_dim; ++h) delta += M::ToFloat(own[h]) * d_out[h];
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
    const int64_t vectors = M::RoundUp(high, kLanes) / kLanes;
    const int64_t all_vectors = M::RoundUp(keys.count, kLanes) / kLanes;
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
