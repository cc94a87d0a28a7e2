// Goal: every sequence of a batch is in exactly one execution, whatever the shapes, and the shapes
// are the cheapest.
#include "forebay/learner/micro_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/bucket_planner.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;

using Lengths = std::vector<int64_t>;
constexpr CostModel kRowModel{.attention = AttentionCost::kRow};
constexpr CostModel kSegmentModel{.attention = AttentionCost::kSegments};

int64_t PaddedTokens(std::span<const MicroPlan> plans) {
  int64_t sum = 0;
  for (const MicroPlan& plan : plans) sum += plan.shape.tokens();
  return sum;
}

// Log-normal, median 300, p99 6,000, not above `longest`.
Lengths AgentLengths(Rng& rng, int count, int64_t longest) {
  Lengths lengths;
  for (int i = 0; i < count; ++i) {
    const double length = 300 * std::exp(std::log(20.0) / 2.326 * rng.Normal());
    lengths.push_back(std::clamp(static_cast<int64_t>(length), int64_t{2}, longest));
  }
  return lengths;
}

TEST(MicroPlan, T5_EverySequenceRunsExactlyOnceInAnyShapes) {
  Rng rng(21);
  for (int round = 0; round < 100; ++round) {
    std::vector<BucketShape> shapes;
    int64_t length = 0;
    const uint64_t count = 1 + rng.Below(5);
    for (uint64_t i = 0; i < count; ++i) {
      length += static_cast<int64_t>(1 + rng.Below(90));
      shapes.push_back({static_cast<int64_t>(1 + rng.Below(4)), length});
    }
    Lengths lengths(rng.Below(40));
    for (auto& n : lengths) {
      n = static_cast<int64_t>(1 + rng.Below(static_cast<uint64_t>(length)));
    }
    for (const CostModel& cost : {kRowModel, kSegmentModel}) {
      const auto plans = PlanMicroBatches(lengths, shapes, cost);
      ASSERT_TRUE(plans.ok());
      std::vector<int> seen(lengths.size(), 0);
      for (const MicroPlan& plan : *plans) {
        EXPECT_NE(std::ranges::find(shapes, plan.shape), shapes.end());
        EXPECT_LE(static_cast<int64_t>(plan.rows.size()), plan.shape.rows);
        for (const Row& row : plan.rows) {
          int64_t end = 0;
          for (const Placement& p : row) {
            EXPECT_EQ(p.begin, end);
            end += lengths[static_cast<size_t>(p.sequence)];
            ++seen[static_cast<size_t>(p.sequence)];
          }
          EXPECT_LE(end, plan.shape.length);
        }
      }
      EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
    }
  }
}

TEST(MicroPlan, AgentLengthsWasteLessThanThreePercentInEightShapes) {
  Rng rng(5);
  std::vector<Lengths> seen, coming;
  for (int i = 0; i < 32; ++i) seen.push_back(AgentLengths(rng, 64, 8192));
  for (int i = 0; i < 32; ++i) coming.push_back(AgentLengths(rng, 64, 8192));
  const auto shapes = PlanShapes(
      seen,
      {.cost = kSegmentModel, .tokens_max = 8192, .tokens_per_program = 8192, .shapes_max = 8});
  ASSERT_TRUE(shapes.ok());
  ASSERT_LE(shapes->size(), 8U);
  int64_t real = 0, padded = 0;
  for (const Lengths& lengths : coming) {
    const auto plans = PlanMicroBatches(lengths, *shapes, kSegmentModel);
    ASSERT_TRUE(plans.ok());
    real += std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    padded += PaddedTokens(*plans);
  }
  EXPECT_LE(1 - static_cast<double>(real) / static_cast<double>(padded), 0.03);
}

TEST(MicroPlan, OnAMeshOfEightTheLastExecutionIsSpreadOverItsRows) {
  Rng rng(6);
  const ShapePlanOptions options{.cost = kSegmentModel,
                                 .tokens_max = 2048,
                                 .tokens_per_program = 16384,
                                 .shapes_max = 8,
                                 .row_parts = 8,
                                 .length_parts = 4};
  std::vector<Lengths> batches;
  for (int i = 0; i < 16; ++i) batches.push_back(AgentLengths(rng, 128, 2048));
  const auto shapes = PlanShapes(batches, options);
  ASSERT_TRUE(shapes.ok());
  int64_t real = 0, padded = 0, padded_default = 0;
  for (const Lengths& lengths : batches) {
    real += std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const auto plans = PlanMicroBatches(lengths, *shapes, kSegmentModel);
    ASSERT_TRUE(plans.ok());
    padded += PaddedTokens(*plans);
    for (const MicroPlan& plan : *plans) EXPECT_EQ(plan.shape.rows, 8);
    padded_default +=
        PaddedTokens(*PlanMicroBatches(lengths, DefaultShapes(options), kSegmentModel));
  }
  EXPECT_LE(1 - static_cast<double>(real) / static_cast<double>(padded), 0.05);
  EXPECT_LE(padded, padded_default);
  EXPECT_LE(1 - static_cast<double>(real) / static_cast<double>(padded_default), 0.10);
}

TEST(MicroPlan, TheLastRowOfABatchMovesToTheShapeThatHoldsIt) {
  const std::vector<BucketShape> shapes = {{1, 100}, {1, 200}, {1, 1000}};
  const auto plans = PlanMicroBatches(Lengths{600, 400, 120, 50}, shapes, kSegmentModel);
  ASSERT_TRUE(plans.ok());
  ASSERT_EQ(plans->size(), 2);
  EXPECT_EQ(PaddedTokens(*plans), 1200);
  EXPECT_EQ(PlanCost(*plans, kSegmentModel), 1200 + 2 * kSegmentModel.program_tokens);
}

TEST(MicroPlan, AttentionOverTheRowKeepsShortSequencesOutOfLongRows) {
  const std::vector<BucketShape> shapes = {{8, 128}, {1, 1024}};
  const Lengths lengths(8, 128);  // both shapes hold them without padding
  EXPECT_EQ(PlanMicroBatches(lengths, shapes, kRowModel)->front().shape, (BucketShape{8, 128}));
  EXPECT_EQ(PlanMicroBatches(lengths, shapes, kSegmentModel)->size(), 1);
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
  const auto short_ones = PlanMicroBatches(Lengths(8, 120), buckets, kRowModel);
  ASSERT_TRUE(short_ones.ok());
  ASSERT_EQ(short_ones->size(), 1);
  EXPECT_EQ(short_ones->front().shape, (BucketShape{8, 128}));
  // One long sequence with a few short ones: one execution with shared rows beats two.
  const auto mixed = PlanMicroBatches(Lengths{400, 100, 100, 100}, buckets, kRowModel);
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
