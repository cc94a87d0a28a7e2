// Goal: a learner whose batches are ready takes the next one while the device computes, and is in
// nothing else different: same bits, same commits, exact ages, nothing lost when it ends early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/fingerprint.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/learner_fixture_testing.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/weights/snapshot.h"

namespace forebay::learner {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class LearnerOverlapTest : public LearnerFixture {
 protected:
  static void SetUpTestSuite() { StartSuite(FOREBAY_SOURCE_DIR); }

  // Rows of 16 tokens: a step of several micro-batches.
  static LearnerOptions Options(int64_t steps) {
    LearnerOptions options = LearnerFixture::Options(steps, 16);
    options.groups_per_step = 1;
    options.max_staleness = 2;
    return options;
  }
  std::unique_ptr<buffer::Buffer> OpenBuffer(int64_t committed = 0) const {
    fs::create_directories(folder_ + "/log");
    return LearnerFixture::OpenBuffer({.folder = folder_ + "/log",
                                       .durability = buffer::Durability::kOs,
                                       .group_size = kGroupSize,
                                       .max_staleness = 2,
                                       .segment_bytes = 1 << 20},
                                      committed);
  }
  // The group that batch `step + 1` is, sampled by `version`.
  static void Play(buffer::Buffer& buffer, int64_t step, int64_t version) {
    for (int32_t member = 0; member < kGroupSize; ++member) {
      const bool good = member < kGroupSize / 2;
      Append(buffer, RandomTrajectory({.group = step + 1,
                                       .member = member,
                                       .version = version,
                                       .reward = good ? 1.0 : 0.0}));
    }
  }
  static bool Leased(buffer::Buffer& buffer, int64_t batch) {
    return buffer.ReadBatch(batch, 0, 1).ok();
  }
};

TEST_F(LearnerOverlapTest, TheNextBatchIsTakenBeforeTheStepIsPublishedAndChangesNoBit) {
  constexpr int64_t kSteps = 6;
  const auto overlapped = MakeLearner(Options(kSteps));
  const auto buffer = OpenBuffer();
  std::vector<StepMetrics> got;
  std::vector<buffer::Batch> batches;
  std::vector<int64_t> ahead;  // versions at whose publication the next batch was leased
  LearnerHooks hooks;
  hooks.publish = [&](const std::shared_ptr<const weights::Snapshot>& snapshot) {
    const int64_t version = snapshot->policy_version;
    if (Leased(*buffer, version + 1)) ahead.push_back(version);
    auto batch = buffer->ReadBatch(version, 0, 1);  // of the step that made this version
    FB_CHECK(batch.ok(), batch.status().ToString());
    batches.push_back(std::move(*batch));
    if (version + 1 < kSteps) Play(*buffer, version + 1, version);
  };
  hooks.metrics = [&](const StepMetrics& m) { got.push_back(m); };
  Play(*buffer, 0, 0);
  Play(*buffer, 1, 0);
  ASSERT_TRUE(overlapped->Run(*buffer, hooks).ok());
  ASSERT_EQ(got.size(), kSteps);
  EXPECT_THAT(ahead, ElementsAre(1, 2, 3, 4, 5));  // 6 is the last: nothing after it

  const auto one_by_one = MakeLearner(Options(kSteps));
  for (int64_t step = 0; step < kSteps; ++step) {
    const buffer::Batch& batch = batches[static_cast<size_t>(step)];
    EXPECT_EQ(batch.learner_version, step);
    const auto want = one_by_one->Step(batch);
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    EXPECT_GT(want->micro_batches, 1);
    const StepMetrics& m = got[static_cast<size_t>(step)];
    EXPECT_EQ(Fingerprint(m), Fingerprint(*want)) << step;
    EXPECT_EQ(m.step, step + 1);
    // Sampled by the version before the one that was published last.
    EXPECT_EQ(m.staleness_max, step == 0 ? 0 : 1);
  }
  EXPECT_EQ(weights::Digest(overlapped->snapshot()->tensors),
            weights::Digest(one_by_one->snapshot()->tensors));
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_F(LearnerOverlapTest, AStepIsComputeWaitAndGap) {
  const auto learner = MakeLearner(Options(4));
  const auto buffer = OpenBuffer();
  for (int64_t step = 0; step < 3; ++step) Play(*buffer, step, 0);
  std::vector<StepMetrics> got;
  ASSERT_TRUE(learner
                  ->Run(*buffer, {.metrics =
                                      [&](const StepMetrics& m) {
                                        got.push_back(m);
                                        if (m.step == 3) Play(*buffer, 3, 3);
                                      }})
                  .ok());
  ASSERT_EQ(got.size(), 4);
  for (const StepMetrics& m : got) {
    EXPECT_GT(m.device_s, 0);
    EXPECT_GE(m.dispatch_gap_s, 0);
    EXPECT_DOUBLE_EQ(m.wall_s, m.device_s + m.dispatch_gap_s + m.lease_wait_s);
  }
  EXPECT_EQ(got[1].lease_wait_s, 0);  // its batch was there
  EXPECT_GT(got[3].lease_wait_s, 0);  // that one was not
}

TEST_F(LearnerOverlapTest, WithoutABatchThePublishingIsWaitingToo) {
  constexpr double kSeconds = 0.3;  // each: longer than a slice of a lease
  const auto learner = MakeLearner(Options(2));
  const auto buffer = OpenBuffer();
  Play(*buffer, 0, 0);
  std::thread actor;
  std::vector<StepMetrics> got;
  ASSERT_TRUE(
      learner
          ->Run(
              *buffer,
              {.publish = [&](const auto&) { std::this_thread::sleep_for(FromSeconds(kSeconds)); },
               .metrics =
                   [&](const StepMetrics& m) {
                     got.push_back(m);
                     if (m.step != 1) return;
                     actor = std::thread([&] {
                       std::this_thread::sleep_for(FromSeconds(kSeconds));
                       Play(*buffer, 1, 1);
                     });
                   }})
          .ok());
  actor.join();
  ASSERT_EQ(got.size(), 2);
  EXPECT_GE(got[1].lease_wait_s, 1.9 * kSeconds);
}

TEST_F(LearnerOverlapTest, D2_ABatchThatWasTakenAheadOfACheckpointIsTrainedOnAfterACrash) {
  LearnerOptions options = Options(3);
  options.checkpoint_folder = folder_ + "/checkpoints";
  options.checkpoint_every_steps = 1;
  std::string third;  // weights after step 3, of the run that was not disturbed
  {
    const auto learner = MakeLearner(options);
    const auto buffer = OpenBuffer();
    for (int64_t step = 0; step < 3; ++step) Play(*buffer, step, 0);
    LearnerHooks hooks;
    hooks.metrics = [&](const StepMetrics& m) {
      if (m.step != 2) return;
      // Batch 3 is leased and its gradients are handed over: this is what a crash here leaves.
      EXPECT_TRUE(Leased(*buffer, 3));
      const auto state = learner->State();
      ASSERT_TRUE(state.ok()) << state.status().ToString();
      EXPECT_EQ(state->committed_batch, 2);
      ASSERT_TRUE(WriteCheckpoint(folder_ + "/crash", {.state = *state}, 1).ok());
      fs::copy(folder_ + "/log", folder_ + "/log_then", fs::copy_options::recursive);
    };
    ASSERT_TRUE(learner->Run(*buffer, hooks).ok());
    third = weights::Digest(learner->snapshot()->tensors);
  }
  fs::remove_all(folder_ + "/log");
  fs::rename(folder_ + "/log_then", folder_ + "/log");
  const auto loaded = LoadLatestCheckpoint(folder_ + "/crash");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  options.checkpoint_folder.clear();
  const auto learner = MakeLearner(options, loaded->data.state);
  const auto buffer = OpenBuffer(loaded->data.state.committed_batch);
  std::vector<StepMetrics> got;
  ASSERT_TRUE(
      learner->Run(*buffer, {.metrics = [&](const StepMetrics& m) { got.push_back(m); }}).ok());
  ASSERT_EQ(got.size(), 1);
  EXPECT_TRUE(got[0].replay);
  EXPECT_EQ(got[0].batch_sequence, 3);
  EXPECT_EQ(weights::Digest(learner->snapshot()->tensors), third);
  EXPECT_EQ(buffer->ledger().trained, 3 * kGroupSize);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_F(LearnerOverlapTest, L1_WhatWasTakenAheadIsStillTrainedWhenTheBufferClosesOrAStopIsAsked) {
  for (const bool closes : {true, false}) {
    SCOPED_TRACE(closes);
    const auto learner = MakeLearner(Options(6));
    fs::remove_all(folder_);
    const auto buffer = OpenBuffer();
    for (int64_t step = 0; step < 4; ++step) Play(*buffer, step, 0);
    std::stop_source stop;
    LearnerHooks hooks;
    std::vector<int64_t> published;
    hooks.publish = [&](const std::shared_ptr<const weights::Snapshot>& snapshot) {
      published.push_back(snapshot->policy_version);
    };
    hooks.metrics = [&](const StepMetrics& m) {
      if (m.step != 1) return;
      EXPECT_TRUE(Leased(*buffer, 2));
      closes ? buffer->Close() : static_cast<void>(stop.request_stop());
    };
    const Status status = learner->Run(*buffer, hooks, stop.get_token());
    EXPECT_EQ(status.code(), closes ? StatusCode::kUnavailable : StatusCode::kOk)
        << status.ToString();
    EXPECT_THAT(published, ElementsAre(1, 2));
    EXPECT_EQ(learner->step(), 2);
    EXPECT_EQ(learner->State()->committed_batch, 2);
    EXPECT_FALSE(Leased(*buffer, 3));
  }
}

}  // namespace
}  // namespace forebay::learner
