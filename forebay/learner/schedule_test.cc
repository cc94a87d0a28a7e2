// Goal: the rate is a pure function of the step, so a resumed run gets the bits of the
// uninterrupted one.
#include "forebay/learner/schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "forebay/learner/optimizer.h"

namespace forebay::learner {
namespace {

TEST(Schedule, WarmsUpThenHoldsOrDecays) {
  ScheduleOptions options{.learning_rate = 1.0, .warmup_steps = 4, .total_steps = 12};
  EXPECT_EQ(LearningRate(options, 0), 0.25);
  EXPECT_EQ(LearningRate(options, 3), 1.0);
  EXPECT_EQ(LearningRate(options, 1000), 1.0);
  options.kind = ScheduleKind::kLinear;
  EXPECT_EQ(LearningRate(options, 4), 1.0);
  EXPECT_EQ(LearningRate(options, 8), 0.5);
  EXPECT_EQ(LearningRate(options, 12), 0.0);
  EXPECT_EQ(LearningRate(options, 50), 0.0);
  options.kind = ScheduleKind::kCosine;
  EXPECT_EQ(LearningRate(options, 4), 1.0);
  EXPECT_NEAR(LearningRate(options, 8), 0.5, 1e-12);
  EXPECT_NEAR(LearningRate(options, 12), 0.0, 1e-12);
}

TEST(Schedule, NoTotalIsNotADivisionByZero) {
  EXPECT_EQ(LearningRate({.kind = ScheduleKind::kLinear, .learning_rate = 2.0}, 0), 2.0);
}

TEST(Schedule, WarmUpStableDecay) {
  const ScheduleOptions options{.kind = ScheduleKind::kWsd,
                                .learning_rate = 2,
                                .warmup_steps = 4,
                                .total_steps = 100,
                                .decay_steps = 10,
                                .end_fraction = 0.5};
  EXPECT_EQ(LearningRate(options, 0), 0.5);
  EXPECT_EQ(LearningRate(options, 4), 2);
  EXPECT_EQ(LearningRate(options, 90), 2);
  EXPECT_DOUBLE_EQ(LearningRate(options, 95), 1.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 100), 1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 1000), 1);
  ScheduleOptions tenth = options;
  tenth.decay_steps = 0;
  EXPECT_EQ(LearningRate(tenth, 95), LearningRate(options, 95));
}

TEST(Schedule, InverseSquareRootMeetsTheWarmUp) {
  const ScheduleOptions options{
      .kind = ScheduleKind::kInverseSqrt, .learning_rate = 2, .warmup_steps = 16};
  EXPECT_EQ(LearningRate(options, 15), 2);
  EXPECT_DOUBLE_EQ(LearningRate(options, 63), 1);
  EXPECT_DOUBLE_EQ(LearningRate({.kind = ScheduleKind::kInverseSqrt, .learning_rate = 2}, 3), 1);
}

TEST(Schedule, TheEndIsAFractionOfThePeak) {
  for (const auto kind : {ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    const ScheduleOptions options{
        .kind = kind, .learning_rate = 2, .total_steps = 10, .end_fraction = 0.1};
    EXPECT_DOUBLE_EQ(LearningRate(options, 10), 0.2);
    EXPECT_DOUBLE_EQ(LearningRate(options, 5), 1.1);
  }
}

TEST(Schedule, Names) {
  for (const auto kind : {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine,
                          ScheduleKind::kWsd, ScheduleKind::kInverseSqrt}) {
    EXPECT_EQ(ParseScheduleKind(ScheduleKindName(kind)), kind);
  }
  EXPECT_EQ(ParseScheduleKind("exponential"), std::nullopt);
}

TEST(Schedule, BiasCorrectionOfTheFirstUpdate) {
  const auto hyper = HyperParameters({.beta1 = 0.9, .beta2 = 0.95}, 1e-3, 1);
  EXPECT_FLOAT_EQ(hyper[kLearningRate], 1e-3F);
  EXPECT_FLOAT_EQ(hyper[kBiasCorrection1], 10.0F);
  EXPECT_FLOAT_EQ(hyper[kBiasCorrection2], 20.0F);
}

}  // namespace
}  // namespace forebay::learner
