// Goal: what `forebay compare` says of two reward curves is right whatever their sign.
#include "apps/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "apps/report.h"

namespace forebay::apps {
namespace {

using testing::HasSubstr;
using testing::Not;

RunReport Report(const std::vector<double>& rewards, double seconds_a_step) {
  RunReport report;
  report.step_rewards = rewards;
  for (size_t i = 1; i <= rewards.size(); ++i) {
    report.step_seconds.push_back(seconds_a_step * static_cast<double>(i));
  }
  return report;
}

Comparison Compare(const std::vector<double>& sync, const std::vector<double>& decoupled) {
  Comparison c{.sync = Report(sync, 10), .decoupled = Report(decoupled, 1)};
  CompareRewards(&c);
  return c;
}

TEST(Comparison, BestWindowsAreThoseOfWholeWindows) {
  const RunReport report = Report({-4, -1, -3}, 1);
  EXPECT_EQ(BestWindow(report, 1), -1);
  EXPECT_EQ(BestWindow(report, 2), -2);
  EXPECT_EQ(BestWindow(report, 4), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(SecondsToReward(report, -2, 1), 2);
  EXPECT_EQ(SecondsToReward(report, -2.5, 2), 2);
  EXPECT_EQ(SecondsToReward(report, 0, 1), -1);
}

TEST(Comparison, TheBarIsWhatBothReachedLessAHair) {
  const Comparison c = Compare({0, 0, 0, 1, 1, 1}, {0, 0, 0, 2, 2, 2});
  EXPECT_DOUBLE_EQ(c.common_reward, 0.95);
  EXPECT_EQ(c.sync_seconds, 60);
  EXPECT_EQ(c.decoupled_seconds, 5);  // (0 + 2 + 2) / 3
  EXPECT_EQ(c.speedup(), 12);
  EXPECT_THAT(FormatComparison(c), HasSubstr("12.0 times sooner"));
}

TEST(Comparison, NegativeRewardsAreReachedToo) {
  const Comparison c = Compare({-4, -4, -4, -2, -2, -2}, {-4, -4, -4, -1, -1, -1});
  EXPECT_DOUBLE_EQ(c.common_reward, -2.1);  // below the -2 that both reached
  EXPECT_EQ(c.sync_seconds, 60);
  EXPECT_EQ(c.decoupled_seconds, 5);
  EXPECT_EQ(c.speedup(), 12);
}

TEST(Comparison, WithoutAStepNothingIsClaimed) {
  const Comparison c = Compare({}, {1, 1, 1});
  EXPECT_EQ(c.speedup(), 0);
  EXPECT_THAT(FormatComparison(c), Not(HasSubstr("sooner")));
  EXPECT_THAT(FormatComparison(c), Not(HasSubstr("seconds to reward")));
}

}  // namespace
}  // namespace forebay::apps
