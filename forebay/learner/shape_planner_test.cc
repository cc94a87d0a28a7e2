// Goal: shapes are proposed when, and only when, the batches that were seen would gain by them.
#include "forebay/learner/shape_planner.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/bucket_planner.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {
namespace {

using Lengths = std::vector<int64_t>;

ShapePlannerOptions Options() {
  return {.plan = {.cost = {.attention = AttentionCost::kSegments},
                   .tokens_max = 512,
                   .tokens_per_program = 1024,
                   .shapes_max = 4},
          .window_batches = 6,
          .batches_min = 3};
}

TEST(ShapePlanner, ProposesCheaperShapesOnceItHasSeenEnough) {
  ShapePlanner planner(Options());
  const auto defaults = DefaultShapes(Options().plan);
  for (int i = 0; i < 2; ++i) planner.Observe(Lengths(6, 100));
  planner.Observe({});  // nothing to learn from
  EXPECT_FALSE(planner.PlanBetter(defaults));
  planner.Observe(Lengths(6, 100));
  const auto better = planner.PlanBetter(defaults);  // 600 tokens: 640 instead of 1,024
  ASSERT_TRUE(better);
  EXPECT_EQ(*better, (std::vector<BucketShape>{{1, 640}, {1, 1024}}));
  EXPECT_LT(*planner.Cost(*better), *planner.Cost(defaults));
  EXPECT_FALSE(planner.PlanBetter(*better));  // nothing to gain twice
}

TEST(ShapePlanner, SmallGainsAreNotWorthACompilation) {
  ShapePlanner planner(Options());
  for (int i = 0; i < 4; ++i) planner.Observe(Lengths(10, 100));  // 1,000 of 1,024
  EXPECT_FALSE(planner.PlanBetter(DefaultShapes(Options().plan)));
}

TEST(ShapePlanner, OldBatchesAreForgotten) {
  ShapePlanner planner(Options());
  for (int i = 0; i < 4; ++i) planner.Observe(Lengths(6, 100));
  for (int i = 0; i < 6; ++i) planner.Observe(Lengths(4, 80));
  EXPECT_EQ(planner.batches(), 6U);
  const auto better = planner.PlanBetter(DefaultShapes(Options().plan));
  ASSERT_TRUE(better);
  EXPECT_EQ(better->front(), (BucketShape{1, 320}));

  ShapePlannerOptions small = Options();
  small.sequences_max = 10;
  ShapePlanner bounded(small);
  for (int i = 0; i < 6; ++i) bounded.Observe(Lengths(4, 80));
  EXPECT_EQ(bounded.batches(), 2U);
}

TEST(ShapePlanner, ASequenceThatFitsNothingIsLeftToItsStepToRefuse) {
  ShapePlanner planner(Options());
  for (int i = 0; i < 4; ++i) planner.Observe(Lengths{2000});
  EXPECT_FALSE(planner.PlanBetter(DefaultShapes(Options().plan)));
  EXPECT_FALSE(planner.Cost(DefaultShapes(Options().plan)).ok());
}

}  // namespace
}  // namespace forebay::learner
