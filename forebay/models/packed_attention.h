// PackedAttention: attention over training rows in which several sequences share a row.
//
// Legend: B rows, T tokens in a row, N = B * T, A query heads, K key/value heads, H head size.
//
// A token looks at the tokens of its own segment up to itself, the last `window` of them where
// there is a window. Segment 0 is padding: it looks at nothing that matters, nobody looks at it,
// its result is finite and otherwise meaningless, and whatever it holds (NaN, infinity), here or in
// the cotangent, reaches nothing else.
//
// Three forms with the same results and the same kind of gradient rule (the backward pass
// recomputes the probabilities from the saved log-sum-exps):
// - square: a [B, T, T] bias made once for all layers and four blocks of queries a row. Memory and
//   time grow with T * T.
// - blocks: for each block of queries a loop over only those blocks of keys that its segments and
//   the window need, with an online softmax. Memory grows with T; time with the squares of the
//   segments' lengths, rounded up to blocks.
// - host: a host kernel (xla/host_kernel.h) on the CPU, blocks cut along the segments, on all
//   threads. XLA's code for the CPU runs the loops of the block form one block after the other.
//
// Over a mesh that splits rows over the axis "context" the keys of whole rows are gathered (blocks
// or host), or travel around the ring of devices (blocks).
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
#include "forebay/models/row_split.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models {

struct AttentionBlocks {
  int64_t queries = 128, keys = 128;
};

// What all layers of one program share: which form, and which token may look at which.
struct RowMask {
  AttentionForm form = AttentionForm::kSquare;  // never kAuto
  int64_t rows = 0, length = 0;                 // B, T of the tokens at hand
  RowSplit split;
  bool ring = false;
  AttentionBlocks blocks;
  // Segments [B, T]; then, square: a bias [B, T, T], blocks: attention/block_tables.h. Put them
  // behind an OptimizationBarrier, or XLA computes them again in each layer.
  xla::Values values;
};

// How rows lie over a mesh (RowSplit; by default one device has all of them), and whether their
// keys travel around the ring instead of being gathered.
struct RowPlacement {
  RowSplit split = {};
  bool ring = false;
  bool host_kernels = false;  // kAuto is host
};
// `segments_BT`: of the tokens at hand, as the split deals them.
RowMask MakeRowMask(xla::Value segments_BT, AttentionForm form = AttentionForm::kAuto,
                    const AttentionBlocks& blocks = {}, const RowPlacement& placement = {});

// Whether sending the keys of a part of a row around the ring hides behind the arithmetic of a
// step. `tokens` of a row are at hand, `group` query heads share a key, elements of keys have
// `element_bytes`. A step has 2 * tokens * group / element_bytes multiply-adds for each byte that
// it sends (causal, of one segment); a v5p does about 4,600 flops in the time of one byte on a
// link. Below that the ring would wait in each step, and one gather is the better wait.
bool RingHides(int64_t tokens, int64_t group, int64_t element_bytes);

// query [N, A * H], key and value [N, K * H], before rotation; rope for all N tokens -> [N, A * H],
// in query's dtype. Scores, softmax and sums are f32, whatever the inputs are.
xla::Value PackedAttention(xla::Value query, xla::Value key, xla::Value value, const RowMask& mask,
                           const RopeTables& rope, const HeadShape& heads,
                           const ScoreOptions& options = {});

}  // namespace forebay::models
