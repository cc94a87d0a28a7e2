// Goal: the loop as a whole: it learns, publishes each version once, resumes to the same bits, and
// counts steps by batch.
#include "forebay/learner/learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/checkpoint_writer.h"
#include "forebay/learner/fingerprint.h"
#include "forebay/learner/learner_fixture_testing.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/schedule.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/weights/snapshot.h"

namespace forebay::learner {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using RewardFn = std::function<double(int64_t group, int32_t member)>;

class LearnerTest : public LearnerFixture {
 protected:
  static void SetUpTestSuite() { StartSuite(FOREBAY_SOURCE_DIR); }

  static double FirstHalfIsGood(int64_t, int32_t member) { return member < kGroupSize / 2 ? 1 : 0; }

  static LearnerOptions Options(int64_t steps) {
    LearnerOptions options = LearnerFixture::Options(steps, 64);
    options.groups_per_step = 2;
    options.max_staleness = 1;
    options.schedule = {
        .kind = ScheduleKind::kCosine, .learning_rate = 3e-3, .warmup_steps = 2, .total_steps = 8};
    return options;
  }
  static LearnerState StartState() { return {.train = {.params = parity_->tensors}}; }

  static std::unique_ptr<buffer::Buffer> MemoryBuffer(int64_t committed = 0) {
    return OpenBuffer(
        {.durability = buffer::Durability::kMemory, .group_size = kGroupSize, .max_staleness = 1},
        committed);
  }

  // Appends the two groups of the batch that follows `step` steps, sampled at version `step`.
  static void Play(buffer::Buffer& buffer, int64_t step, const RewardFn& reward) {
    for (int64_t group = 2 * step; group < 2 * step + 2; ++group) {
      for (int32_t member = 0; member < kGroupSize; ++member) {
        auto t = RandomTrajectory({.group = group % 2, .member = member, .version = step});
        t.id.group_id = group;
        t.id.trajectory_id = group * 64 + member + 1;
        t.id.task_id = group;
        t.rewards["r"] = reward(group, member);
        Append(buffer, t);
      }
    }
  }

  // Runs to options.steps, each step's data played when the version before it is published.
  struct Trace {
    std::vector<StepMetrics> metrics;
    std::vector<int64_t> published;
    std::vector<CheckpointReport> checkpoints;
    Status status;
  };
  static Trace RunLoop(Learner& learner, buffer::Buffer& buffer, int64_t steps,
                       const RewardFn& reward) {
    Trace trace;
    LearnerHooks hooks;
    hooks.publish = [&](const std::shared_ptr<const weights::Snapshot>& snapshot) {
      trace.published.push_back(snapshot->policy_version);
      if (snapshot->policy_version < steps) Play(buffer, snapshot->policy_version, reward);
    };
    hooks.metrics = [&](const StepMetrics& m) { trace.metrics.push_back(m); };
    hooks.checkpoint = [&](const CheckpointReport& r) { trace.checkpoints.push_back(r); };
    if (learner.step() < steps) Play(buffer, learner.step(), reward);
    trace.status = learner.Run(buffer, hooks);
    return trace;
  }
};

TEST_F(LearnerTest, LearnsAndPublishesEachVersionOnce) {
  LearnerOptions options = Options(8);
  options.loss = {.proximal = Proximal::kRollout,
                  .clip_low = 1,
                  .clip_high = 100};  // unclipped: the loss is -r A
  options.schedule = {.learning_rate = 3e-3};
  const auto learner = MakeLearner(options, StartState());
  const int64_t compiled = client_->counters().compiled;
  const auto buffer = MemoryBuffer();
  const Trace trace = RunLoop(*learner, *buffer, 8, FirstHalfIsGood);
  ASSERT_TRUE(trace.status.ok()) << trace.status.ToString();
  EXPECT_THAT(trace.published, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  ASSERT_EQ(trace.metrics.size(), 8);
  for (const auto& m : trace.metrics) {
    EXPECT_TRUE(m.updated);
    EXPECT_EQ(m.trajectories, 8);
    EXPECT_EQ(m.reward_mean, 0.5);
    EXPECT_EQ(m.programs, 3);
    EXPECT_GT(m.device_s, 0);
    EXPECT_GT(m.utilization(), 0);
    EXPECT_LE(m.utilization(), 1);
    EXPECT_EQ(m.staleness_max, 0);
  }
  // The same sequences come again at each version: what was rewarded became likelier.
  EXPECT_LT(trace.metrics.back().loss, trace.metrics.front().loss - 0.05);
  EXPECT_GT(trace.metrics.back().logprob_gap_max, 0);
  EXPECT_EQ(client_->counters().compiled, compiled);  // nothing after start-up
  const auto ledger = buffer->ledger();
  EXPECT_EQ(ledger.trained, 64);
  EXPECT_TRUE(ledger.balanced());
}

TEST_F(LearnerTest, T4_ZeroLearningRateSoakKeepsTheWeightsBitForBit) {
  LearnerOptions options = Options(12);
  options.schedule = {.learning_rate = 0};
  options.optimizer.weight_decay = 0.1;
  const auto learner = MakeLearner(options, StartState());
  const std::string before = weights::Digest(learner->snapshot()->tensors);
  const Trace trace = RunLoop(*learner, *MemoryBuffer(), 12, FirstHalfIsGood);
  ASSERT_TRUE(trace.status.ok());
  EXPECT_EQ(weights::Digest(learner->snapshot()->tensors), before);
  for (const auto& m : trace.metrics) {
    EXPECT_TRUE(m.updated);
    EXPECT_EQ(m.logprob_gap_max, trace.metrics.front().logprob_gap_max);  // flat, to the bit
    EXPECT_EQ(m.kl, trace.metrics.front().kl);
  }
}

TEST_F(LearnerTest, N2_ABatchWithNothingToLearnIsAReportedNoOp) {
  const auto learner = MakeLearner(Options(2), StartState());
  const auto first = learner->snapshot();
  const Trace trace = RunLoop(*learner, *MemoryBuffer(), 2, [](int64_t, int32_t) { return 0.7; });
  ASSERT_TRUE(trace.status.ok());
  ASSERT_EQ(trace.metrics.size(), 2);
  for (const auto& m : trace.metrics) {
    EXPECT_FALSE(m.updated);
    EXPECT_FALSE(m.non_finite);
    EXPECT_EQ(m.zero_advantage, 8);
    EXPECT_EQ(m.micro_batches, 0);
    EXPECT_EQ(m.loss, 0);
    EXPECT_EQ(m.grad_norm, 0);
  }
  EXPECT_EQ(learner->policy_version(), 2);
  EXPECT_EQ(weights::Digest(learner->snapshot()->tensors), weights::Digest(first->tensors));
  const auto state = learner->State();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->train.updates, 0);
  EXPECT_EQ(state->step, 2);
}

TEST_F(LearnerTest, SkippingZeroAdvantagesGivesTheSameUpdate) {
  const RewardFn one_group = [](int64_t group, int32_t member) {
    return group % 2 == 0 ? 0.5 : FirstHalfIsGood(group, member);
  };
  LearnerOptions options = Options(1);
  const auto skipping = MakeLearner(options, StartState());
  const Trace with = RunLoop(*skipping, *MemoryBuffer(), 1, one_group);
  options.skip_zero_advantage = false;
  const auto whole = MakeLearner(options, StartState());
  const Trace without = RunLoop(*whole, *MemoryBuffer(), 1, one_group);
  ASSERT_TRUE(with.status.ok() && without.status.ok());
  EXPECT_LT(with.metrics[0].packed_tokens, without.metrics[0].packed_tokens);
  EXPECT_NEAR(with.metrics[0].grad_norm, without.metrics[0].grad_norm,
              1e-4 * without.metrics[0].grad_norm);
  const auto a = skipping->State();
  const auto b = whole->State();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_LT(RelativeGap(a->train.optimizer, b->train.optimizer), 1e-4);
}

TEST_F(LearnerTest, N6_ManyTurnsAreOneStep) {
  const auto learner = MakeLearner(Options(4), StartState());
  buffer::Batch batch{.sequence = 1};
  for (int32_t member = 0; member < kGroupSize; ++member) {
    auto t = RandomTrajectory({.group = 1, .member = member, .prompt = 2, .action = 20});
    t.rewards["r"] = member;
    for (size_t i = 2; i < t.tokens.size(); i += 3) {  // an observation between the actions
      t.loss_mask[i] = 0;
      t.rollout_logprobs[i] = 0;
    }
    t.versions = {{0, static_cast<int32_t>(t.loss_tokens())}};
    batch.trajectories.push_back(std::make_shared<const Trajectory>(std::move(t)));
  }
  const auto m = learner->Step(batch);
  ASSERT_TRUE(m.ok()) << m.status().ToString();
  EXPECT_GT(m->micro_batches, 1);
  EXPECT_EQ(m->step, 1);
  EXPECT_EQ(learner->State()->train.updates, 1);
  // The same batch again, or one that leaves a gap, is refused.
  EXPECT_EQ(learner->Step(batch).status().code(), StatusCode::kFailedPrecondition);
  batch.sequence = 3;
  EXPECT_THAT(learner->Step(batch).status().message(), HasSubstr("the next one is 2, not 3"));
  batch.sequence = 2;
  EXPECT_THAT(learner->Step(batch).status().message(), HasSubstr("the learner is at 1"));
}

TEST_F(LearnerTest, D5_D6_AResumedRunGivesTheBitsOfTheUninterruptedOne) {
  const auto whole = MakeLearner(Options(6), StartState());
  const Trace reference = RunLoop(*whole, *MemoryBuffer(), 6, FirstHalfIsGood);
  ASSERT_TRUE(reference.status.ok());

  LearnerOptions options = Options(3);
  options.checkpoint_folder = folder_;
  options.checkpoint_every_steps = 2;
  {
    const auto learner = MakeLearner(options, StartState());
    const Trace trace = RunLoop(*learner, *MemoryBuffer(), 3, FirstHalfIsGood);
    ASSERT_TRUE(trace.status.ok()) << trace.status.ToString();
    ASSERT_FALSE(trace.checkpoints.empty());
    EXPECT_THAT(trace.checkpoints, Each(Field(&CheckpointReport::status, OkStatus())));
    EXPECT_EQ(trace.checkpoints.back().committed_batch, 3);
  }
  const auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const LearnerState& state = loaded->data.state;
  EXPECT_EQ(state.step, 3);
  options.steps = 6;
  const auto learner = MakeLearner(options, state);
  // What is published first is what was restored.
  EXPECT_EQ(learner->snapshot()->policy_version, 3);
  EXPECT_EQ(weights::Digest(learner->snapshot()->tensors), weights::Digest(state.train.params));
  const Trace resumed = RunLoop(*learner, *MemoryBuffer(state.committed_batch), 6, FirstHalfIsGood);
  ASSERT_TRUE(resumed.status.ok()) << resumed.status.ToString();
  ASSERT_EQ(resumed.metrics.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(resumed.metrics[i].learning_rate, reference.metrics[i + 3].learning_rate);
    EXPECT_EQ(resumed.metrics[i].loss, reference.metrics[i + 3].loss);
    EXPECT_EQ(resumed.metrics[i].grad_norm, reference.metrics[i + 3].grad_norm);
    EXPECT_EQ(resumed.metrics[i].policy_version, reference.metrics[i + 3].policy_version);
    EXPECT_EQ(Fingerprint(resumed.metrics[i]), Fingerprint(reference.metrics[i + 3]));
    EXPECT_NE(Fingerprint(resumed.metrics[i]), Fingerprint(reference.metrics[i]));
  }
  EXPECT_EQ(weights::Digest(learner->snapshot()->tensors),
            weights::Digest(whole->snapshot()->tensors));
}

TEST_F(LearnerTest, D5_D6_EveryOptimizerAndAdaptersResumeToTheSameBits) {
  std::vector<LearnerOptions> all;
  for (const auto kind : {OptimizerKind::kAdamW8bit, OptimizerKind::kAdafactor,
                          OptimizerKind::kLion, OptimizerKind::kMuon}) {
    all.push_back(Options(4));
    all.back().optimizer.kind = kind;
  }
  all.push_back(Options(4));
  all.back().lora = {.rank = 2, .targets = {"q_proj", "up_proj"}};
  for (const LearnerOptions& options : all) {
    const auto whole = MakeLearner(options, StartState());
    ASSERT_TRUE(RunLoop(*whole, *MemoryBuffer(), 4, FirstHalfIsGood).status.ok());
    LearnerOptions half = options;
    half.steps = 2;
    half.checkpoint_folder = MakeTestFolder();
    ASSERT_TRUE(
        RunLoop(*MakeLearner(half, StartState()), *MemoryBuffer(), 2, FirstHalfIsGood).status.ok());
    const auto loaded = LoadLatestCheckpoint(half.checkpoint_folder);
    fs::remove_all(half.checkpoint_folder);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ(loaded->data.lora.rank, options.lora.rank);
    const auto resumed = MakeLearner(options, loaded->data.state);
    ASSERT_TRUE(RunLoop(*resumed, *MemoryBuffer(2), 4, FirstHalfIsGood).status.ok());
    EXPECT_EQ(weights::Digest(resumed->snapshot()->tensors),
              weights::Digest(whole->snapshot()->tensors))
        << OptimizerKindName(options.optimizer.kind);
    EXPECT_NE(weights::Digest(whole->snapshot()->tensors), weights::Digest(parity_->tensors));
  }
}

TEST_F(LearnerTest, D7_ResumingAtTheTargetDoesNothing) {
  LearnerState state = StartState();
  state.step = state.policy_version = state.committed_batch = 6;
  LearnerOptions options = Options(6);
  options.checkpoint_folder = folder_;
  const auto learner = MakeLearner(options, state);
  const auto buffer = MemoryBuffer(6);
  Play(*buffer, 6, FirstHalfIsGood);
  const Trace trace = RunLoop(*learner, *buffer, 6, FirstHalfIsGood);
  EXPECT_TRUE(trace.status.ok());
  EXPECT_THAT(trace.metrics, IsEmpty());
  EXPECT_THAT(trace.published, IsEmpty());
  EXPECT_THAT(trace.checkpoints, IsEmpty());
  EXPECT_EQ(buffer->ledger().pending, 8);  // no lease
}

// The learner dies after step 3; its last checkpoint holds step 2. The buffer is on disk.
TEST_F(LearnerTest, D2_ABatchThatWasTrainedButNotCommittedIsTrainedAgainOnce) {
  const buffer::BufferOptions on_disk{.folder = folder_ + "/log",
                                      .durability = buffer::Durability::kOs,
                                      .group_size = kGroupSize,
                                      .max_staleness = 1,
                                      .segment_bytes = 1 << 20};
  fs::create_directories(on_disk.folder);
  const auto append = [&](buffer::Buffer& buffer, int64_t step) {
    for (int64_t group = 2 * step; group < 2 * step + 2; ++group) {
      for (int32_t member = 0; member < kGroupSize; ++member) {
        Append(buffer, RandomTrajectory({.group = group,
                                         .member = member,
                                         .version = step,
                                         .reward = FirstHalfIsGood(group, member)}));
      }
    }
  };
  const auto step_once = [&](Learner& learner, buffer::Buffer& buffer) {
    const auto batch = buffer.Lease(2, learner.policy_version(), Now() + FromSeconds(30));
    FB_CHECK(batch.ok(), batch.status().ToString());
    auto m = learner.Step(*batch);
    FB_CHECK(m.ok(), m.status().ToString());
    FB_CHECK(buffer.MarkTrained(batch->sequence).ok(), "mark");
    return *m;
  };

  std::string after_third;
  StepMetrics third;
  {
    const auto learner = MakeLearner(Options(8), StartState());
    const auto buffer = OpenBuffer(on_disk, 0);
    for (int64_t step = 0; step < 2; ++step) {
      append(*buffer, step);
      step_once(*learner, *buffer);
    }
    const auto state = learner->State();
    ASSERT_TRUE(state.ok());
    ASSERT_TRUE(WriteCheckpoint(folder_ + "/checkpoints", {.state = *state}, 2).ok());
    ASSERT_TRUE(buffer->Commit(2).ok());
    append(*buffer, 2);
    third = step_once(*learner, *buffer);
    after_third = weights::Digest(learner->snapshot()->tensors);
  }
  const auto loaded = LoadLatestCheckpoint(folder_ + "/checkpoints");
  ASSERT_TRUE(loaded.ok());
  const auto learner = MakeLearner(Options(8), loaded->data.state);
  const auto buffer = OpenBuffer(on_disk, loaded->data.state.committed_batch);
  const StepMetrics again = step_once(*learner, *buffer);
  EXPECT_TRUE(again.replay);
  EXPECT_EQ(again.batch_sequence, 3);
  EXPECT_EQ(again.learning_rate, third.learning_rate);
  EXPECT_EQ(again.staleness_max, third.staleness_max);
  EXPECT_EQ(weights::Digest(learner->snapshot()->tensors), after_third);
  EXPECT_TRUE(buffer->ledger().balanced());
  EXPECT_EQ(buffer->ledger().trained, 24);
}

// Room in a full buffer is made by commits: the episodes of the next step wait for it.
TEST_F(LearnerTest, L4_ACheckpointThatIsWantedIsWrittenWhileABatchIsWaitedFor) {
  LearnerOptions options = Options(3);
  options.checkpoint_folder = folder_;
  options.checkpoint_every_steps = 0;
  const auto learner = MakeLearner(options, StartState());
  const auto buffer = MemoryBuffer();
  std::vector<int64_t> written;
  LearnerHooks hooks;
  hooks.checkpoint_wanted = [] { return true; };
  hooks.checkpoint = [&](const CheckpointReport& r) {
    EXPECT_TRUE(r.status.ok()) << r.status.ToString();
    written.push_back(r.step);
    if (r.step < 3) Play(*buffer, r.step, FirstHalfIsGood);
  };
  Play(*buffer, 0, FirstHalfIsGood);
  const Status status = learner->Run(*buffer, hooks);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_THAT(written, ElementsAre(1, 2, 3));
}

TEST_F(LearnerTest, L1_AClosedBufferEndsTheRunWithACheckpoint) {
  LearnerOptions options = Options(6);
  options.checkpoint_folder = folder_;
  options.checkpoint_every_steps = 0;
  const auto learner = MakeLearner(options, StartState());
  const auto buffer = MemoryBuffer();
  Play(*buffer, 0, FirstHalfIsGood);
  LearnerHooks hooks;
  hooks.metrics = [&](const StepMetrics&) { buffer->Close(); };
  const Status status = learner->Run(*buffer, hooks);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  const auto loaded = LoadLatestCheckpoint(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->data.state.step, 1);
}

TEST_F(LearnerTest, L4_WaitingForActorsHasADeadlineAndAReason) {
  LearnerOptions options = Options(1);
  options.lease_deadline_s = 0.3;
  const auto learner = MakeLearner(options, StartState());
  const Status status = learner->Run(*MemoryBuffer(), {});
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("0 ready, 0 partial, 0 in flight"));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(learner->Run(*MemoryBuffer(), {}, stop.get_token()).ok());
}

TEST_F(LearnerTest, W2_OptionsOutOfRangeAreRefusedByName) {
  const auto refused = [&](const LearnerOptions& options) {
    const auto learner = Learner::Create(options, *client_, *parity_->model, StartState());
    return learner.ok() ? std::string() : learner.status().message();
  };
  LearnerOptions options = Options(1);
  options.groups_per_step = 0;
  EXPECT_THAT(refused(options), HasSubstr("groups_per_step is 0"));
  options = Options(1);
  options.tokens_max = 65;
  EXPECT_THAT(refused(options), HasSubstr("add a row length of at least 65"));
  options = Options(1);
  options.schedule.learning_rate = -1;
  EXPECT_THAT(refused(options), HasSubstr("learning_rate"));
  options = Options(1);
  options.row_lengths = {64, 32};
  EXPECT_THAT(refused(options), HasSubstr("ascending"));
}

}  // namespace
}  // namespace forebay::learner
