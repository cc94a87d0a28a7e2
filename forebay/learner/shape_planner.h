// ShapePlanner: the live history of batches, and whether other shapes would serve them better.
//
// Not thread-safe; a copy can be handed to another thread (PlanBetter takes tens of milliseconds).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/bucket_planner.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {

struct ShapePlannerOptions {
  ShapePlanOptions plan;
  size_t window_batches = 32;    // the newest ones that count
  size_t batches_min = 4;        // before the first proposal
  double gain_min = 0.01;        // of the cost; what gains less is not worth compiling
  size_t sequences_max = 65536;  // in the window, so that memory is bounded
};

class ShapePlanner {
 public:
  explicit ShapePlanner(const ShapePlannerOptions& options) : options_(options) {}

  // The lengths of the sequences of one step. An empty batch does not count.
  void Observe(std::span<const int64_t> lengths);

  // Shapes that would have made the window at least gain_min cheaper than `current`, judged by
  // packing each of its batches; nullopt when there are none, or too few batches were seen.
  std::optional<std::vector<BucketShape>> PlanBetter(std::span<const BucketShape> current) const;

  // What the window costs in `shapes` (CostModel), attention within segments included.
  // kInvalidArgument when a sequence does not fit.
  Result<double> Cost(std::span<const BucketShape> shapes) const;

  size_t batches() const { return window_.size(); }

 private:
  ShapePlannerOptions options_;
  std::deque<std::vector<int64_t>> window_;
  size_t sequences_ = 0;
};

}  // namespace forebay::learner
