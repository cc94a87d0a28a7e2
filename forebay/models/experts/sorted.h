// SortedExperts: the experts' feed-forward networks on the tokens that chose them. Private to
// models/.
//
// Pairs of token and expert are sorted by expert into blocks of rows that share one, and a loop
// runs over the blocks that there are, forward and backward. What a block makes is added to its
// tokens at once, so memory is that of the tokens, not of the pairs, of which most may be of
// experts that are elsewhere. Tokens get their terms in the order of their experts: the same inputs
// give the same bits.
//
// Legend: N tokens, K experts a token, P = N * K pairs, E experts at hand, D width, F feed-forward
// width; m rows of a block, Q blocks at most.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models::experts {

// x [N, D], weights [N, K], experts [N, K] s32 (those outside of [0, E) are elsewhere), gate, up
// [E, F, D], down [E, D, F].
enum Operand { kX, kWeights, kExperts, kGate, kUp, kDown, kOperands };

class SortedExperts {
 public:
  SortedExperts(int64_t tokens, int64_t top_k, int64_t experts);

  // -> [N, D] f32.
  xla::Value Forward(std::span<const xla::Value> xs) const;

  // Zeros to add the gradients of gate, up and down to, f32.
  static xla::Values NoSums(std::span<const xla::Value> xs);
  // -> d(x) [N, D], d(weights) [N, K], and `sums` plus the gradients of gate, up and down; all f32.
  xla::Values Backward(std::span<const xla::Value> xs, xla::Value d_out,
                       const xla::Values& sums) const;

 private:
  struct Plan;
  struct Block;
  Plan MakePlan(xla::Value experts_NK, xla::Value weights_NK) const;
  static Block Read(const Plan& plan, xla::Value block, std::span<const xla::Value> xs);
  xla::Value OfPairs(const Plan& plan, xla::Value rows) const;

  int64_t tokens_, top_k_, experts_, pairs_;
  int64_t rows_, blocks_;  // m, Q
};

}  // namespace forebay::models::experts
