// MicroPlan: which of the compiled shapes a batch runs in, and which sequences share a row.
//
// The look-ahead window of the packing is the batch: all sequences of one optimizer step are known
// before the first is placed, and their gradients are summed over the executions. So a step trains
// on exactly the sequences that were leased, whatever the shapes: nothing is cut, dropped or
// carried over. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"

namespace forebay::learner {

// One execution of one shape.
struct MicroPlan {
  BucketShape shape;
  std::vector<Row> rows;  // sequence indices as in `lengths`
};

// Packs the sequences into the cheapest combination of shapes that was found. Tried are, for each
// subset of the shapes:
// - best-fit decreasing into rows of its longest, each row then moved to the shortest that holds
// it;
// - with kRow also each sequence packed with its like, in the shortest that holds it.
// What the last execution of a shape of several rows holds is then spread over the rows of the
// cheapest shape that takes it in one. Ties: fewer executions. `buckets` ascend in length.
// kInvalidArgument when a sequence fits no shape.
Result<std::vector<MicroPlan>> PlanMicroBatches(std::span<const int64_t> lengths,
                                                std::span<const BucketShape> buckets,
                                                const CostModel& cost = {});

// What these executions cost, the sequences' own attention (SegmentCost) left out.
double PlanCost(std::span<const MicroPlan> plans, const CostModel& cost);

}  // namespace forebay::learner
