// Goal: Little's law on known numbers.
#include "forebay/control/sizing.h"

#include <gtest/gtest.h>

namespace forebay::control {
namespace {

TEST(SizingTest, MeetsTheDemandWithHeadroom) {
  // 32 episodes every 4 s are 8/s; each takes 17 s: 136 under way on average, 164 with 20 % to
  // spare.
  const Sizing s = ComputeSizing(
      {.episode_seconds = 17, .step_seconds = 4, .episodes_per_step = 32, .actors = 68});
  EXPECT_DOUBLE_EQ(s.demand_per_s, 8);
  EXPECT_DOUBLE_EQ(s.supply_per_s, 4);
  EXPECT_EQ(s.actors_needed, 164);
  EXPECT_EQ(s.staleness_needed, 6);
  EXPECT_DOUBLE_EQ(s.predicted_utilization, 0.5);
  EXPECT_FALSE(s.engine_bound);
}

TEST(SizingTest, SlowEpisodesMustEndBeforeTheyAreStale) {
  // 60 s are 15 steps of 4 s: with a smaller bound every such episode would be dropped for ever.
  const Sizing s = ComputeSizing({.episode_seconds = 17,
                                  .episode_seconds_p99 = 60,
                                  .step_seconds = 4,
                                  .episodes_per_step = 64,
                                  .actors = 300});
  EXPECT_EQ(s.actors_needed, 327);
  EXPECT_EQ(s.staleness_needed, 15);
}

TEST(SizingTest, NothingMeasuredGivesNoAdvice) {
  EXPECT_EQ(ComputeSizing({}).actors_needed, 0);
  EXPECT_EQ(ComputeSizing({.episode_seconds = 1, .step_seconds = 0, .episodes_per_step = 1})
                .actors_needed,
            0);
}

TEST(SizingTest, ABusyEngineIsNamed) {
  EXPECT_TRUE(
      ComputeSizing(
          {.episode_seconds = 1, .step_seconds = 1, .episodes_per_step = 1, .engine_busy = 0.95})
          .engine_bound);
}

}  // namespace
}  // namespace forebay::control
