// Goal: the planner's shapes cover every length, its dynamic programme is optimal, and batches run
// in the cheapest shapes.
#include "forebay/learner/bucket_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;

using Lengths = std::vector<int64_t>;

double HistogramCost(const LengthHistogram& histogram, const Lengths& rows) {
  double cost = 0;
  for (const auto& [length, count] : histogram) {
    const auto row = *std::ranges::lower_bound(rows, length);
    cost += static_cast<double>(count) * RowCost(row) / static_cast<double>(row / length);
  }
  return cost;
}

TEST(BucketPlanner, MatchesExhaustiveSearch) {
  Rng rng(3);
  const Lengths candidates = {16, 32, 48, 64, 96, 128, 192, 256};
  for (int round = 0; round < 50; ++round) {
    LengthHistogram histogram;
    for (int i = 0; i < 12; ++i) {
      histogram[static_cast<int64_t>(1 + rng.Below(256))] += static_cast<int64_t>(1 + rng.Below(9));
    }
    const int64_t shapes_max = static_cast<int64_t>(1 + rng.Below(4));
    const auto planned = PlanRowLengths(histogram, candidates, shapes_max);
    ASSERT_TRUE(planned.ok());
    ASSERT_LE(static_cast<int64_t>(planned->size()), shapes_max);
    const int64_t longest = histogram.rbegin()->first;
    ASSERT_GE(planned->back(), longest);
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t subset = 1; subset < 256; ++subset) {
      if (std::popcount(subset) > shapes_max) continue;
      Lengths rows;
      for (size_t i = 0; i < 8; ++i) {
        if ((subset >> i & 1U) != 0) rows.push_back(candidates[i]);
      }
      // As the planner: no row longer than the first candidate that covers all.
      if (rows.back() != *std::ranges::lower_bound(candidates, longest)) continue;
      best = std::min(best, HistogramCost(histogram, rows));
    }
    EXPECT_NEAR(HistogramCost(histogram, *planned), best, 1e-9 * best);
  }
}

TEST(BucketPlanner, AShapeThatGainsNothingIsNotCompiled) {
  const auto rows = PlanRowLengths({{100, 50}}, Lengths{64, 128, 256}, 8);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(*rows, (Lengths{128}));
}

TEST(BucketPlanner, RefusesWhatItCannotCover) {
  const auto rows = PlanRowLengths({{300, 1}}, Lengths{64, 128}, 8);
  ASSERT_FALSE(rows.ok());
  EXPECT_THAT(rows.status().message(), HasSubstr("300 tokens"));
  EXPECT_FALSE(PlanRowLengths({{0, 1}}, Lengths{64}, 8).ok());
  EXPECT_FALSE(PlanRowLengths({{3, 1}}, Lengths{}, 8).ok());
  EXPECT_FALSE(PlanRowLengths({{3, 1}}, Lengths{64, 64}, 8).ok());
  EXPECT_FALSE(PlanRowLengths({{3, 1}}, Lengths{64}, 0).ok());
  EXPECT_EQ(*PlanRowLengths({}, Lengths{64, 128}, 8), (Lengths{128}));
}

TEST(BucketPlanner, DefaultsHalveDownFromTheTokenBudget) {
  EXPECT_EQ(DefaultRowLengths(512, 8), (Lengths{64, 128, 256, 512}));
  EXPECT_EQ(DefaultRowLengths(512, 2), (Lengths{256, 512}));
  EXPECT_EQ(DefaultRowLengths(100, 8), (Lengths{64, 128}));
  EXPECT_EQ(DefaultRowLengths(1, 8), (Lengths{64}));
}

TEST(BucketPlanner, W2_ShapesAreCheckedWhenTheyAreMade) {
  const auto buckets = MakeBuckets(Lengths{128, 512, 2048}, 1024);
  ASSERT_TRUE(buckets.ok());
  EXPECT_EQ(*buckets, (std::vector<BucketShape>{{8, 128}, {2, 512}, {1, 2048}}));
  EXPECT_FALSE(MakeBuckets(Lengths{}, 1024).ok());
  EXPECT_FALSE(MakeBuckets(Lengths{512, 128}, 1024).ok());
  EXPECT_FALSE(MakeBuckets(Lengths{0, 128}, 1024).ok());
  EXPECT_FALSE(MakeBuckets(Lengths{2, 3, 4, 5, 6, 7, 8, 9, 10}, 1024).ok());
}

TEST(MicroPlan, W2_ABatchThatDividesBadlyIsPlannedWhole) {
  // 7 sequences never fill shapes of 2 rows: nothing is truncated, the last execution is padded.
  const Lengths lengths(7, 500);
  const auto plans = PlanMicroBatches(lengths, std::vector<BucketShape>{{2, 512}});
  ASSERT_TRUE(plans.ok());
  EXPECT_EQ(plans->size(), 4);
  std::vector<int> seen(7, 0);
  for (const auto& plan : *plans) {
    for (const Row& row : plan.rows) {
      for (const Placement& p : row) ++seen[static_cast<size_t>(p.sequence)];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(7, 1));
}

TEST(MicroPlan, ShortSequencesUseShortRowsAndLongOnesDoNot) {
  const std::vector<BucketShape> buckets = {{8, 128}, {2, 512}};
  const auto short_ones = PlanMicroBatches(Lengths(8, 120), buckets);
  ASSERT_TRUE(short_ones.ok());
  ASSERT_EQ(short_ones->size(), 1);
  EXPECT_EQ(short_ones->front().shape, (BucketShape{8, 128}));
  // One long sequence with a few short ones: one execution with shared rows beats two.
  const auto mixed = PlanMicroBatches(Lengths{400, 100, 100, 100}, buckets);
  ASSERT_TRUE(mixed.ok());
  ASSERT_EQ(mixed->size(), 1);
  EXPECT_EQ(mixed->front().shape, (BucketShape{2, 512}));
}

TEST(MicroPlan, NothingToDoAndNothingThatFits) {
  EXPECT_TRUE(PlanMicroBatches({}, std::vector<BucketShape>{{2, 512}})->empty());
  const auto plans = PlanMicroBatches(Lengths{513}, std::vector<BucketShape>{{2, 512}});
  ASSERT_FALSE(plans.ok());
  EXPECT_THAT(plans.status().message(), HasSubstr("513 tokens"));
}

}  // namespace
}  // namespace forebay::learner
