// Goal: long JSON of environments is read and written by workers: the loop and its timers go on,
// what one process says keeps its order, deadlines hold, and whoever gives up leaves nothing
// behind.
#include "forebay/env/json_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/json_work_testing.h"
#include "forebay/env/subprocess.h"
#include "forebay/env/subprocess_pool_testing.h"
#include "forebay/env/subprocess_testing.h"
#include "forebay/env/tool_environment.h"
#include "forebay/env/tools.h"
#include "forebay/env/tools_testing.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr size_t kLongAnswer = 30'000'000;

// "long N" is answered by N letters.
constexpr const char* kTalker = R"(
class Env(Environment):
    def reset(self, task, split, seed): return "go"
    def step(self, action):
        if action.startswith("long "): return Step("x" * int(action[5:]))
        return Step(f"{len(action)} {action[:20]}")
)";

class LongJsonTest : public SubprocessPoolTest {
 public:
  void OpenTalker() {
    SubprocessOptions options = SdkOptions(folder_, kTalker);
    options.line_bytes_max = size_t{64} << 20;
    options.workers = held_.pool();
    Open(std::move(options));
  }
  void Spawn(Environment* env, std::string action, Duration wait, Result<StepResult>* out,
             int* ended) {
    loop_->Spawn(
        [](Environment* e, std::string a, TimePoint deadline,
           Result<StepResult>* result) -> Task<void> {
          Task<Result<StepResult>> stepping = e->Step(std::move(a), deadline);
          *result = co_await std::move(stepping);
        }(env, std::move(action), Soon(wait), out),
        [ended] { ++*ended; });
  }
  Task<void> Turns(int turns) {
    while (turns-- > 0) co_await loop_->SleepUntil(Soon(milliseconds(1)));
  }
  Task<void> Until(const int* counter, int value) {
    while (*counter < value) co_await loop_->SleepUntil(Soon(milliseconds(1)));
  }

  HeldWorkers held_;
};

TEST_F(LongJsonTest, L8_TheLoopGoesOnWhileALongAnswerIsReadAndTheNextOneWaits) {
  OpenTalker();
  Run([](LongJsonTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    auto other = co_await t->Episode();
    int ended = 0;
    Result<StepResult> answer = Internal(""), next = Internal("");
    t->Spawn(env.get(), "long " + std::to_string(kLongAnswer), kLong, &answer, &ended);
    co_await UntilItWaits(t->loop_.get(), &t->held_);
    t->Spawn(other.get(), "hi", kLong, &next, &ended);
    co_await t->Turns(200);
    EXPECT_EQ(ended, 0) << "read without the worker, or out of order";
    t->held_.Release();
    co_await t->Until(&ended, 2);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    if (answer.ok()) EXPECT_EQ(answer->messages.at(0).content, std::string(kLongAnswer, 'x'));
    EXPECT_TRUE(next.ok()) << next.status().ToString();
    if (next.ok()) EXPECT_EQ(next->messages.at(0).content, "2 hi");
  }(this));
}

TEST_F(LongJsonTest, ADeadlineDoesNotWaitForTheWorkerAndTheAnswerIsLate) {
  OpenTalker();
  Run([](LongJsonTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    auto other = co_await t->Episode();
    int ended = 0;
    Result<StepResult> answer = Internal(""), next = Internal("");
    t->Spawn(env.get(), "long 1000000", std::chrono::seconds(1), &answer, &ended);
    co_await t->Until(&ended, 1);
    EXPECT_EQ(answer.status().code(), StatusCode::kDeadlineExceeded);
    co_await UntilItWaits(t->loop_.get(), &t->held_);  // nobody waits for it any more
    t->held_.Release();
    t->Spawn(other.get(), "hi", kLong, &next, &ended);
    co_await t->Until(&ended, 2);
    EXPECT_TRUE(next.ok()) << next.status().ToString();
    EXPECT_EQ(t->pool_->stats().late_answers, 1);
    EXPECT_EQ(t->pool_->stats().crashed, 0);
  }(this));
}

TEST_F(LongJsonTest, ALongActionIsWrittenByTheWorkerAndNotSentAfterItsDeadline) {
  OpenTalker();
  Run([](LongJsonTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    auto late = co_await t->Episode();
    int ended = 0;
    Result<StepResult> answer = Internal(""), none = Internal("");
    t->Spawn(late.get(), std::string(2'000'000, 'b'), milliseconds(20), &none, &ended);
    co_await t->Until(&ended, 1);
    EXPECT_EQ(none.status().code(), StatusCode::kDeadlineExceeded);
    t->Spawn(env.get(), std::string(2'000'000, 'a'), kLong, &answer, &ended);
    co_await t->Turns(20);
    EXPECT_EQ(ended, 1);
    t->held_.Release();
    co_await t->Until(&ended, 2);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    if (answer.ok()) EXPECT_THAT(answer->messages.at(0).content, HasSubstr("2000000 aaaa"));
    EXPECT_EQ(t->pool_->stats().late_answers, 0);  // it never heard of it
  }(this));
}

TEST_F(LongJsonTest, WhatAProcessWroteBeforeItEndedCountsWhenItIsLongToo) {
  SubprocessOptions options = RawOptions(folder_, R"(
say({'forebay_env': 1, 'name': 'raw'})
while True:
    request = hear()
    if request["op"] == "step":
        raw(json.dumps({"id": request["id"], "messages": [{"role": "user", "content": "z" * 3_000_000}]}) + "\n")
        print("goodbye", file=sys.stderr, flush=True)
        os._exit(5)
    if request["op"] == "reset": say({"id": request["id"], "messages": []})
)");
  options.workers = held_.pool();
  Open(std::move(options));
  Run([](LongJsonTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    auto bystander = co_await t->Episode();
    int ended = 0;
    Result<StepResult> answer = Internal("");
    t->Spawn(env.get(), "x", kLong, &answer, &ended);
    co_await UntilItWaits(t->loop_.get(), &t->held_);
    co_await t->Turns(50);
    t->held_.Release();
    co_await t->Until(&ended, 1);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    const Status gone = co_await t->StepStatus(*bystander, "x");
    EXPECT_THAT(gone.message(), HasSubstr("exited with code 5"));
    EXPECT_THAT(gone.message(), HasSubstr("goodbye"));
  }(this));
}

TEST_F(LongJsonTest, GarbageThatIsLongEndsTheProcessAsShortGarbageDoes) {
  SubprocessOptions options = RawOptions(folder_, R"(
say({'forebay_env': 1, 'name': 'raw'})
while True:
    request = hear()
    if request["op"] == "step": raw("{" * 100_000 + "\n")
    if request["op"] == "reset": say({"id": request["id"], "messages": []})
)");
  options.workers = held_.pool();
  held_.Release();
  Open(std::move(options));
  Run([](LongJsonTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const Status status = co_await t->StepStatus(*env, "x");
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("not JSON"));
  }(this));
}

TEST_F(LongJsonTest, EpisodesAreDroppedAndThePoolEndsWhileTheWorkerHasTheirJson) {
  OpenTalker();
  Run([](LongJsonTest* t) -> Task<void> {
    auto reader = co_await t->Episode();
    auto writer = co_await t->Episode();
    const auto drop = [](Environment* env, std::string action, TimePoint end) -> Droppable {
      Task<Result<StepResult>> stepping = env->Step(std::move(action), end);
      auto result = co_await std::move(stepping);
      ADD_FAILURE() << "went on after it was dropped: " << result.status().ToString();
    };
    const Droppable written = drop(writer.get(), std::string(1'000'000, 'a'), t->Soon());
    co_await UntilItWaits(t->loop_.get(), &t->held_);
    written.handle.destroy();
    writer.reset();
    const Droppable read = drop(reader.get(), "long 1000000", t->Soon());
    while (t->held_.pool()->queued() < 2) co_await t->Turns(1);
    read.handle.destroy();
    reader.reset();
    // Nobody is there to close the episode before the answer is read: the process is killed.
    co_await t->pool_->Shutdown(t->Soon(milliseconds(300)));
    EXPECT_EQ(Children(), 0);
    t->held_.Release();
    co_await t->Turns(20);
  }(this));
}

TEST_F(LongJsonTest, ALongActionWithCallsIsReadByTheWorker) {
  auto tools =
      MakeToolEnvironment(*loop_, AnswerPool({}),
                          [] {
                            std::vector<std::unique_ptr<ToolProvider>> providers;
                            providers.push_back(FunctionTools({"size"}, [](const ToolCall& c) {
                              return ToolResult{.text = std::to_string(c.arguments.size())};
                            }));
                            return providers;
                          }(),
                          {.workers = held_.pool()});
  ASSERT_TRUE(tools.ok()) << tools.status().ToString();
  auto env = Await(*loop_, (*tools)->Acquire(Soon()));
  ASSERT_TRUE(env.ok());
  ASSERT_TRUE(Await(*loop_, (*env)->Reset({}, Soon())).ok());
  const std::string call = R"(<tool_call>{"name": "size", "arguments": {"x": ")" +
                           std::string(1'000'000, 'y') + R"("}}</tool_call>)";
  const Result<StepResult> step = AwaitHeld(*loop_, held_, (*env)->Step(call, Soon()));
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_EQ(step->messages.at(0).content, "1000008");
}

TEST(JsonWorkTest, WithoutWorkersOrForShortTextsItIsDoneAtOnce) {
  const auto loop = MakeLoop();
  HeldWorkers held;
  for (const JsonWork& work : {JsonWork(*loop, nullptr), JsonWork(*loop, held.pool())}) {
    Task<Result<int>> task =
        work.Run(kInlineJsonBytes, TimePoint::max(), [] { return Result<int>(7); });
    EXPECT_EQ(*Await(*loop, std::move(task)), 7);
  }
  Task<Result<int>> task =
      JsonWork(*loop, held.pool()).Run(kInlineJsonBytes + 1, loop->Now() + milliseconds(5), [] {
        return Result<int>(7);
      });
  EXPECT_EQ(Await(*loop, std::move(task)).status().code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace forebay::env
