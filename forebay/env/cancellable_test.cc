// Goal: who waits for an environment that hangs need not wait for its deadline, whatever kind of
// environment it is, and what hangs is ended after it.
#include "forebay/env/cancellable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess.h"
#include "forebay/env/subprocess_pool_testing.h"
#include "forebay/env/subprocess_testing.h"
#include "forebay/env/tools_testing.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;

class CancellableTest : public ::testing::Test {
 public:
  void Open(SubprocessOptions options) {
    auto pool = SubprocessPool::Create(*loop_, std::move(options));
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    pool_ = MakeCancellable(*loop_, std::move(*pool));
  }
  std::unique_ptr<Environment> Episode() {
    auto env = Await(*loop_, pool_->Acquire(Soon()));
    EXPECT_TRUE(env.ok()) << env.status().ToString();
    const auto first = Await(*loop_, (*env)->Reset({}, Soon()));
    EXPECT_TRUE(first.ok()) << first.status().ToString();
    return std::move(*env);
  }
  // The task's value; it is cancelled while it waits.
  template <typename R>
  R CancelledWhileItWaits(Task<R> task) {
    loop_->RunAt(Soon(milliseconds(30)), [this] {
      pool_->Cancel(Cancelled("enough"));
      pool_->Cancel(Cancelled("again"));
    });
    return Await(*loop_, std::move(task));
  }
  void End(Duration grace) {
    RunToEnd(*loop_, pool_->Shutdown(Soon(grace)));
    pool_.reset();
    EXPECT_EQ(Children(), 0);
  }
  TimePoint Soon(Duration d = kLong) const { return loop_->Now() + d; }

  TempFolder folder_;
  std::unique_ptr<Loop> loop_ = MakeLoop();
  std::unique_ptr<CancellablePool> pool_;
};

TEST_F(CancellableTest, EpisodesArePlayedAsBefore) {
  Open(SdkOptions(folder_, kEchoEnv));
  auto env = Episode();
  const auto step = Await(*loop_, env->Step("end", Soon()));
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_TRUE(step->done);
  const auto raised = Await(*loop_, env->Step("raise", Soon()));
  EXPECT_EQ(raised.status().code(), StatusCode::kInternal);
  env.reset();
  End(kLong);
}

TEST_F(CancellableTest, L7_AStepThatHangsIsGivenUpAtOnceAndItsProcessKilled) {
  Open(SdkOptions(folder_, kEchoEnv));
  auto env = Episode();
  const auto step = CancelledWhileItWaits(env->Step("hang", Soon()));
  EXPECT_EQ(step.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(step.status().message(), "enough");
  // Nothing begins any more.
  EXPECT_EQ(Await(*loop_, env->Step("x", Soon())).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Await(*loop_, pool_->Acquire(Soon())).status().code(), StatusCode::kCancelled);
  env.reset();
  EXPECT_EQ(Children(), 1);
  End(milliseconds(50));
}

TEST_F(CancellableTest, SoIsAProgramThatDoesNotGetReady) {
  Open({.command = {"sleep", "1000"}});
  const auto env = CancelledWhileItWaits(pool_->Acquire(Soon()));
  EXPECT_EQ(env.status().code(), StatusCode::kCancelled);
  End(milliseconds(50));
}

TEST_F(CancellableTest, ShutdownAloneCancelsToo) {
  Open(SdkOptions(folder_, kEchoEnv));
  auto env = Episode();
  std::vector<StatusCode> codes;
  loop_->Spawn([](Environment* e, TimePoint deadline, std::vector<StatusCode>* out) -> Task<void> {
    Task<Result<StepResult>> stepping = e->Step("hang", deadline);
    const Result<StepResult> step = co_await std::move(stepping);
    out->push_back(step.status().code());
  }(env.get(), Soon(), &codes));
  RunToEnd(*loop_, pool_->Shutdown(Soon(milliseconds(50))));
  EXPECT_THAT(codes, ::testing::ElementsAre(StatusCode::kCancelled));
  env.reset();
  pool_.reset();
  EXPECT_EQ(Children(), 0);
}

}  // namespace
}  // namespace forebay::env
