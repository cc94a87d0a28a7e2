// TrainBatch: a leased batch as packed micro-batches. Pure: no device, no clock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/advantages.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/learner/token_weights.h"

namespace forebay::learner {

struct TrainBatchOptions {
  AdvantageKind advantage = AdvantageKind::kGrpo;
  AggregationOptions aggregation;
  // Sequences whose advantage is exactly 0 have no gradient: leave them out of the rows.
  // Denominators count them still, so the update is the same; metrics of the loss tokens then speak
  // about the others only.
  bool skip_zero_advantage = true;
  int64_t max_staleness = 4;  // in policy versions
  CostModel cost;
};

struct TrainBatch {
  // Empty when there is nothing to learn from: no loss token, or only zero advantages.
  std::vector<MicroBatch> micro_batches;
  std::vector<int64_t> lengths;  // of the sequences in them
  // The fields "of the trajectories" and "of what the device was given" are set.
  StepMetrics metrics;
};

// Advantages by group, token weights over the whole batch, then packing. Errors:
// kFailedPrecondition when a trajectory is older than max_staleness at batch.learner_version, newer
// than it, or has an outcome that never trains (the buffer broke its promise: nothing is trained);
// kInvalidArgument for one that was sampled at temperature 0 or that no shape holds.
Result<TrainBatch> BuildTrainBatch(const buffer::Batch& batch, const TrainBatchOptions& options,
                                   std::span<const BucketShape> buckets);

}  // namespace forebay::learner
