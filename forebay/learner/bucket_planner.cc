#include "forebay/learner/bucket_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"

namespace forebay::learner {
namespace {

// SmolLM2 on the CPU plugin: attention is 1.9 s of 6.5 s at rows of 512, so a token in such a row
// costs 1.4 times one that attends to nothing.
constexpr double kAttentionDoublesAt = 1280;
constexpr int64_t kShortestDefaultRow = 64;

// What one sequence pays for its share of a row that holds nothing but sequences of its length.
double ShareOfRow(int64_t length, int64_t row) {
  const int64_t sequences = row / length;
  return RowCost(row) / static_cast<double>(sequences);
}

struct Candidate {
  std::vector<MicroPlan> plans;
  double cost = std::numeric_limits<double>::infinity();
};

// Cuts packed rows into executions of `shape`.
void CutRows(std::vector<Row> rows, BucketShape shape, Candidate* out) {
  for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(shape.rows)) {
    MicroPlan plan{.shape = shape};
    const size_t end = std::min(rows.size(), i + static_cast<size_t>(shape.rows));
    for (size_t r = i; r < end; ++r) plan.rows.push_back(std::move(rows[r]));
    out->plans.push_back(std::move(plan));
    out->cost += static_cast<double>(shape.rows) * RowCost(shape.length);
  }
}

// Each sequence in the shortest of `shapes` (ascending) that holds it; the last one holds all.
Result<Candidate> TryShapes(std::span<const int64_t> lengths, std::span<const BucketShape> shapes) {
  std::vector<std::vector<int32_t>> members(shapes.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    size_t s = 0;
    while (shapes[s].length < lengths[i]) ++s;
    members[s].push_back(static_cast<int32_t>(i));
  }
  Candidate candidate{.cost = 0};
  for (size_t s = 0; s < shapes.size(); ++s) {
    std::vector<int64_t> own;
    own.reserve(members[s].size());
    for (const int32_t i : members[s]) own.push_back(lengths[static_cast<size_t>(i)]);
    FB_ASSIGN_OR_RETURN(auto rows, PackRows(own, shapes[s].length));
    for (Row& row : rows) {
      for (Placement& p : row) p.sequence = members[s][static_cast<size_t>(p.sequence)];
    }
    CutRows(std::move(rows), shapes[s], &candidate);
  }
  return candidate;
}

}  // namespace

double RowCost(int64_t length) {
  const auto n = static_cast<double>(length);
  return n * (1 + n / kAttentionDoublesAt);
}

Result<std::vector<int64_t>> PlanRowLengths(const LengthHistogram& histogram,
                                            std::span<const int64_t> candidates,
                                            int64_t shapes_max) {
  if (candidates.empty() || candidates.front() < 1 || shapes_max < 1 ||
      std::ranges::adjacent_find(candidates, std::ranges::greater_equal{}) != candidates.end()) {
    return InvalidArgument(
        "row lengths to choose from must be positive and ascending, and at least one shape "
        "allowed");
  }
  if (histogram.empty()) return std::vector<int64_t>{candidates.back()};
  const int64_t longest = histogram.rbegin()->first;
  if (histogram.begin()->first < 1 || longest > candidates.back()) {
    return InvalidArgument(fmt::format(
        "sequences have {} to {} tokens, but rows have at most {} columns; the longest row "
        "length must hold the longest episode",
        histogram.begin()->first, longest, candidates.back()));
  }
  // Longer candidates than needed can only cost more in this model.
  const auto n =
      static_cast<size_t>(std::ranges::lower_bound(candidates, longest) - candidates.begin()) + 1;
  const auto segment_cost = [&](size_t from,
                                size_t to) {  // lengths in (candidates[from-1], candidates[to-1]]
    const int64_t above = from == 0 ? 0 : candidates[from - 1];
    double cost = 0;
    for (auto it = histogram.upper_bound(above);
         it != histogram.end() && it->first <= candidates[to - 1]; ++it) {
      cost += static_cast<double>(it->second) * ShareOfRow(it->first, candidates[to - 1]);
    }
    return cost;
  };
  // best[k][j]: the cheapest way to serve all lengths up to candidates[j-1] with k shapes, the
  // longest being that one.
  const size_t k_max = std::min(n, static_cast<size_t>(shapes_max));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(k_max + 1, std::vector<double>(n + 1, kNever));
  std::vector<std::vector<size_t>> previous(k_max + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t j = 1; j <= n; ++j) {
    for (size_t i = 0; i < j; ++i) {
      const double cost = segment_cost(i, j);
      for (size_t k = 1; k <= k_max; ++k) {
        if (best[k - 1][i] + cost < best[k][j]) {
          best[k][j] = best[k - 1][i] + cost;
          previous[k][j] = i;
        }
      }
    }
  }
  size_t k = 1;
  for (size_t c = 2; c <= k_max; ++c) {
    if (best[c][n] < best[k][n]) k = c;  // strictly: a shape that gains nothing is not compiled
  }
  std::vector<int64_t> lengths;
  for (size_t j = n; k > 0; j = previous[k][j], --k) lengths.push_back(candidates[j - 1]);
  std::ranges::reverse(lengths);
  return lengths;
}

std::vector<int64_t> DefaultRowLengths(int64_t tokens_max, int64_t shapes_max) {
  const auto round_up = [](int64_t n) {
    return (n + kShortestDefaultRow - 1) / kShortestDefaultRow * kShortestDefaultRow;
  };
  std::vector<int64_t> lengths;
  int64_t length = round_up(std::max<int64_t>(tokens_max, 1));
  do {
    lengths.push_back(length);
    length = round_up(length / 2);
  } while (static_cast<int64_t>(lengths.size()) < shapes_max && length < lengths.back());
  std::ranges::reverse(lengths);
  return lengths;
}

Result<std::vector<BucketShape>> MakeBuckets(std::span<const int64_t> row_lengths,
                                             int64_t tokens_per_program) {
  if (row_lengths.empty() || static_cast<int64_t>(row_lengths.size()) > kShapesMax ||
      row_lengths.front() < 2 ||
      std::ranges::adjacent_find(row_lengths, std::ranges::greater_equal{}) != row_lengths.end()) {
    return InvalidArgument(
        fmt::format("row lengths must be 1 to {} ascending numbers of at least 2, for instance "
                    "[128, 256, 512]; each one is a compiled program",
                    kShapesMax));
  }
  std::vector<BucketShape> buckets;
  for (const int64_t length : row_lengths) {
    buckets.push_back({std::max<int64_t>(1, tokens_per_program / length), length});
  }
  return buckets;
}

Result<std::vector<MicroPlan>> PlanMicroBatches(std::span<const int64_t> lengths,
                                                std::span<const BucketShape> buckets) {
  if (lengths.empty()) return std::vector<MicroPlan>{};
  const int64_t longest = std::ranges::max(lengths);
  if (buckets.empty() || longest > buckets.back().length) {
    return InvalidArgument(
        fmt::format("a sequence of {} tokens fits no compiled row (the longest has {} columns); "
                    "raise the largest "
                    "row length or lower the token budget of an episode",
                    longest, buckets.empty() ? 0 : buckets.back().length));
  }
  Candidate best;
  for (uint32_t subset = 1; subset < (uint32_t{1} << buckets.size()); ++subset) {
    std::vector<BucketShape> shapes;
    for (size_t i = 0; i < buckets.size(); ++i) {
      if ((subset >> i & 1U) != 0) shapes.push_back(buckets[i]);
    }
    if (shapes.back().length < longest) continue;
    FB_ASSIGN_OR_RETURN(Candidate candidate, TryShapes(lengths, shapes));
    if (candidate.cost < best.cost ||
        (candidate.cost == best.cost && candidate.plans.size() <= best.plans.size())) {
      best = std::move(candidate);
    }
  }
  return std::move(best.plans);
}

}  // namespace forebay::learner
