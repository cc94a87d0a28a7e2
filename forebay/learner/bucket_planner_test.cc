// Goal: the planner's shapes cover every length, and its dynamic programme is optimal.
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
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;

using Lengths = std::vector<int64_t>;
constexpr CostModel kRowModel{.attention = AttentionCost::kRow};

double HistogramCost(const LengthHistogram& histogram, const Lengths& rows) {
  double cost = 0;
  for (const auto& [length, count] : histogram) {
    const auto row = *std::ranges::lower_bound(rows, length);
    cost +=
        static_cast<double>(count) * RowCost(kRowModel, row) / static_cast<double>(row / length);
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
    const auto planned = PlanRowLengths(histogram, candidates, shapes_max, kRowModel);
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

TEST(BucketPlanner, MatchesExhaustiveSearchWhenARowPaysForItself) {
  Rng rng(4);
  const CostModel cost{.attention = AttentionCost::kSegments};
  const Lengths candidates = {16, 32, 48, 64, 96, 128, 192, 256};
  for (int round = 0; round < 50; ++round) {
    LengthHistogram filled;
    for (int i = 0; i < 12; ++i) ++filled[static_cast<int64_t>(1 + rng.Below(256))];
    filled[256] += 2;
    const auto planned = PlanRowLengths(filled, candidates, 3, cost);
    ASSERT_TRUE(planned.ok());
    const auto padded = [&](const Lengths& rows) {
      int64_t sum = 0;
      for (const auto& [length, count] : filled) {
        sum += count * *std::ranges::lower_bound(rows, length);
      }
      return sum;
    };
    int64_t best = std::numeric_limits<int64_t>::max();
    for (uint32_t subset = 128; subset < 256; ++subset) {  // the longest is always in
      if (std::popcount(subset) > 3) continue;
      Lengths rows;
      for (size_t i = 0; i < 8; ++i) {
        if ((subset >> i & 1U) != 0) rows.push_back(candidates[i]);
      }
      best = std::min(best, padded(rows));
    }
    EXPECT_EQ(padded(*planned), best);
  }
}

TEST(BucketPlanner, AShapeThatGainsNothingIsNotCompiled) {
  const auto rows = PlanRowLengths({{100, 50}}, Lengths{64, 128, 256}, 8, kRowModel);
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

TEST(PlanShapes, RowAttentionPutsSequencesInRowsOfTheirLength) {
  std::vector<Lengths> batches(4, Lengths(64, 120));
  const auto shapes = PlanShapes(
      batches, {.cost = kRowModel, .tokens_max = 512, .tokens_per_program = 1024, .shapes_max = 2});
  ASSERT_TRUE(shapes.ok());
  EXPECT_EQ(*shapes, (std::vector<BucketShape>{{8, 128}, {2, 512}}));
}

TEST(PlanShapes, SegmentAttentionPlansForWhatIsLeftAtTheEndOfABatch) {
  const CostModel cost{.attention = AttentionCost::kSegments};
  // 1,300 tokens a batch: a full row of 1,024, and 276 (or less) left.
  std::vector<Lengths> batches(4, Lengths(13, 100));
  const auto shapes = PlanShapes(
      batches, {.cost = cost, .tokens_max = 512, .tokens_per_program = 1024, .shapes_max = 8});
  ASSERT_TRUE(shapes.ok());
  EXPECT_EQ(*shapes, (std::vector<BucketShape>{{1, 320}, {1, 1024}}));
}

TEST(PlanShapes, LongEpisodesDoNotMakeTheSearchLong) {
  const CostModel cost{.attention = AttentionCost::kSegments};
  const auto shapes = PlanShapes(std::vector<Lengths>{{131'000, 90'000, 77}, {64, 1}},
                                 {.cost = cost, .tokens_max = 131'072, .shapes_max = 8});
  ASSERT_TRUE(shapes.ok());
  EXPECT_EQ(shapes->back(), (BucketShape{1, 131'072}));
}

TEST(PlanShapes, W2_DefaultsHoldTheLongestEpisode) {
  const ShapePlanOptions row{
      .cost = kRowModel, .tokens_max = 500, .tokens_per_program = 1024, .shapes_max = 4};
  EXPECT_EQ(DefaultShapes(row), (std::vector<BucketShape>{{16, 64}, {8, 128}, {4, 256}, {2, 512}}));
  EXPECT_EQ(*PlanShapes({}, row), DefaultShapes(row));
  ShapePlanOptions segments = row;
  segments.cost.attention = AttentionCost::kSegments;
  EXPECT_EQ(DefaultShapes(segments),
            (std::vector<BucketShape>{{1, 192}, {1, 384}, {1, 704}, {1, 1024}}));
  segments.tokens_per_program = 8192;
  segments.shapes_max = 8;
  EXPECT_EQ(
      DefaultShapes(segments),
      (std::vector<BucketShape>{
          {1, 384}, {1, 704}, {1, 1408}, {1, 2752}, {1, 4096}, {1, 5504}, {1, 6848}, {1, 8192}}));
  segments.tokens_per_program = 100;  // too small for so many
  segments.tokens_max = 100;
  EXPECT_EQ(DefaultShapes(segments), (std::vector<BucketShape>{{1, 64}, {1, 128}}));
  segments.tokens_max = 3000;
  EXPECT_EQ(DefaultShapes(segments).back(), (BucketShape{1, 3008}));
}

TEST(PlanShapes, W2_OnAMeshRowsAndLengthsDivide) {
  for (const auto attention : {AttentionCost::kRow, AttentionCost::kSegments}) {
    const ShapePlanOptions options{.cost = {.attention = attention},
                                   .tokens_max = 500,
                                   .tokens_per_program = 4096,
                                   .shapes_max = 4,
                                   .row_parts = 6,
                                   .length_parts = 96};
    const auto planned = PlanShapes(std::vector<Lengths>{{400, 30, 20}, {90, 90}}, options);
    ASSERT_TRUE(planned.ok());
    for (const auto& shapes : {DefaultShapes(options), *planned}) {
      ASSERT_FALSE(shapes.empty());
      EXPECT_GE(shapes.back().length, 500);
      for (const BucketShape shape : shapes) {
        EXPECT_EQ(shape.rows % 6, 0);
        EXPECT_EQ(shape.length % 96, 0);
      }
    }
  }
  EXPECT_EQ(MakeBuckets(Lengths{128, 512}, 1024, 4)->back(), (BucketShape{4, 512}));
}

TEST(PlanShapes, RefusesWhatItCannotHold) {
  for (const auto attention : {AttentionCost::kRow, AttentionCost::kSegments}) {
    const ShapePlanOptions options{
        .cost = {.attention = attention}, .tokens_max = 512, .tokens_per_program = 512};
    EXPECT_FALSE(PlanShapes(std::vector<Lengths>{{513}}, options).ok());
    EXPECT_FALSE(PlanShapes(std::vector<Lengths>{{0}}, options).ok());
  }
  EXPECT_FALSE(PlanShapes({}, {.shapes_max = 0}).ok());
  EXPECT_FALSE(PlanShapes({}, {.shapes_max = 9}).ok());
  EXPECT_FALSE(PlanShapes({}, {.tokens_max = 0}).ok());
}

}  // namespace
}  // namespace forebay::learner
