// The bucket planner: which static shapes are compiled.
//
// A program has only static shapes, so rows come in a few lengths. Where attention is quadratic in
// the row, short rows waste less of it and long rows waste less padding (several sequences share
// one); where it is quadratic in the segments, one long row takes everything, and shorter ones are
// for what is left at the end of a batch. Pure and deterministic.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {

inline constexpr int64_t kShapesMax = 8;
inline constexpr int64_t kRowGranularity = 64;  // row lengths that are chosen are multiples of it

// How many sequences have each length.
using LengthHistogram = std::map<int64_t, int64_t>;

// The at most `shapes_max` row lengths out of `candidates` (ascending) that make the histogram
// cheapest: dynamic programming over the candidates. Each entry of the histogram takes the smallest
// of the lengths that holds it. With kRow an entry is a sequence, which pays its share of a row
// that is filled with its like; with kSegments it is what one packed row holds, and pays for the
// whole row. The result is ascending and ends with the smallest candidate that covers the longest
// entry. kInvalidArgument when no candidate covers it, or a length or a limit is below 1.
Result<std::vector<int64_t>> PlanRowLengths(const LengthHistogram& histogram,
                                            std::span<const int64_t> candidates, int64_t shapes_max,
                                            const CostModel& cost = {});

// Row lengths when nothing is known but the longest episode: tokens_max (rounded up to 64), its
// half, its quarter..., not below 64, at most `shapes_max`; ascending.
std::vector<int64_t> DefaultRowLengths(int64_t tokens_max, int64_t shapes_max);

// One shape a length, with as many rows as `tokens_per_program` pays for (at least one), rounded up
// to a multiple of `row_parts`. kInvalidArgument for lengths that are not positive and ascending,
// or more than kShapesMax.
Result<std::vector<BucketShape>> MakeBuckets(std::span<const int64_t> row_lengths,
                                             int64_t tokens_per_program, int64_t row_parts = 1);

struct ShapePlanOptions {
  CostModel cost;
  int64_t tokens_max = 512;           // the longest sequence that may ever come
  int64_t tokens_per_program = 1024;  // rows * row length, where tokens_max leaves the choice
  int64_t shapes_max = 4;
  // On a mesh: rows are a multiple of the one, row lengths of the other (and of kRowGranularity).
  int64_t row_parts = 1, length_parts = 1;
};

// Shapes before any batch was seen. With kRow DefaultRowLengths in MakeBuckets; with kSegments
// single rows (row_parts of them): of the larger of tokens_max and tokens_per_program, of even
// parts of it, and with four shapes or more of the smallest part halved once or twice.
std::vector<BucketShape> DefaultShapes(const ShapePlanOptions& options);

// The shapes that make batches like these cheapest; `batches` are the lengths of the sequences of
// one step each. The longest shape holds tokens_max. kInvalidArgument for a sequence that is longer
// than that, or an option below 1. Without any sequence: DefaultShapes.
Result<std::vector<BucketShape>> PlanShapes(std::span<const std::vector<int64_t>> batches,
                                            const ShapePlanOptions& options);

}  // namespace forebay::learner
