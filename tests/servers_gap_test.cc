// W1: servers that say that they took new weights and did not are told of, once; those that did
// never.
#include "apps/servers_gap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "forebay/control/config.h"
#include "forebay/learner/step_metrics.h"

namespace forebay::apps {
namespace {

using ::testing::HasSubstr;

control::Config OnServers(bool reload = true) {
  control::Config config;
  config.rollout.servers = {"http://127.0.0.1:8000"};
  config.rollout.reload = reload;
  return config;
}

learner::StepMetrics Step(double gap, int64_t staleness = 0, bool updated = true) {
  learner::StepMetrics out;
  out.updated = updated;
  out.staleness_max = staleness;
  out.logprob_gap_max = gap;
  return out;
}

TEST(ServersGapTest, W1_AHeadThatStaysBehindIsToldOfOnce) {
  ServersGap gap(OnServers());
  EXPECT_FALSE(gap.Look(Step(0, 0, /*updated=*/false)));
  EXPECT_FALSE(gap.Look(Step(1e-6, 1)));
  const auto told = gap.Look(Step(0.096));
  ASSERT_TRUE(told);
  EXPECT_THAT(*told, HasSubstr("0.10 away"));
  EXPECT_THAT(*told, HasSubstr("1.0e-06"));
  EXPECT_FALSE(gap.Look(Step(0.3)));
}

TEST(ServersGapTest, OlderTokensAndLowPrecisionAreNoDoubt) {
  ServersGap gap(OnServers());
  EXPECT_FALSE(gap.Look(Step(0.02)));    // bf16
  EXPECT_FALSE(gap.Look(Step(0.5, 1)));  // of other weights
  EXPECT_FALSE(gap.Look(Step(0.07)));
  EXPECT_TRUE(gap.Look(Step(0.09)));
}

TEST(ServersGapTest, OnlyServersThatReloadAreLookedAt) {
  ServersGap fixed(OnServers(/*reload=*/false)), builtin((control::Config()));
  for (const double value : {1e-6, 1.0, 2.0}) {
    EXPECT_FALSE(fixed.Look(Step(value)));
    EXPECT_FALSE(builtin.Look(Step(value)));
  }
}

}  // namespace
}  // namespace forebay::apps
