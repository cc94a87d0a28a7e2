// Goal: options become shapes that hold every episode, or an error that says what would be right.
#include "forebay/learner/learner_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/micro_batch.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;
using Shapes = std::vector<BucketShape>;

TEST(LearnerOptions, DefaultsAreValidAndHoldTheTokenBudget) {
  const LearnerOptions options;
  EXPECT_TRUE(ValidateOptions(options).ok());
  const auto buckets = Buckets(options);
  ASSERT_TRUE(buckets.ok());
  EXPECT_EQ(*buckets, (Shapes{{1, 192}, {1, 384}, {1, 704}, {1, 1024}}));
}

TEST(LearnerOptions, GivenRowLengthsAreKept) {
  const LearnerOptions given{.tokens_max = 512, .row_lengths = {128, 512}, .shape_log = "log"};
  EXPECT_EQ(*Buckets(given), (Shapes{{8, 128}, {2, 512}}));
  EXPECT_EQ(ShapeOptions(given).replan_every_steps, 0);
  EXPECT_EQ(ShapeOptions(given).log, "");
  const LearnerOptions chosen{.replan_every_steps = 5, .shape_log = "log"};
  EXPECT_EQ(ShapeOptions(chosen).replan_every_steps, 5);
  EXPECT_EQ(ShapeOptions(chosen).log, "log");
}

TEST(LearnerOptions, W2_EachValueOutOfRangeIsNamed) {
  const auto refusal = [](auto change) {
    LearnerOptions options;
    change(options);
    const Status status = ValidateOptions(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refusal([](auto& o) { o.groups_per_step = 0; }), HasSubstr("groups_per_step is 0"));
  EXPECT_THAT(refusal([](auto& o) { o.max_staleness = -1; }), HasSubstr("max_staleness"));
  EXPECT_THAT(refusal([](auto& o) { o.checkpoints_kept = 0; }), HasSubstr("checkpoints_kept"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.beta2 = 1; }), HasSubstr("beta2"));
  EXPECT_THAT(refusal([](auto& o) { o.optimizer.epsilon = 0; }), HasSubstr("adam_eps"));
  EXPECT_THAT(refusal([](auto& o) { o.shapes_max = 9; }), HasSubstr("from 1 to 8"));
  EXPECT_THAT(
      refusal([](auto& o) { o.schedule.learning_rate = std::numeric_limits<double>::quiet_NaN(); }),
      HasSubstr("learning_rate"));
}

TEST(LearnerOptions, W2_RowsThatCannotHoldAnEpisodeAreRefused) {
  const LearnerOptions options{.tokens_max = 513, .row_lengths = {128, 512}};
  EXPECT_THAT(Buckets(options).status().message(), HasSubstr("at least 513"));
}

}  // namespace
}  // namespace forebay::learner
