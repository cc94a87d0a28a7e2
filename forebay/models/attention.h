// Attention of three kinds: over packed training rows, over one cached prompt chunk, and one token
// per slot.
//
// Legend: B rows, T tokens in a row, N = B * T, A query heads, K key/value heads, G = A / K, H head
// size, S slots, C cached positions looked at. Dot products run as [B * K, G * T, H] batches: XLA's
// CPU backend reaches three times the speed of the five-axis form on them (181 against 57 GFLOP/s).
#pragma once

#include <cstdint>

#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"

namespace forebay::models {

struct HeadShape {
  int64_t query_heads, kv_heads, head_dim;
  int64_t group() const { return query_heads / kv_heads; }
};

// 0 where a token may look (same segment, not later), -1e30 elsewhere: [B, T, T] f32. Computed once
// for all layers.
xla::Value PackedBias(xla::Value segments_BT);

// Rotary causal attention within segments. query [N, A * H], key and value [N, K * H], before
// rotation; bias from PackedBias, rope for all N tokens. -> [N, A * H]. The backward pass
// recomputes the probabilities, block by block of queries, so that nothing of size T * T is kept
// between the passes; keys after a block's last query are never touched.
xla::Value PackedAttention(xla::Value query, xla::Value key, xla::Value value, xla::Value bias_BTT,
                           const RopeTables& rope, const HeadShape& heads);

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
