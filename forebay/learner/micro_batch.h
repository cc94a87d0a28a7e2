// MicroBatch: packed rows as the arrays that a train program takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/learner/packing.h"

namespace forebay::learner {

// A static shape that a program is compiled for.
struct BucketShape {
  int64_t rows = 0;
  int64_t length = 0;  // columns of a row
  int64_t tokens() const { return rows * length; }
  std::string ToString() const;  // "[2 x 512]"
  friend bool operator==(const BucketShape&, const BucketShape&) = default;
};

// One sequence with all that its loss needs. Views: the owner of the columns outlives it.
struct TrainSequence {
  std::span<const int32_t> tokens;
  std::span<const uint8_t> loss_mask;       // of the token itself: 1 where the policy sampled it
  std::span<const float> rollout_logprobs;  // of the token itself
  double advantage = 0;
  double token_weight = 0;  // of each of its loss tokens (TokenWeights)
  double temperature = 1;
};

// The planes of MicroBatch::ints and ::floats, each [rows, length]. Column t of a loss plane speaks
// about the token at t + 1 of the same segment, which column t predicts.
enum IntPlane { kTokens, kTargets, kSegments, kPositions, kIntPlanes };
enum FloatPlane { kWeights, kAdvantages, kRolloutLogprobs, kInverseTemperature, kFloatPlanes };

struct MicroBatch {
  BucketShape shape;
  std::vector<int32_t> ints;  // [kIntPlanes, rows, length]
  std::vector<float> floats;  // [kFloatPlanes, rows, length]; a column without loss has weight 0
  int64_t real_tokens = 0;    // not padding
  int64_t loss_tokens = 0;

  std::span<int32_t> plane(IntPlane p);
  std::span<float> plane(FloatPlane p);
  std::span<const int32_t> plane(IntPlane p) const;
  std::span<const float> plane(FloatPlane p) const;
};

// Lays out rows.size() <= shape.rows rows; the rest is padding (segment 0, all zeros). Segments
// count from 1 in each row and positions restart at 0. A loss token that opens its sequence has
// nothing that predicts it and takes no part; Validate and TokenWeights' caller count it out.
// CHECKs that rows fit.
MicroBatch FillMicroBatch(std::span<const Row> rows, std::span<const TrainSequence> sequences,
                          BucketShape shape);

// Loss tokens that something predicts: all but one at column 0.
int64_t TrainableTokens(std::span<const uint8_t> loss_mask);

}  // namespace forebay::learner
