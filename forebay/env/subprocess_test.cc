// Goal: an environment process may do anything; an episode gets its answer or a typed error by its
// deadline, other episodes are not hurt needlessly, and no process, descriptor or place is left
// behind.
#include "forebay/env/subprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <coroutine>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess_testing.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr auto kLong = seconds(120);  // deadlines that are not under test

constexpr const char* kHelloLine = "say({'forebay_env': 1, 'name': 'raw'})\n";
constexpr const char* kEchoEnv = R"(
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
    options.backoff = milliseconds(10);
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
  Duration shutdown_deadline_ = seconds(60);
};

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

TEST_F(SubprocessPoolTest, ACrashIsUnavailableWithCodeAndStderrAndTheProcessIsReplaced) {
  SubprocessOptions options = SdkOptions(folder_, std::string("print('last words')\n") + kEchoEnv);
  Open(std::move(options));
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    auto bystander = co_await t->Episode();
    const Status crash = co_await t->StepStatus(*env, "die");
    EXPECT_EQ(crash.code(), StatusCode::kUnavailable);
    EXPECT_THAT(crash.message(), HasSubstr("exited with code 3"));
    EXPECT_THAT(crash.message(), HasSubstr("last words"));
    EXPECT_THAT(crash.message(), HasSubstr("env.py"));
    const Status other = co_await t->StepStatus(*bystander, "x");
    EXPECT_EQ(other.code(), StatusCode::kUnavailable);
    auto next = co_await t->Episode();
    const Status fine = co_await t->StepStatus(*next, "x");
    EXPECT_TRUE(fine.ok()) << fine.ToString();
    EXPECT_EQ(t->pool_->stats().crashed, 1);
    EXPECT_EQ(t->pool_->stats().started, 2);
  }(this));
}

TEST_F(SubprocessPoolTest, KilledByASignalInTheMiddleOfAStep) {
  SubprocessOptions options = SdkOptions(folder_, R"(
class Env(Environment):
    def reset(self, task, split, seed): return "x"
    def step(self, action):
        os.kill(os.getpid(), signal.SIGKILL); time.sleep(1000)
)");
  Open(std::move(options));
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const Status status = co_await t->StepStatus(*env, "x");
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("SIGKILL"));
  }(this));
}

// Three ways not to start; each is given up after the limit, with everything a user needs to know.
TEST_F(SubprocessPoolTest, ACommandThatCannotStartGivesTheReasonAndWhatToDo) {
  struct Case {
    SubprocessOptions options;
    std::vector<std::string> parts;
  };
  SubprocessOptions silent = RawOptions(folder_, "time.sleep(1000)");
  silent.command[1] = folder_.Write("silent.py", "import time\ntime.sleep(1000)\n");
  silent.start_deadline = milliseconds(50);
  SubprocessOptions version = RawOptions(folder_, "");
  version.command[1] =
      folder_.Write("version.py", "print('{\"forebay_env\": 7}', flush=True)\ninput()\ninput()\n");
  const std::string broken = folder_.Write("broken.py", "import no_such_module_here\n");
  const std::vector<Case> cases = {
      {{.command = {"no-such-program-anywhere"}}, {"no-such-program-anywhere", "PATH", "by hand"}},
      {{.command = {"python3", broken}},
       {"exited with code 1", "no_such_module_here", "broken.py", "by hand"}},
      {{.command = {"/bin/sh", "-c", "kill -SEGV $$"}}, {"SIGSEGV"}},
      {{.command = {"/bin/true"}, .folder = "/no/such/folder"},
       {"/no/such/folder", "No such file"}},
      {{.command = {"/bin/echo", "hello there"}}, {"not of the protocol", "hello there"}},
      {silent, {"start_deadline"}},
      {version, {"version 7", "version 1"}},
  };
  for (const Case& c : cases) {
    SubprocessOptions options = c.options;
    options.start_failures_max = 2;
    options.processes = 2;
    Open(options);
    Run([](SubprocessPoolTest* t, const std::vector<std::string>* parts) -> Task<void> {
      for (int i = 0; i < 2; ++i) {  // the second is told at once
        std::unique_ptr<Environment> env;
        const Status status = co_await t->ResetStatus(env);
        EXPECT_EQ(status.code(), StatusCode::kUnavailable);
        for (const auto& part : *parts) EXPECT_THAT(status.message(), HasSubstr(part));
      }
      EXPECT_EQ(t->pool_->stats().failed_starts, 4);
    }(this, &c.parts));
  }
}

TEST_F(SubprocessPoolTest, WhatBreaksTheProtocolIsDataLossAndTheProcessIsReplaced) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"raw('this is not json\\n')", "this is not json"},
      {"say({'id': r['id'], 'done': 'yes'})", "'done'"},
      {"say({'id': r['id'], 'rewards': [1]})", "'rewards'"},
      {"say({'id': 99})", "request 99"},
      {"say({'closed': 1})", "episode 1"},
      {"say({'forebay_env': 1})", "hello twice"},
      {"raw('{\"id\": %d, \"messages\": [' % r['id']); raw('x' * 100000 + '\\n')",
       "more than 65536 bytes"},
      {"\n    while True: raw('x' * 10000)",
       "more than 65536 bytes"},  // a flood without end, bounded
  };
  for (const auto& [bad, part] : cases) {
    SCOPED_TRACE(bad);
    SubprocessOptions options = RawOptions(folder_, std::string(kHelloLine) + R"(
def answer(r):
    if r['op'] == 'reset':
        say({'id': r['id'], 'messages': []})
        return
    )" + bad + "\nwhile True: answer(hear())\n");
    options.line_bytes_max = 65536;
    Open(options);
    Run([](SubprocessPoolTest* t, const std::string* text) -> Task<void> {
      auto env = co_await t->Episode();
      const Status status = co_await t->StepStatus(*env, "x");
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
      EXPECT_THAT(status.message(), HasSubstr(*text));
      auto next = co_await t->Episode();  // on another process
      EXPECT_EQ(t->pool_->stats().crashed, 1);
    }(this, &part));
  }
}

TEST_F(SubprocessPoolTest, AFloodOnStderrIsKeptToItsTail) {
  SubprocessOptions options = SdkOptions(folder_, R"(
class Env(Environment):
    def reset(self, task, split, seed): return "x"
    def step(self, action):
        for i in range(3000): print("line", i, "x" * 300)
        os._exit(1)
)");
  options.stderr_path = folder_.path() + "/stderr.log";
  options.stderr_file_bytes_max = 200000;
  Open(std::move(options));
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const Status status = co_await t->StepStatus(*env, "x");
    EXPECT_THAT(status.message(), HasSubstr("line 2999"));
    EXPECT_LT(status.message().size(), 6000U);
  }(this));
  EXPECT_LE(std::filesystem::file_size(folder_.path() + "/stderr.log"), 400000U);
  EXPECT_LE(std::filesystem::file_size(folder_.path() + "/stderr.log.1"), 400000U);
}

TEST_F(SubprocessPoolTest, ALateAnswerIsCountedAndDropped) {
  // The answer comes after the deadline, on the same process: it must not become the answer of
  // another step.
  SubprocessOptions options = RawOptions(folder_, std::string(kHelloLine) + R"(
late = None
while True:
    r = hear()
    if r['op'] == 'step' and r['action'] == 'late': late = r['id']
    elif r['op'] == 'close':
        if late is not None: say({'id': late, 'messages': [], 'rewards': {'late': 1}})
        late = None
        say({'closed': r['episode']})
    else: say({'id': r['id'], 'messages': [], 'rewards': {'fresh': 1}})
)");
  Open(std::move(options));
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const Status status = co_await t->StepStatus(*env, "late", milliseconds(20));
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
    env.reset();
    auto next = co_await t->Episode();
    auto step = co_await next->Step("x", t->Soon());
    EXPECT_TRUE(step.ok()) << step.status().ToString();
    EXPECT_EQ(step->rewards.count("late"), 0U);
    EXPECT_EQ(t->pool_->stats().late_answers, 1);
    EXPECT_EQ(t->pool_->stats().episodes, 1);
    EXPECT_EQ(t->pool_->stats().started, 1);
  }(this));
}

TEST_F(SubprocessPoolTest, L2_HungEpisodesRecycleTheProcessAndSpareItsHealthyOnes) {
  OpenEcho([](SubprocessOptions& options) {
    options.hung_episodes_max = 2;
    options.close_grace = milliseconds(20);
  });
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto healthy = co_await t->Episode();
    for (int i = 0; i < 2; ++i) {
      auto hung = co_await t->Episode();
      const Status status = co_await t->StepStatus(*hung, "hang", milliseconds(20));
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
    }
    while (t->pool_->stats().recycled == 0) co_await t->loop_->SleepUntil(t->Soon(milliseconds(5)));
    auto fresh = co_await t->Episode();
    EXPECT_EQ(t->pool_->stats().started, 2);  // the new one is on a new process
    const Status still = co_await t->StepStatus(*healthy, "x");
    EXPECT_TRUE(still.ok()) << still.ToString();
    EXPECT_EQ(t->pool_->stats().running, 2);
    healthy.reset();  // now nothing keeps the old process
    while (t->pool_->stats().running != 1) co_await t->loop_->SleepUntil(t->Soon(milliseconds(5)));
    const Status fine = co_await t->StepStatus(*fresh, "x");
    EXPECT_TRUE(fine.ok()) << fine.ToString();
  }(this));
}

TEST_F(SubprocessPoolTest, L2_ARetiredProcessIsKilledAtTheRecycleDeadline) {
  OpenEcho([](SubprocessOptions& options) {
    options.hung_episodes_max = 1;
    options.close_grace = milliseconds(20);
    options.recycle_deadline = milliseconds(50);
  });
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto healthy = co_await t->Episode();
    auto hung = co_await t->Episode();
    const Status late = co_await t->StepStatus(*hung, "hang", milliseconds(20));
    EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
    hung.reset();
    const Status status = co_await t->StepStatus(*healthy, "hang");
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("replaced"));
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
          [](SubprocessPoolTest* test, int* ok) -> Task<void> {
            auto env = co_await test->Episode();
            const Status status = co_await test->StepStatus(*env, "sleep 0.5");
            if (status.ok()) ++*ok;
          }(t, &good),
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

TEST_F(SubprocessPoolTest, L7_ShutdownKillsGrandchildrenAndWhatIgnoresTheEnd) {
  // The child ignores the end of its input and SIGTERM, and has a child of its own.
  const std::string file = folder_.path() + "/grandchild";
  SubprocessOptions options = RawOptions(folder_, std::string(kHelloLine) + R"(
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(['sleep', '1000'])
open(')" + file + R"(', 'w').write(str(child.pid))
r = hear(); say({'id': r['id'], 'messages': []})
while True: time.sleep(1000)
)");
  Open(std::move(options));
  shutdown_deadline_ = milliseconds(50);
  Run([](SubprocessPoolTest* t) -> Task<void> { auto env = co_await t->Episode(); }(this));
  int pid = 0;
  std::ifstream(file) >> pid;
  ASSERT_GT(pid, 0);
  // It is killed; whoever adopted it may not have reaped it yet.
  std::string state = "gone";
  for (int i = 0; i < 1000; ++i) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name;
    state = "gone";
    stat >> number >> name >> state;
    if (state == "gone" || state == "Z") break;
    usleep(1000);
  }
  EXPECT_TRUE(state == "gone" || state == "Z") << state;
}

TEST_F(SubprocessPoolTest, L7_ShutdownFailsWhatIsInFlightAndNewEpisodes) {
  OpenEcho();
  RunToEnd(*loop_, [](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    int ended = 0;
    t->loop_->Spawn(
        [](SubprocessPoolTest* test, Environment* e) -> Task<void> {
          const Status status = co_await test->StepStatus(*e, "hang");
          EXPECT_EQ(status.code(), StatusCode::kCancelled);
        }(t, env.get()),
        [&ended] { ++ended; });
    co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    co_await t->pool_->Shutdown(t->Soon(milliseconds(100)));
    while (ended < 1) co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    auto place = co_await t->pool_->Acquire(t->Soon());
    EXPECT_EQ(place.status().code(), StatusCode::kCancelled);
  }(this));
  pool_.reset();
  EXPECT_EQ(Children(), 0);
}

TEST_F(SubprocessPoolTest, W3_NoDescriptorProcessOrZombieIsLeft) {
  int before = 0;
  for (int round = 0; round < 3; ++round) {
    OpenEcho([](SubprocessOptions& options) { options.processes = 2; });
    Run([](SubprocessPoolTest* t) -> Task<void> {
      for (int i = 0; i < 3; ++i) {
        auto env = co_await t->Episode();
        const Status status = co_await t->StepStatus(*env, "die");
        EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      }
    }(this));
    if (round == 0) before = OpenDescriptors();  // the loop opens its own at first use
    EXPECT_EQ(OpenDescriptors(), before);
  }
  // Without Shutdown the destructor cleans up as well, also while an episode is still held.
  OpenEcho();
  std::unique_ptr<Environment> kept;
  RunToEnd(*loop_, [](SubprocessPoolTest* t, std::unique_ptr<Environment>* env) -> Task<void> {
    *env = co_await t->Episode();
  }(this, &kept));
  pool_.reset();
  kept.reset();
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(Children(), 0);
}

TEST_F(SubprocessPoolTest, AnEpisodeMayBeDroppedInTheMiddleOfAStep) {
  OpenEcho([](SubprocessOptions& options) { options.episodes_per_process = 1; });
  const auto play = [](SubprocessPoolTest* t, bool* stepping) -> Droppable {
    auto env = co_await t->Episode();
    *stepping = true;
    const Status status = co_await t->StepStatus(*env, "late");
    ADD_FAILURE() << "it was dropped, not " << status.ToString();
  };
  bool stepping = false;
  const Droppable dropped = play(this, &stepping);
  Run([](SubprocessPoolTest* t, const bool* flag, std::coroutine_handle<> episode) -> Task<void> {
    while (!*flag) co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    episode.destroy();
    auto next = co_await t->Episode();  // takes the place once the process has let go of it
    const Status fine = co_await t->StepStatus(*next, "x");
    EXPECT_TRUE(fine.ok()) << fine.ToString();
    EXPECT_EQ(t->pool_->stats().started, 1);
    EXPECT_EQ(t->pool_->stats().episodes, 1);
  }(this, &stepping, dropped.handle));
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
