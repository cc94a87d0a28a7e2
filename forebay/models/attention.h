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

// query [K, G * T, H] (rotated) of T tokens of one slot, at positions start + t; keys, values [K,
// C, H].
// -> [K, G * T, H].
xla::Value PrefillAttention(xla::Value query, xla::Value keys_KCH, xla::Value values_KCH,
                            xla::Value start, int64_t tokens);

// query [S, A, H] (rotated), keys and values [S, K, C, H], each slot over [0, position]. -> [S, A,
// H].
xla::Value DecodeAttention(xla::Value query_SAH, xla::Value keys_SKCH, xla::Value values_SKCH,
                           xla::Value positions_S, const HeadShape& heads);

}  // namespace forebay::models
