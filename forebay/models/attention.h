// Attention over cached keys: one prompt chunk of one slot, and one token per slot. (Over training
// rows: models/packed_attention.h.)
//
// Legend: T tokens of a chunk, A query heads, K key/value heads, G = A / K, H head size, S slots, C
// cached positions looked at. Dot products run as [B * K, G * T, H] batches: XLA's
// CPU backend reaches three times the speed of the five-axis form on them (181 against 57 GFLOP/s).
#pragma once

#include <cstdint>

#include "forebay/xla/graph.h"

namespace forebay::models {

struct HeadShape {
  int64_t query_heads, kv_heads, head_dim;
  int64_t group() const { return query_heads / kv_heads; }
};

struct ScoreOptions {
  double scale = 0;    // of the scores; 0: 1 / sqrt(H)
  double softcap = 0;  // cap * tanh(score / cap); 0: none
  // How many tokens a query sees, itself included: s32 scalar, empty for all. A value rather than a
  // number, so that layers with and without a window can share one scan body.
  xla::Value window;
};

// Over cached keys the window and the past end at the query's own position; query, keys and values
// may have different float dtypes, results are f32.

// query [K, G * T, H] (rotated) of T tokens of one slot, at positions start + t; keys, values [K,
// C, H] -> [K, G * T, H].
xla::Value PrefillAttention(xla::Value query, xla::Value keys_KCH, xla::Value values_KCH,
                            xla::Value start, int64_t tokens, const ScoreOptions& options = {});

// query [S, A, H] (rotated), keys and values [S, K, C, H], each slot over [0, position] -> [S, A,
// H].
xla::Value DecodeAttention(xla::Value query_SAH, xla::Value keys_SKCH, xla::Value values_SKCH,
                           xla::Value positions_S, const ScoreOptions& options = {});

}  // namespace forebay::models
