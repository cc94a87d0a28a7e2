// The bucket planner: which static shapes are compiled, and which of them a batch runs in.
//
// A program has only static shapes, so rows come in a few lengths. Short rows waste less attention
// (which is quadratic in the row), long rows waste less padding (several sequences share one). Pure
// and deterministic.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"

namespace forebay::learner {

inline constexpr int64_t kShapesMax = 8;

// What a row of `length` columns costs, in units of a token that attends to nothing.
double RowCost(int64_t length);

// How many sequences have each length.
using LengthHistogram = std::map<int64_t, int64_t>;

// The at most `shapes_max` row lengths out of `candidates` (ascending) that make the histogram
// cheapest: dynamic programming over the candidates, where each sequence pays its share of a row
// that is filled with its like. The result is ascending and ends with the smallest candidate that
// covers the longest sequence. kInvalidArgument when no candidate covers it, or a length or a limit
// is below 1.
Result<std::vector<int64_t>> PlanRowLengths(const LengthHistogram& histogram,
                                            std::span<const int64_t> candidates,
                                            int64_t shapes_max);

// Row lengths when nothing is known but the longest episode: tokens_max (rounded up to 64), its
// half, its quarter..., not below 64, at most `shapes_max`; ascending.
std::vector<int64_t> DefaultRowLengths(int64_t tokens_max, int64_t shapes_max);

// One shape a length, with as many rows as `tokens_per_program` pays for (at least one).
// kInvalidArgument for lengths that are not positive and ascending, or more than kShapesMax.
Result<std::vector<BucketShape>> MakeBuckets(std::span<const int64_t> row_lengths,
                                             int64_t tokens_per_program);

// One execution of one shape.
struct MicroPlan {
  BucketShape shape;
  std::vector<Row> rows;  // sequence indices as in `lengths`
};

// Packs the sequences into the cheapest combination of shapes: tries every subset of the row
// lengths, each sequence going to the shortest row length of the subset that holds it. Ties: fewer
// executions, then longer rows. kInvalidArgument when a sequence fits no shape.
Result<std::vector<MicroPlan>> PlanMicroBatches(std::span<const int64_t> lengths,
                                                std::span<const BucketShape> buckets);

}  // namespace forebay::learner
