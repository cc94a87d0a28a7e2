#include "forebay/learner/micro_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"

namespace forebay::learner {
namespace {

using Shapes = std::vector<BucketShape>;

double ExecutionCost(const CostModel& cost, BucketShape shape) {
  return static_cast<double>(shape.rows) * RowCost(cost, shape.length) + cost.program_tokens;
}

struct Candidate {
  std::vector<std::vector<Row>> rows;  // one list a shape of `shapes`
  Shapes shapes;
  int64_t executions = 0;
  double cost = std::numeric_limits<double>::infinity();
};

// Sums up how often each shape runs.
void Price(const CostModel& cost, Candidate* candidate) {
  candidate->cost = 0;
  for (size_t s = 0; s < candidate->shapes.size(); ++s) {
    const BucketShape shape = candidate->shapes[s];
    const auto rows = static_cast<int64_t>(candidate->rows[s].size());
    const int64_t executions = (rows + shape.rows - 1) / shape.rows;
    candidate->executions += executions;
    candidate->cost += static_cast<double>(executions) * ExecutionCost(cost, shape);
  }
}

size_t ShortestThatHolds(const Shapes& shapes, int64_t tokens) {
  size_t s = 0;
  while (shapes[s].length < tokens) ++s;
  return s;
}

int64_t Filled(const Row& row, std::span<const int64_t> lengths) {
  const Placement& last = row.back();
  return last.begin + lengths[static_cast<size_t>(last.sequence)];
}

// `packed` are rows of the longest shape; each moves to the shortest shape that holds it.
Candidate Shrink(std::span<const int64_t> lengths, const Shapes& shapes,
                 const std::vector<Row>& packed, const CostModel& cost) {
  Candidate out{.rows = std::vector<std::vector<Row>>(shapes.size()), .shapes = shapes};
  for (const Row& row : packed) {
    out.rows[ShortestThatHolds(shapes, Filled(row, lengths))].push_back(row);
  }
  Price(cost, &out);
  return out;
}

// Each sequence in the shortest of `shapes` that holds it.
Result<Candidate> Partition(std::span<const int64_t> lengths, const Shapes& shapes,
                            const CostModel& cost) {
  std::vector<std::vector<int32_t>> members(shapes.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    members[ShortestThatHolds(shapes, lengths[i])].push_back(static_cast<int32_t>(i));
  }
  Candidate out{.rows = std::vector<std::vector<Row>>(shapes.size()), .shapes = shapes};
  for (size_t s = 0; s < shapes.size(); ++s) {
    std::vector<int64_t> own;
    own.reserve(members[s].size());
    for (const int32_t i : members[s]) own.push_back(lengths[static_cast<size_t>(i)]);
    FB_ASSIGN_OR_RETURN(out.rows[s], PackRows(own, shapes[s].length));
    for (Row& row : out.rows[s]) {
      for (Placement& p : row) p.sequence = members[s][static_cast<size_t>(p.sequence)];
    }
  }
  Price(cost, &out);
  return out;
}

void KeepCheaper(Candidate candidate, Candidate* best) {
  if (candidate.cost < best->cost ||
      (candidate.cost == best->cost && candidate.executions < best->executions)) {
    *best = std::move(candidate);
  }
}

std::vector<MicroPlan> CutRows(Candidate candidate) {
  std::vector<MicroPlan> plans;
  for (size_t s = 0; s < candidate.shapes.size(); ++s) {
    std::vector<Row>& rows = candidate.rows[s];
    const auto each = static_cast<size_t>(candidate.shapes[s].rows);
    for (size_t i = 0; i < rows.size(); i += each) {
      MicroPlan plan{.shape = candidate.shapes[s]};
      for (size_t r = i; r < std::min(rows.size(), i + each); ++r) {
        plan.rows.push_back(std::move(rows[r]));
      }
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

// The rows of `plan`, packed anew into the cheapest shape that holds them in one execution.
Status Spread(std::span<const int64_t> lengths, std::span<const BucketShape> buckets,
              const CostModel& cost, MicroPlan* plan) {
  std::vector<int32_t> members;
  std::vector<int64_t> own;
  for (const Row& row : plan->rows) {
    for (const Placement& p : row) {
      members.push_back(p.sequence);
      own.push_back(lengths[static_cast<size_t>(p.sequence)]);
    }
  }
  for (const BucketShape shape : buckets) {
    if (shape.length < std::ranges::max(own) ||
        ExecutionCost(cost, shape) >= ExecutionCost(cost, plan->shape)) {
      continue;
    }
    FB_ASSIGN_OR_RETURN(std::vector<Row> rows, PackRows(own, shape.length));
    if (static_cast<int64_t>(rows.size()) > shape.rows) continue;
    for (Row& row : rows) {
      for (Placement& p : row) p.sequence = members[static_cast<size_t>(p.sequence)];
    }
    *plan = {shape, std::move(rows)};
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<MicroPlan>> PlanMicroBatches(std::span<const int64_t> lengths,
                                                std::span<const BucketShape> buckets,
                                                const CostModel& cost) {
  if (lengths.empty()) return std::vector<MicroPlan>{};
  const int64_t longest = std::ranges::max(lengths);
  if (buckets.empty() || longest > buckets.back().length) {
    return InvalidArgument(fmt::format(
        "a sequence of {} tokens fits no compiled row (the longest has {} columns); raise the "
        "largest row length or lower the token budget of an episode",
        longest, buckets.empty() ? 0 : buckets.back().length));
  }
  Candidate best;
  for (size_t top = buckets.size(); top-- > 0;) {
    if (buckets[top].length < longest) break;
    FB_ASSIGN_OR_RETURN(const std::vector<Row> packed, PackRows(lengths, buckets[top].length));
    // Every subset whose longest is `top`.
    for (uint32_t subset = 0; subset < uint32_t{1} << top; ++subset) {
      Shapes shapes;
      for (size_t i = 0; i < top; ++i) {
        if ((subset >> i & 1U) != 0) shapes.push_back(buckets[i]);
      }
      shapes.push_back(buckets[top]);
      KeepCheaper(Shrink(lengths, shapes, packed, cost), &best);
      if (cost.attention == AttentionCost::kRow) {
        FB_ASSIGN_OR_RETURN(Candidate candidate, Partition(lengths, shapes, cost));
        KeepCheaper(std::move(candidate), &best);
      }
    }
  }
  std::vector<MicroPlan> plans = CutRows(std::move(best));
  for (MicroPlan& plan : plans) {
    if (static_cast<int64_t>(plan.rows.size()) == plan.shape.rows) continue;
    FB_RETURN_IF_ERROR(Spread(lengths, buckets, cost, &plan));
  }
  return plans;
}

double PlanCost(std::span<const MicroPlan> plans, const CostModel& cost) {
  double sum = 0;
  for (const MicroPlan& plan : plans) sum += ExecutionCost(cost, plan.shape);
  return sum;
}

}  // namespace forebay::learner
