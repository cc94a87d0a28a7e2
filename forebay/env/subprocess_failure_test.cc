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
#include <iterator>
#include <memory>
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
using ::testing::Not;

constexpr const char* kHelloLine = "say({'forebay_env': 1, 'name': 'raw'})\n";

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

// A deadline that comes before the pool gives up: the error says what the program did all the time.
TEST_F(SubprocessPoolTest, WhoGetsNoPlaceIsToldWhatTheProgramDid) {
  struct Case {
    std::string script;
    StatusCode code;
    std::vector<std::string> says;
  };
  for (const Case& c : std::vector<Case>{
           {"echo no such module >&2; exit 9",
            StatusCode::kUnavailable,
            {"did not get ready", "exited with code 9", "no such module"}},
           {"echo loading >&2; sleep 1000",
            StatusCode::kDeadlineExceeded,
            {"still starting", "not said hello", "loading"}},
           {"kill -9 $$", StatusCode::kUnavailable, {"SIGKILL", "nothing to stderr"}}}) {
    SubprocessOptions options{.command = {"sh", "-c", c.script}, .backoff = kLong};
    options.stderr_path = folder_.path() + "/" + std::to_string(c.says.size()) + c.says[0];
    auto pool = SubprocessPool::Create(*loop_, options);
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    pool_ = std::move(*pool);
    shutdown_deadline_ = milliseconds(10);
    const bool ends = c.code == StatusCode::kUnavailable;
    Run([](SubprocessPoolTest* t, const Case* now, std::string log,
           bool program_ends) -> Task<void> {
      int ended = 0;
      t->loop_->Spawn(
          [](SubprocessPoolTest* test) -> Task<void> {
            auto first = co_await test->pool_->Acquire(test->Soon());
            EXPECT_FALSE(first.ok());
          }(t),
          [&ended] { ++ended; });
      while (program_ends ? t->pool_->stats().failed_starts == 0 : !std::filesystem::exists(log)) {
        co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
      }
      auto place = co_await t->pool_->Acquire(t->Soon(milliseconds(20)));
      EXPECT_EQ(place.status().code(), now->code) << place.status().ToString();
      for (const std::string& text : now->says) {
        EXPECT_THAT(place.status().message(), HasSubstr(text));
      }
      EXPECT_THAT(place.status().message(), Not(HasSubstr("no place")));
      co_await t->pool_->Shutdown(t->Soon(milliseconds(10)));
      while (ended == 0) co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    }(this, &c, options.stderr_path, ends));
  }
}

TEST_F(SubprocessPoolTest, WhatWentWrongWithProcessesIsSummedUpInTheirLog) {
  SubprocessOptions options = SdkOptions(folder_, kEchoEnv);
  options.stderr_path = folder_.path() + "/environment.log";
  Open(options);
  Run([](SubprocessPoolTest* t) -> Task<void> {
    auto env = co_await t->Episode();
    const Status crash = co_await t->StepStatus(*env, "die");
    EXPECT_FALSE(crash.ok());
    auto next = co_await t->Episode();
  }(this));
  std::ifstream file(options.stderr_path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("of 2 environment processes that got ready 1 crashed"));
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
  for (int i = 0; i < 30'000; ++i) {
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

}  // namespace
}  // namespace forebay::env
