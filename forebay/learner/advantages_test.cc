// Goal: advantages are finite, exact where they must be, and follow one convention.
#include "forebay/learner/advantages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "forebay/learner/stats.h"

namespace forebay::learner {
namespace {

using ::testing::Each;

constexpr AdvantageKind kKinds[] = {AdvantageKind::kGrpo, AdvantageKind::kDrGrpo,
                                    AdvantageKind::kRloo};

TEST(Advantages, N1_EqualRewardsGiveExactZeroWhateverTheirValue) {
  // The mean of n copies of 0.1 is not always 0.1 in floating point: a naive variance is not zero.
  for (const double reward : {0.1, 1.0 / 3, 1e12, -7.3, 1e-300}) {
    for (const int n : {2, 3, 7, 10, 64}) {
      const std::vector<double> rewards(static_cast<size_t>(n), reward);
      const std::vector<int64_t> groups(static_cast<size_t>(n), 5);
      for (const auto kind : kKinds) {
        EXPECT_THAT(Advantages(kind, rewards, groups), Each(0.0)) << reward << " x " << n;
      }
    }
  }
}

TEST(Advantages, N4_RewardsStayFloat) {
  const std::vector<double> rewards = {0.25, 0.75};
  const auto advantages = Advantages(AdvantageKind::kDrGrpo, rewards, std::vector<int64_t>{0, 0});
  EXPECT_EQ(advantages, (std::vector<double>{-0.25, 0.25}));
}

TEST(Advantages, N5_GrpoUsesTheSharedStandardDeviation) {
  const std::vector<double> rewards = {1, 2, 4};
  const auto advantages = Advantages(AdvantageKind::kGrpo, rewards, std::vector<int64_t>{0, 0, 0});
  EXPECT_DOUBLE_EQ(advantages[2], (4 - Mean(rewards)) / (SampleStdDev(rewards) + 1e-6));
}

TEST(Advantages, B5_GroupsMayHaveAnySizeAndAnyOrder) {
  // Group 7 lost a member to staleness; group 9 is interleaved with it.
  const std::vector<double> rewards = {1, 10, 0, 20, 30};
  const std::vector<int64_t> groups = {7, 9, 7, 9, 9};
  EXPECT_EQ(Advantages(AdvantageKind::kRloo, rewards, groups),
            (std::vector<double>{1, -15, -1, 0, 15}));
}

TEST(Advantages, SumToZeroInEachGroup) {
  const std::vector<double> rewards = {0.3, 0.9, -1.4, 2.2};
  const std::vector<int64_t> groups = {1, 1, 1, 1};
  for (const auto kind : kKinds) {
    double sum = 0;
    for (const double a : Advantages(kind, rewards, groups)) sum += a;
    EXPECT_NEAR(sum, 0, 1e-12);
  }
}

TEST(Advantages, EmptyBatchAndNames) {
  EXPECT_TRUE(Advantages(AdvantageKind::kGrpo, {}, {}).empty());
  for (const auto kind : kKinds) EXPECT_EQ(ParseAdvantageKind(AdvantageKindName(kind)), kind);
  EXPECT_EQ(ParseAdvantageKind("GRPO"), std::nullopt);
}

TEST(AdvantagesDeathTest, SizesMustAgree) {
  EXPECT_DEATH(Advantages(AdvantageKind::kGrpo, std::vector<double>{1.0}, {}), "group id");
}

}  // namespace
}  // namespace forebay::learner
