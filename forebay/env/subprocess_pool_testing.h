// The fixture of the subprocess pool's tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess.h"
#include "forebay/env/subprocess_testing.h"

namespace forebay::env {

inline constexpr Duration kLong = std::chrono::seconds(120);  // deadlines that are not under test

inline constexpr const char* kEchoEnv = R"(
class Env(Environment):
    def reset(self, task, split, seed):
        return f"{task} {split} {seed}"
    def step(self, action):
        if action == "die": os._exit(3)
        if action == "raise": raise ValueError("no such move")
        if action == "grade":
            with grading(): raise KeyError("rubric")
        if action == "late": time.sleep(1)
        if action == "hang":
            while True: time.sleep(1000)
        if action.startswith("sleep "): time.sleep(float(action[6:]))
        return Step("saw " + action, reward={"length": len(action)}, done=action == "end", tool="echo")
)";

class SubprocessPoolTest : public ::testing::Test {
 public:  // the tests are coroutines of lambdas
  SubprocessPoolTest() : loop_(MakeLoop()) {}

  void Open(SubprocessOptions options) {
    options.backoff = std::chrono::milliseconds(10);
    auto pool = SubprocessPool::Create(*loop_, std::move(options));
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    pool_ = std::move(*pool);
  }
  void OpenEcho(const std::function<void(SubprocessOptions&)>& change = [](SubprocessOptions&) {}) {
    SubprocessOptions options = SdkOptions(folder_, kEchoEnv);
    change(options);
    Open(std::move(options));
  }

  // Runs a test's coroutine and then shuts the pool down; nothing may be left.
  void Run(Task<void> body) {
    RunToEnd(*loop_, std::move(body));
    RunToEnd(*loop_, pool_->Shutdown(loop_->Now() + shutdown_deadline_));
    EXPECT_EQ(pool_->stats().running, 0);
    pool_.reset();
    EXPECT_EQ(Children(), 0) << "a process or zombie is left";
  }
  TimePoint Soon(Duration wait = kLong) { return loop_->Now() + wait; }

  Task<Status> ResetStatus(std::unique_ptr<Environment>& env) {
    auto place = co_await pool_->Acquire(Soon());
    if (!place.ok()) co_return place.status();
    env = std::move(*place);
    const ResetRequest request{
        .task_id = 5, .split = "eval", .seed = 9};  // GCC 12: no braces in a co_await
    auto messages = co_await env->Reset(request, Soon());
    co_return messages.status();
  }
  // An episode that was reset.
  Task<std::unique_ptr<Environment>> Episode() {
    std::unique_ptr<Environment> env;
    const Status status = co_await ResetStatus(env);
    EXPECT_TRUE(status.ok()) << status.ToString();
    co_return env;
  }
  Task<Status> StepStatus(Environment& env, std::string action, Duration wait = kLong) {
    auto result = co_await env.Step(std::move(action), Soon(wait));
    co_return result.status();
  }

  TempFolder folder_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<SubprocessPool> pool_;
  Duration shutdown_deadline_ = std::chrono::seconds(60);
};

}  // namespace forebay::env
