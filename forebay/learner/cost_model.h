// CostModel: what a packed row costs the device, so that shapes and packings can be compared.
//
// Unit: the time of one token that attends to nothing. Padding columns cost as much as real ones.
// The attention term is quadratic: in the row when the attention looks at the whole row and masks
// it, or in each segment when it skips what no segment needs.
#pragma once

#include <cstdint>

namespace forebay::learner {

enum class AttentionCost {
  kRow,       // rows * length^2: short sequences are cheaper in short rows
  kSegments,  // the sum of the squares of the segments: only padding makes a difference
};

struct CostModel {
  // Of models/packed_attention.h in rows above 512 tokens; below, its square form costs hardly more
  // than the tokens do.
  AttentionCost attention = AttentionCost::kSegments;
  // The length at which attention doubles a token's cost. SmolLM2 on the CPU plugin: attention was
  // 1.9 s of 6.5 s at rows of 512, so a token in such a row cost 1.4 times one that attends to
  // nothing.
  double attention_doubles_at = 1280;
  // Of one execution (dispatch, and the addition of its gradients), in tokens.
  double program_tokens = 32;
};

// Of a row of `length` columns, whatever it holds. The part that differs between two packings of
// the same sequences: with kSegments the squares are the same in all of them and are left out.
inline double RowCost(const CostModel& model, int64_t length) {
  const auto n = static_cast<double>(length);
  return model.attention == AttentionCost::kRow ? n * (1 + n / model.attention_doubles_at) : n;
}

// Of one sequence beside what its row costs: 0 with kRow.
inline double SegmentCost(const CostModel& model, int64_t length) {
  const auto n = static_cast<double>(length);
  return model.attention == AttentionCost::kSegments ? n * n / model.attention_doubles_at : 0;
}

}  // namespace forebay::learner
