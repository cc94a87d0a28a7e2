// Goal: what is leased becomes exactly the rows, weights and metrics that it should, and what must
// not be trained on is refused.
#include "forebay/learner/train_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;

const std::vector<BucketShape> kShapes = {{4, 32}, {1, 64}};

buffer::Batch BatchOf(std::vector<Trajectory> trajectories, int64_t learner_version) {
  buffer::Batch batch{.sequence = 1, .learner_version = learner_version};
  for (auto& t : trajectories) {
    batch.trajectories.push_back(std::make_shared<const Trajectory>(std::move(t)));
  }
  return batch;
}

Trajectory Sample(int64_t group, int32_t member, double reward, int64_t version = 3) {
  return RandomTrajectory({.group = group, .member = member, .version = version, .reward = reward});
}

double WeightSum(const TrainBatch& batch) {
  double sum = 0;
  for (const auto& micro : batch.micro_batches) {
    for (const float w : micro.plane(kWeights)) sum += static_cast<double>(w);
  }
  return sum;
}

TEST(TrainBatch, MetricsDescribeTheTrajectories) {
  const auto batch =
      BatchOf({Sample(1, 0, 1.5), Sample(1, 1, 0.25, 5), Sample(2, 0, 1), Sample(2, 1, 1)}, 5);
  const auto built = BuildTrainBatch(batch, {}, kShapes);
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  const StepMetrics& m = built->metrics;
  EXPECT_EQ(m.trajectories, 4);
  EXPECT_EQ(m.groups, 2);
  EXPECT_EQ(m.zero_advantage, 2);
  EXPECT_DOUBLE_EQ(m.reward_mean, (1.5 + 0.25 + 2) / 4);
  EXPECT_EQ(m.staleness, (std::map<int64_t, int64_t>{{0, 1}, {2, 3}}));
  EXPECT_EQ(m.staleness_min, 0);
  EXPECT_EQ(m.staleness_max, 2);
  EXPECT_DOUBLE_EQ(m.staleness_mean, 1.5);
  int64_t tokens = 0;
  for (const auto& t : batch.trajectories) tokens += static_cast<int64_t>(t->tokens.size());
  EXPECT_EQ(m.tokens, tokens);
  EXPECT_EQ(m.padded_tokens % 64, 0);
  EXPECT_LT(m.packed_tokens, m.tokens);  // group 2 was left out
  EXPECT_GT(m.padding_waste(), 0);
}

TEST(TrainBatch, SkippedSequencesStillCountInTheDenominators) {
  const auto batch =
      BatchOf({Sample(1, 0, 1), Sample(1, 1, 0), Sample(2, 0, 1), Sample(2, 1, 1)}, 3);
  TrainBatchOptions options;
  const auto skipped = BuildTrainBatch(batch, options, kShapes);
  options.skip_zero_advantage = false;
  const auto kept = BuildTrainBatch(batch, options, kShapes);
  ASSERT_TRUE(skipped.ok() && kept.ok());
  EXPECT_NEAR(WeightSum(*kept), 1, 1e-5);
  int64_t loss = 0, all = 0;
  for (const auto& t : batch.trajectories) {
    all += t->loss_tokens();
    loss += t->id.group_id == 1 ? t->loss_tokens() : 0;
  }
  EXPECT_NEAR(WeightSum(*skipped), static_cast<double>(loss) / static_cast<double>(all), 1e-5);
}

TEST(TrainBatch, N2_NothingToLearnFromIsAnEmptyBatchNotNaN) {
  const auto equal = BuildTrainBatch(BatchOf({Sample(1, 0, 0.1), Sample(1, 1, 0.1)}, 3),
                                     {.skip_zero_advantage = false}, kShapes);
  ASSERT_TRUE(equal.ok());
  EXPECT_TRUE(equal->micro_batches.empty());
  auto masked = Sample(1, 0, 1);
  masked.loss_mask.assign(masked.tokens.size(), 0);
  masked.rollout_logprobs.assign(masked.tokens.size(), 0);
  masked.versions.clear();
  auto other = masked;
  other.id.member = 1;
  other.rewards["r"] = 0;
  const auto built = BuildTrainBatch(BatchOf({masked, other}, 3), {}, kShapes);
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE(built->micro_batches.empty());
  EXPECT_EQ(built->metrics.loss_tokens, 0);
}

TEST(TrainBatch, B5_PartlyStaleGroupsOfUnequalSizeAreTrainedOn) {
  const auto built = BuildTrainBatch(BatchOf({Sample(1, 0, 1), Sample(1, 1, 0), Sample(1, 3, 0),
                                              Sample(2, 2, 1), Sample(3, 0, 1), Sample(3, 1, 0)},
                                             4),
                                     {}, kShapes);
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(built->metrics.groups, 3);
  EXPECT_EQ(built->metrics.zero_advantage, 1);  // the group of one
  EXPECT_FALSE(built->micro_batches.empty());
}

// An agent that rewrote its history: its branches are sequences of their own, which no attention
// connects, and together they weigh what a trajectory of as many tokens weighs.
TEST(TrainBatch, BranchesOfATrajectoryAreSequencesOfTheirOwn) {
  Trajectory whole = Sample(1, 0, 1);
  const Trajectory second = Sample(1, 5, 0);
  const auto cut = static_cast<int32_t>(whole.tokens.size());
  whole.tokens.insert(whole.tokens.end(), second.tokens.begin(), second.tokens.end());
  whole.loss_mask.insert(whole.loss_mask.end(), second.loss_mask.begin(), second.loss_mask.end());
  whole.rollout_logprobs.insert(whole.rollout_logprobs.end(), second.rollout_logprobs.begin(),
                                second.rollout_logprobs.end());
  whole.versions[0].tokens += second.versions[0].tokens;
  for (Turn turn : second.turns) {
    turn.begin += cut;
    turn.end += cut;
    whole.turns.push_back(turn);
  }
  ASSERT_TRUE(Validate(whole).ok());
  const auto built = BuildTrainBatch(BatchOf({whole, Sample(1, 1, 0)}, 3), {}, kShapes);
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  EXPECT_EQ(built->lengths.size(), 3U);
  EXPECT_EQ(built->metrics.trajectories, 2);
  EXPECT_NEAR(WeightSum(*built), 1, 1e-5);
  EXPECT_EQ(built->metrics.loss_tokens,
            whole.loss_tokens() + Sample(1, 1, 0).loss_tokens());  // no token opens a branch here
  int64_t loss_tokens = 0;
  for (const auto& micro : built->micro_batches) loss_tokens += micro.loss_tokens;
  EXPECT_EQ(loss_tokens, built->metrics.loss_tokens);
}

TEST(TrainBatch, D4_StalenessIsRefusedAtTheLastMoment) {
  const auto built = BuildTrainBatch(BatchOf({Sample(1, 0, 1, 2), Sample(1, 1, 0, 3)}, 5),
                                     {.max_staleness = 2}, kShapes);
  ASSERT_FALSE(built.ok());
  EXPECT_EQ(built.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(built.status().message(), HasSubstr("max_staleness 2"));
  // From the future: the learner was restored to an older version than the one that sampled.
  EXPECT_FALSE(
      BuildTrainBatch(BatchOf({Sample(1, 0, 1, 6), Sample(1, 1, 0, 5)}, 5), {}, kShapes).ok());
}

TEST(TrainBatch, B2_InfrastructureOutcomesAreRefused) {
  auto t = Sample(1, 0, 0);
  t.outcome = Outcome::kGraderError;
  const auto built = BuildTrainBatch(BatchOf({t, Sample(1, 1, 1)}, 3), {}, kShapes);
  ASSERT_FALSE(built.ok());
  EXPECT_THAT(built.status().message(), HasSubstr("grader_error"));
}

TEST(TrainBatch, T2_TemperatureTravelsWithTheTokensAndGreedySamplesAreRefused) {
  auto warm = Sample(1, 0, 1);
  warm.temperature = 0.5;
  const auto built = BuildTrainBatch(BatchOf({warm, Sample(1, 1, 0)}, 3), {}, kShapes);
  ASSERT_TRUE(built.ok());
  int64_t warm_columns = 0;
  for (const auto& micro : built->micro_batches) {
    for (const float x : micro.plane(kInverseTemperature)) warm_columns += x == 2.0F ? 1 : 0;
  }
  EXPECT_EQ(warm_columns, static_cast<int64_t>(warm.tokens.size()));
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    auto greedy = warm;
    greedy.temperature = bad;
    EXPECT_FALSE(BuildTrainBatch(BatchOf({greedy, Sample(1, 1, 0)}, 3), {}, kShapes).ok()) << bad;
  }
}

TEST(TrainBatch, T5_ATrajectoryLongerThanEveryRowIsAnErrorNotACut) {
  auto t = RandomTrajectory({.group = 1, .prompt = 40, .action = 40, .version = 3, .reward = 1});
  const auto built = BuildTrainBatch(BatchOf({t, Sample(1, 1, 0)}, 3), {}, kShapes);
  ASSERT_FALSE(built.ok());
  EXPECT_THAT(built.status().message(), HasSubstr("80 tokens"));
}

}  // namespace
}  // namespace forebay::learner
