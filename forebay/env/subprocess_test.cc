// Goal: episodes in environment processes: from task to reward, many at once, large and small, and
// in the order in which they came.
#include "forebay/env/subprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess_pool_testing.h"
#include "forebay/env/subprocess_testing.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST_F(SubprocessPoolTest, AnEpisodeFromTaskToReward) {
  OpenEcho();
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto place = co_await t->pool_->Acquire(t->Soon());
    EXPECT_TRUE(place.ok()) << place.status().ToString();
    if (!place.ok()) co_return;
    const ResetRequest request{.task_id = 5, .split = "eval", .seed = UINT64_MAX};
    auto first = co_await (*place)->Reset(request, t->Soon());
    EXPECT_EQ(*first, (std::vector<Message>{{"user", "5 eval 18446744073709551615"}}));
    auto step = co_await (*place)->Step("caf\xC3\xA9\n\"", t->Soon());
    EXPECT_EQ(step->messages, (std::vector<Message>{{"user", "saw caf\xC3\xA9\n\""}}));
    EXPECT_EQ(step->rewards.at("length"), 6.0);
    EXPECT_FALSE(step->done);
    EXPECT_EQ(step->tool, "echo");
    auto last = co_await (*place)->Step("end", t->Soon());
    EXPECT_TRUE(last->done);
    EXPECT_EQ(t->pool_->stats().episodes, 1);
    EXPECT_EQ(Children(), 1);
  }(this));
}

TEST_F(SubprocessPoolTest, PrintsOfUserCodeGoToStderrAndItsFile) {
  SubprocessOptions options = SdkOptions(folder_, R"(
print("at import")
class Env(Environment):
    def reset(self, task, split, seed):
        print("in python"); os.system("echo from a child"); os.write(1, b"raw write\n")
        assert sys.stdin.read() == ""
        return "ok"
)");
  options.stderr_path = folder_.path() + "/stderr.log";
  Open(std::move(options));
  Run([](SubprocessPoolTest* t) -> Task<void> { auto env = co_await t->Episode(); }(this));
  std::ifstream file(folder_.path() + "/stderr.log");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (const char* part : {"at import", "in python", "from a child", "raw write"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(SubprocessPoolTest, B2_AGraderErrorIsTypedAndNeverAReward) {
  OpenEcho();
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const Status grader = co_await t->StepStatus(*env, "grade");
    EXPECT_EQ(grader.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(grader.message(), HasSubstr("rubric"));
    auto other = co_await t->Episode();
    const Status raised = co_await t->StepStatus(*other, "raise");
    EXPECT_EQ(raised.code(), StatusCode::kInternal);
    EXPECT_THAT(raised.message(), HasSubstr("no such move"));
    EXPECT_EQ(t->pool_->stats().crashed, 0);  // an exception costs its episode only
  }(this));
}

TEST_F(SubprocessPoolTest, TwoHundredSleepingEpisodesShareTwoProcesses) {
  OpenEcho([](SubprocessOptions& options) {
    options.processes = 2;
    options.episodes_per_process = 100;
  });
  Run([](SubprocessPoolTest* t) -> Task<void> {
    int ended = 0, good = 0, most = 0;
    for (int i = 0; i < 200; ++i) {
      t->loop_->Spawn(
          [](SubprocessPoolTest* test, int* ok, const int* places) -> Task<void> {
            auto env = co_await test->Episode();
            // One process may be ready long before the other.
            while (*places <= 100) co_await test->loop_->SleepUntil(test->Soon(milliseconds(1)));
            const Status status = co_await test->StepStatus(*env, "sleep 0.5");
            if (status.ok()) ++*ok;
          }(t, &good, &most),
          [&ended] { ++ended; });
    }
    while (ended < 200) {
      most = std::max(most, static_cast<int>(t->pool_->stats().episodes));
      co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    }
    EXPECT_EQ(good, 200);
    EXPECT_EQ(t->pool_->stats().started, 2);
    EXPECT_GT(most, 100);  // both processes at once
  }(this));
}

TEST_F(SubprocessPoolTest, MoreEpisodesThanPlacesWaitInOrderOrUntilTheirDeadline) {
  OpenEcho([](SubprocessOptions& options) { options.episodes_per_process = 1; });
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    auto none = co_await t->pool_->Acquire(t->Soon(milliseconds(20)));
    EXPECT_EQ(none.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(none.status().message(), HasSubstr("no place"));
    EXPECT_EQ(t->pool_->stats().waiting, 0);
    std::string order;
    int ended = 0;
    for (const char name : {'a', 'b', 'c'}) {
      t->loop_->Spawn(
          [](SubprocessPoolTest* test, char who, std::string* log) -> Task<void> {
            auto place = co_await test->Episode();
            log->push_back(who);
          }(t, name, &order),
          [&ended] { ++ended; });
    }
    env.reset();
    while (ended < 3) co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    EXPECT_EQ(order, "abc");
  }(this));
}

TEST_F(SubprocessPoolTest, AnActionLongerThanALineIsTheCallersError) {
  OpenEcho([](SubprocessOptions& options) { options.line_bytes_max = 4096; });
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const Status status = co_await t->StepStatus(*env, std::string(5000, 'x'));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    // An answer that would be too long is the environment's error, told by the SDK.
    auto other = co_await t->Episode();
    const Status answer = co_await t->StepStatus(*other, std::string(3000, '\x01') + "x");
    EXPECT_NE(answer.code(), StatusCode::kUnavailable) << answer.ToString();
    EXPECT_EQ(t->pool_->stats().crashed, 0);
  }(this));
}

TEST_F(SubprocessPoolTest, LargeRequestsAndAnswersPassWhole) {
  OpenEcho();
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const std::string large(2 << 20, 'y');
    auto step = co_await env->Step(large, t->Soon());
    EXPECT_TRUE(step.ok()) << step.status().ToString();
    EXPECT_EQ(step->messages[0].content, "saw " + large);
  }(this));
}

TEST_F(SubprocessPoolTest, TheQuickstartsEnvironmentPlays) {
  const std::string source = FOREBAY_SOURCE_DIR;
  SubprocessOptions options{
      .command = {"python3", source + "/examples/arithmetic/env.py", "--latency-p50-s", "0.001",
                  "--latency-p99-s", "0.002"},
      .environment = {{"PYTHONPATH", source + "/python"}, {"PYTHONDONTWRITEBYTECODE", "1"}}};
  Open(std::move(options));
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto place = co_await t->pool_->Acquire(t->Soon());
    EXPECT_TRUE(place.ok()) << place.status().ToString();
    if (!place.ok()) co_return;
    const ResetRequest request{.task_id = 3, .seed = 1};
    auto first = co_await (*place)->Reset(request, t->Soon());
    const std::string prompt = first->at(0).content;  // "3+5=? ..."
    EXPECT_THAT(prompt,
                ::testing::MatchesRegex("[0-9][+][0-9]=[?] Answer with the number only[.]"));
    auto wrong = co_await (*place)->Step("99", t->Soon());
    EXPECT_FALSE(wrong->done);
    EXPECT_EQ(wrong->tool, "checker");
    auto right =
        co_await (*place)->Step(std::to_string(prompt[0] - '0' + prompt[2] - '0'), t->Soon());
    EXPECT_TRUE(right->done);
    EXPECT_EQ(right->rewards.at("correct"), 0.5);
    EXPECT_EQ(right->rewards.at("format"), 0.1);
  }(this));
}

TEST(SubprocessOptionsTest, WrongOptionsAreNamed) {
  auto loop = MakeLoop();
  const std::vector<std::pair<SubprocessOptions, std::string>> cases = {
      {{}, "command"},
      {{.command = {""}}, "command"},
      {{.command = {"x"}, .processes = 0}, "processes"},
      {{.command = {"x"}, .episodes_per_process = 0}, "episodes_per_process"},
      {{.command = {"x"}, .line_bytes_max = 10}, "line_bytes_max"},
      {{.command = {"x"}, .environment = {{"A=B", "c"}}}, "variable"},
      {{.command = {"x"}, .hung_episodes_max = 0}, "hung_episodes_max"},
  };
  for (const auto& [options, name] : cases) {
    const auto pool = SubprocessPool::Create(*loop, options);
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(pool.status().message(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace forebay::env
