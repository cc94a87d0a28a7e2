#include "forebay/learner/shape_planner.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/bucket_planner.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/micro_plan.h"

namespace forebay::learner {

void ShapePlanner::Observe(std::span<const int64_t> lengths) {
  if (lengths.empty()) return;
  window_.emplace_back(lengths.begin(), lengths.end());
  sequences_ += lengths.size();
  while (window_.size() > options_.window_batches ||
         (sequences_ > options_.sequences_max && window_.size() > 1)) {
    sequences_ -= window_.front().size();
    window_.pop_front();
  }
}

Result<double> ShapePlanner::Cost(std::span<const BucketShape> shapes) const {
  const CostModel& cost = options_.plan.cost;
  double sum = 0;
  for (const auto& lengths : window_) {
    FB_ASSIGN_OR_RETURN(const auto plans, PlanMicroBatches(lengths, shapes, cost));
    sum += PlanCost(plans, cost);
    for (const int64_t length : lengths) sum += SegmentCost(cost, length);
  }
  return sum;
}

std::optional<std::vector<BucketShape>> ShapePlanner::PlanBetter(
    std::span<const BucketShape> current) const {
  if (window_.size() < options_.batches_min) return std::nullopt;
  const std::vector<std::vector<int64_t>> batches(window_.begin(), window_.end());
  auto planned = PlanShapes(batches, options_.plan);
  if (!planned.ok()) return std::nullopt;  // a sequence beyond tokens_max: its step says so
  const Result<double> now = Cost(current), then = Cost(*planned);
  if (!now.ok() || !then.ok()) return std::nullopt;
  if (*then > *now * (1 - options_.gain_min)) return std::nullopt;
  return std::move(*planned);
}

}  // namespace forebay::learner
