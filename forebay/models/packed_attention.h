// PackedAttention: attention over training rows in which several sequences share a row.
//
// Legend: B rows, T tokens in a row, N = B * T, A query heads, K key/value heads, H head size.
//
// A token looks at the tokens of its own segment up to itself, the last `window` of them where
// there is a window. Segment 0 is padding: it looks at nothing that matters, nobody looks at it,
// its result is finite and otherwise meaningless, and whatever it holds (NaN, infinity), here or in
// the cotangent, reaches nothing else.
//
// Two forms with the same results and the same kind of gradient rule (the backward pass recomputes
// the probabilities from the saved log-sum-exps):
// - square: a [B, T, T] bias made once for all layers and four blocks of queries a row. Memory and
//   time grow with T * T.
// - blocks: for each block of queries a loop over only those blocks of keys that its segments and
//   the window need, with an online softmax. Memory grows with T; time with the squares of the
//   segments' lengths, rounded up to blocks.
//
// Measured on 2 busy CPU cores (SmolLM2's heads, forward and backward, seconds of CPU per 1024
// tokens, one segment a row; square, then blocks of 64 / 128 / 256): rows of 256: 0.017, 0.019 /
// 0.025 / 0.030; of 512: 0.028, 0.032 / 0.033 / 0.038; of 1024: 0.088, 0.054 / 0.056 / 0.060; of
// 2048: 0.168, 0.099 / 0.094 / 0.098. Hence square up to 512 tokens, and blocks of 128.
#pragma once

#include <cstdint>

#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models {

struct AttentionBlocks {
  int64_t queries = 128, keys = 128;
};

// What all layers of one program share: which form, and which token may look at which.
struct RowMask {
  AttentionForm form = AttentionForm::kSquare;  // never kAuto
  int64_t rows = 0, length = 0;                 // B, T of the queries
  int64_t key_length = 0;                       // T of the keys
  AttentionBlocks blocks;
  // Segments [B, T]; square: a bias [B, T, T], blocks: the first block of keys for each block of
  // queries [B * blocks of queries a row]; the keys' segments [B, T of the keys]; the place of a
  // row's first query among its keys (s32 scalar). Put them behind an OptimizationBarrier, or XLA
  // computes them again in each layer.
  xla::Values values;
};
// `parallel` on: rows may be split over context; then each device has the queries of its part and
// the keys of all, and the form is blocks.
RowMask MakeRowMask(xla::Value segments_BT, AttentionForm form = AttentionForm::kAuto,
                    const AttentionBlocks& blocks = {}, const Parallel& parallel = Parallel());

// query [N, A * H], key and value [N of the keys, K * H], before rotation; rope for all N tokens ->
// [N, A * H], in query's dtype. Scores, softmax and sums are f32, whatever the inputs are.
xla::Value PackedAttention(xla::Value query, xla::Value key, xla::Value value, const RowMask& mask,
                           const RopeTables& rope, const HeadShape& heads,
                           const ScoreOptions& options = {});

}  // namespace forebay::models
