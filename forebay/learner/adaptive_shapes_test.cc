// Goal: shapes are switched only when they are compiled, no step waits for it, and a learner that
// starts again repeats the switches of the one before.
#include "forebay/learner/adaptive_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/shape_log.h"
#include "forebay/learner/train_step.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;
using Shapes = std::vector<BucketShape>;

// A step that compiles when the test allows it.
class GatedStep final : public TrainStep {
 public:
  Status CompileShapes(std::span<const BucketShape> shapes) override {
    MutexLock lock(mutex_);
    while (!open_) opened_.WaitUntil(mutex_, Now() + FromSeconds(60));
    if (!failure_.ok()) return failure_;
    for (const BucketShape shape : shapes) {
      if (std::ranges::find(compiled_, shape) != compiled_.end()) continue;
      compiled_.push_back(shape);
      ++programs_;
    }
    return OkStatus();
  }
  void KeepShapes(std::span<const BucketShape> shapes) override {
    MutexLock lock(mutex_);
    compiled_.assign(shapes.begin(), shapes.end());
  }
  void Open(Status failure = OkStatus()) {
    MutexLock lock(mutex_);
    open_ = true;
    failure_ = std::move(failure);
    opened_.NotifyAll();
  }
  Shapes compiled() {
    MutexLock lock(mutex_);
    return compiled_;
  }
  int64_t programs() const override { return programs_; }

  Result<StepOutcome> Run(std::span<const MicroBatch>, double) override { return Internal("no"); }
  Result<GradientValues> Gradients(const MicroBatch&) override { return Internal("no"); }
  Status AddGradients(std::span<const MicroBatch>) override { return Internal("no"); }
  void DropGradients() override {}
  Status StartUpdate(double) override { return Internal("no"); }
  Result<StepOutcome> FinishUpdate() override { return Internal("no"); }
  bool Idle() const override { return true; }
  bool Stalled() const override { return false; }
  void ForgetIdle() override {}
  Result<weights::TensorMap> Params() override { return Internal("no"); }
  Result<TrainState> State() const override { return Internal("no"); }
  int64_t updates() const override { return 0; }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ = false;
  Status failure_;
  Shapes compiled_;
  std::atomic<int64_t> programs_ = 0;
};

class AdaptiveShapesTest : public ::testing::Test {
 protected:
  ~AdaptiveShapesTest() override { std::filesystem::remove_all(folder_); }

  AdaptiveShapesOptions Options() const {
    return {.planner = {.plan = {.cost = {.attention = AttentionCost::kSegments},
                                 .tokens_max = 512,
                                 .tokens_per_program = 1024,
                                 .shapes_max = 4},
                        .batches_min = 2},
            .replan_every_steps = 2,
            .log = folder_ + "/shapes.json"};
  }
  static std::unique_ptr<AdaptiveShapes> Make(const AdaptiveShapesOptions& options, int64_t step) {
    auto shapes = AdaptiveShapes::Create(options, kFirst, step);
    FB_CHECK(shapes.ok(), shapes.status().ToString());
    return std::move(*shapes);
  }
  // Steps from `from` until the shapes change, at most 1,000; the step before which they did.
  static int64_t StepUntilSwitch(AdaptiveShapes& shapes, GatedStep& train, int64_t from) {
    const int64_t before = shapes.switches();
    for (int64_t step = from; step < from + 1000; ++step) {
      shapes.BeforeStep(step, train);
      if (shapes.switches() != before) return step;
      shapes.AfterStep(step + 1, std::vector<int64_t>(6, 100), train);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return -1;
  }

  static inline const Shapes kFirst = {{1, 512}, {1, 1024}};
  static inline const Shapes kBetter = {{1, 640}, {1, 1024}};
  const std::string folder_ = MakeTestFolder();
};

TEST_F(AdaptiveShapesTest, NoStepWaitsForACompilation) {
  GatedStep train;
  const auto shapes = Make(Options(), 0);
  EXPECT_EQ(shapes->ToCompile(), kFirst);
  for (int64_t step = 0; step < 20; ++step) {  // the compiler is stuck, the steps are not
    shapes->BeforeStep(step, train);
    EXPECT_EQ(shapes->current(), kFirst);
    shapes->AfterStep(step + 1, std::vector<int64_t>(6, 100), train);
  }
  train.Open();
  const int64_t at = StepUntilSwitch(*shapes, train, 20);
  ASSERT_GE(at, 20);
  EXPECT_EQ(shapes->current(), kBetter);
  EXPECT_EQ(train.compiled(), kBetter);  // the others are forgotten
  EXPECT_EQ(shapes->programs_ahead(), 2);
  const auto history = ReadShapeLog(Options().log);
  ASSERT_TRUE(history.ok());
  EXPECT_EQ(*history, (ShapeHistory{{0, kFirst}, {at, kBetter}}));
}

TEST_F(AdaptiveShapesTest, D6_ARestartRepeatsTheSwitchesAtTheirSteps) {
  ASSERT_TRUE(WriteShapeLog(Options().log, {{0, kFirst}, {7, kBetter}, {9, kFirst}}).ok());
  GatedStep train;
  train.Open();
  const auto shapes = Make(Options(), 5);
  EXPECT_EQ(shapes->current(), kFirst);
  EXPECT_EQ(shapes->ToCompile(), (Shapes{{1, 512}, {1, 1024}, {1, 640}}));
  for (int64_t step = 5; step < 9; ++step) {
    shapes->BeforeStep(step, train);
    EXPECT_EQ(shapes->current(), step < 7 ? kFirst : kBetter) << step;
    shapes->AfterStep(step + 1, std::vector<int64_t>(6, 100), train);
  }
  shapes->BeforeStep(9, train);
  EXPECT_EQ(shapes->current(), kFirst);
  EXPECT_EQ(train.compiled(), kFirst);
  EXPECT_EQ(shapes->programs_ahead(), 0);  // it did not plan while the log went on
  shapes->AfterStep(10, std::vector<int64_t>(6, 100), train);
  EXPECT_GE(StepUntilSwitch(*shapes, train, 10), 10);  // and does again after it
}

TEST_F(AdaptiveShapesTest, AReplayFollowsTheLogAndWritesNothing) {
  AdaptiveShapesOptions options = Options();
  options.replan_every_steps = 0;
  GatedStep train;
  const auto none = Make(options, 0);
  EXPECT_EQ(none->current(), kFirst);
  EXPECT_FALSE(std::filesystem::exists(options.log));
  ASSERT_TRUE(WriteShapeLog(options.log, {{0, kBetter}}).ok());
  const auto logged = Make(options, 3);
  EXPECT_EQ(logged->current(), kBetter);
}

TEST_F(AdaptiveShapesTest, AFailedCompilationEndsPlanningAndIsReported) {
  GatedStep train;
  train.Open(ResourceExhausted("no memory for a program"));
  const auto shapes = Make(Options(), 0);
  for (int64_t step = 0; step < 1000 && shapes->status().ok(); ++step) {
    shapes->BeforeStep(step, train);
    shapes->AfterStep(step + 1, std::vector<int64_t>(6, 100), train);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(shapes->status().message(), HasSubstr("no memory for a program"));
  EXPECT_EQ(shapes->current(), kFirst);
  EXPECT_EQ(shapes->switches(), 0);
}

TEST_F(AdaptiveShapesTest, LoggedShapesThatNoLongerFitTheOptionsAreLeftOut) {
  ASSERT_TRUE(WriteShapeLog(Options().log, {{0, {{1, 256}}}}).ok());  // tokens_max is 512 now
  EXPECT_EQ(Make(Options(), 0)->current(), kFirst);
}

TEST_F(AdaptiveShapesTest, ADamagedLogIsRefused) {
  const std::string log = Options().log;
  for (const char* text :
       {"[{\"step\": 0", "{}x", "[{\"step\": 0, \"shapes\": []}]", "[3]",
        "[{\"step\": -1, \"shapes\": [[1, 64]]}]",
        "[{\"step\": 0, \"shapes\": [[1, 64], [1, 64]]}]", "[{\"step\": 0, \"shapes\": [[0, 64]]}]",
        "[{\"step\": 0, \"shapes\": [[1, 99999999999]]}]"}) {
    std::ofstream(log) << text;
    const auto shapes = AdaptiveShapes::Create(Options(), kFirst, 0);
    ASSERT_FALSE(shapes.ok()) << text;
    EXPECT_EQ(shapes.status().code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(shapes.status().message(), HasSubstr("shapes.json"));
  }
}

}  // namespace
}  // namespace forebay::learner
