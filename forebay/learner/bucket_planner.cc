#include "forebay/learner/bucket_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"

namespace forebay::learner {
namespace {

constexpr int64_t kCandidatesMax = 256;  // the search is quadratic in them

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// What an entry of the histogram pays for being in rows of `row` columns.
double EntryCost(const CostModel& cost, int64_t length, int64_t row) {
  if (cost.attention == AttentionCost::kSegments) return RowCost(cost, row);
  const int64_t sequences = row / length;
  return RowCost(cost, row) / static_cast<double>(sequences);
}

int64_t Granularity(const ShapePlanOptions& options) {
  return std::lcm(kRowGranularity, options.length_parts);
}

// Multiples of the granularity, and coarser where those would be too many, up to `longest`.
std::vector<int64_t> Candidates(int64_t longest, int64_t granularity) {
  const int64_t step = RoundUp(std::max(granularity, longest / kCandidatesMax), granularity);
  std::vector<int64_t> candidates;
  for (int64_t length = step; length < longest; length += step) candidates.push_back(length);
  candidates.push_back(longest);
  return candidates;
}

int64_t LongestRow(const ShapePlanOptions& options) {
  const int64_t share = (options.tokens_per_program + options.row_parts - 1) / options.row_parts;
  const int64_t tokens = options.cost.attention == AttentionCost::kSegments
                             ? std::max(options.tokens_max, share)
                             : options.tokens_max;
  return RoundUp(std::max<int64_t>(tokens, 1), Granularity(options));
}

std::vector<BucketShape> WithRows(std::span<const int64_t> lengths, int64_t rows) {
  std::vector<BucketShape> shapes;
  for (const int64_t length : lengths) shapes.push_back({rows, length});
  return shapes;
}

// Even steps to `longest`, and the smallest halved twice where there are enough. The last row of a
// batch of many rows may hold anything: with even steps half a step of it is wasted, on average
// 1 / 13 of the longest row with 8 shapes, where halves alone waste 1 / 6. The halves are for
// batches that are smaller than a row.
std::vector<int64_t> EvenRowLengths(int64_t longest, int64_t shapes_max, int64_t granularity) {
  const int64_t halves = shapes_max >= 6 ? 2 : shapes_max >= 4 ? 1 : 0;
  const int64_t steps = shapes_max - halves;
  std::vector<int64_t> lengths;
  const auto add = [&](int64_t length) {
    const int64_t rounded = RoundUp(std::max<int64_t>(length, 1), granularity);
    if (lengths.empty() || rounded > lengths.back()) lengths.push_back(rounded);
  };
  for (int64_t i = halves; i > 0; --i) add((longest / steps) >> i);
  for (int64_t i = 1; i <= steps; ++i) add(longest * i / steps);
  return lengths;
}

// The row lengths that the executions of one batch could do with, were there a shape for each: the
// longest for those that are full, and for the last one what its sequences need, spread over its
// rows.
Status AddExecutions(const std::vector<int64_t>& lengths, int64_t longest, int64_t rows_each,
                     LengthHistogram* histogram) {
  FB_ASSIGN_OR_RETURN(const auto rows, PackRows(lengths, longest));
  const auto each = static_cast<size_t>(rows_each);
  for (size_t begin = 0; begin < rows.size(); begin += each) {
    int64_t longest_sequence = 0, longest_row = 0, tokens = 0;
    for (size_t r = begin; r < std::min(rows.size(), begin + each); ++r) {
      int64_t filled = 0;
      for (const Placement& p : rows[r]) {
        const int64_t length = lengths[static_cast<size_t>(p.sequence)];
        longest_sequence = std::max(longest_sequence, length);
        filled += length;
      }
      longest_row = std::max(longest_row, filled);
      tokens += filled;
    }
    const bool full = begin + each <= rows.size();
    const int64_t spread = std::max(longest_sequence, (tokens + rows_each - 1) / rows_each);
    ++(*histogram)[full ? longest_row : spread];
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<int64_t>> PlanRowLengths(const LengthHistogram& histogram,
                                            std::span<const int64_t> candidates, int64_t shapes_max,
                                            const CostModel& cost) {
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
  // best[k][j]: the cheapest way to serve all lengths up to candidates[j-1] with k shapes, the
  // longest being that one.
  const size_t k_max = std::min(n, static_cast<size_t>(shapes_max));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(k_max + 1, std::vector<double>(n + 1, kNever));
  std::vector<std::vector<size_t>> previous(k_max + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t j = 1; j <= n; ++j) {
    double segment = 0;  // of the lengths in (candidates[i-1], candidates[j-1]]
    auto entry = histogram.upper_bound(candidates[j - 1]);
    for (size_t i = j; i-- > 0;) {
      const int64_t above = i == 0 ? 0 : candidates[i - 1];
      while (entry != histogram.begin() && std::prev(entry)->first > above) {
        --entry;
        segment +=
            static_cast<double>(entry->second) * EntryCost(cost, entry->first, candidates[j - 1]);
      }
      for (size_t k = 1; k <= k_max; ++k) {
        if (best[k - 1][i] + segment < best[k][j]) {
          best[k][j] = best[k - 1][i] + segment;
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
  std::vector<int64_t> lengths;
  int64_t length = RoundUp(std::max<int64_t>(tokens_max, 1), kRowGranularity);
  do {
    lengths.push_back(length);
    length = RoundUp(length / 2, kRowGranularity);
  } while (static_cast<int64_t>(lengths.size()) < shapes_max && length < lengths.back());
  std::ranges::reverse(lengths);
  return lengths;
}

Result<std::vector<BucketShape>> MakeBuckets(std::span<const int64_t> row_lengths,
                                             int64_t tokens_per_program, int64_t row_parts) {
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
    const int64_t rows = std::max<int64_t>(1, tokens_per_program / length);
    buckets.push_back({RoundUp(rows, row_parts), length});
  }
  return buckets;
}

std::vector<BucketShape> DefaultShapes(const ShapePlanOptions& options) {
  const int64_t longest = LongestRow(options);
  if (options.cost.attention == AttentionCost::kSegments) {
    return WithRows(EvenRowLengths(longest, options.shapes_max, Granularity(options)),
                    options.row_parts);
  }
  std::vector<int64_t> lengths = DefaultRowLengths(longest, options.shapes_max);
  for (int64_t& length : lengths) length = RoundUp(length, Granularity(options));
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  auto buckets = MakeBuckets(lengths, options.tokens_per_program, options.row_parts);
  FB_CHECK(buckets.ok(), "default row lengths are ascending");
  return *buckets;
}

Result<std::vector<BucketShape>> PlanShapes(std::span<const std::vector<int64_t>> batches,
                                            const ShapePlanOptions& options) {
  if (options.tokens_max < 1 || options.tokens_per_program < 1 || options.shapes_max < 1 ||
      options.shapes_max > kShapesMax || options.row_parts < 1 || options.length_parts < 1) {
    return InvalidArgument(
        fmt::format("shapes are planned for positive token limits and 1 to {} shapes", kShapesMax));
  }
  const int64_t longest = LongestRow(options);
  const bool segments = options.cost.attention == AttentionCost::kSegments;
  LengthHistogram histogram;
  for (const auto& lengths : batches) {
    if (!segments) {
      for (const int64_t length : lengths) ++histogram[length];
      continue;
    }
    FB_RETURN_IF_ERROR(AddExecutions(lengths, longest, options.row_parts, &histogram));
  }
  if (histogram.empty()) return DefaultShapes(options);
  ++histogram[longest];  // what was not seen yet must fit, too
  FB_ASSIGN_OR_RETURN(const auto lengths,
                      PlanRowLengths(histogram, Candidates(longest, Granularity(options)),
                                     options.shapes_max, options.cost));
  if (segments) return WithRows(lengths, options.row_parts);
  return MakeBuckets(lengths, options.tokens_per_program, options.row_parts);
}

}  // namespace forebay::learner
