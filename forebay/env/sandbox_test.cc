// What a command in the sandbox can and cannot do, and that nothing of it is left. Needs
// bubblewrap.
#include "forebay/env/sandbox.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <coroutine>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/more_time_testing.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/subprocess_testing.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr Duration kLong = seconds(120);  // limits that are not under test

class SandboxTest : public ::testing::Test {
 public:
  void Open(SandboxOptions options = {}) {
    auto sandbox = Sandbox::Create(*loop_, std::move(options));
    ASSERT_TRUE(sandbox.ok()) << sandbox.status().ToString();
    sandbox_ = std::move(*sandbox);
  }

  // Runs a shell command to its end.
  SandboxResult Shell(std::string command, std::string input = "") {
    if (sandbox_ == nullptr) Open({.wall_max = kLong});
    SandboxResult result;
    RunToEnd(*loop_, [](SandboxTest* t, SandboxRun run, SandboxResult* out) -> Task<void> {
      Task<Result<SandboxResult>> running = t->sandbox_->Run(std::move(run), t->Soon(2 * kLong));
      Result<SandboxResult> ended = co_await std::move(running);
      EXPECT_TRUE(ended.ok()) << ended.status().ToString();
      if (ended.ok()) *out = std::move(*ended);
    }(this, {.command = {"sh", "-c", std::move(command)}, .input = std::move(input)}, &result));
    return result;
  }

  TimePoint Soon(Duration d = seconds(60)) const { return loop_->Now() + d; }

  std::unique_ptr<Loop> loop_ = MakeLoop();
  std::unique_ptr<Sandbox> sandbox_;
};

TEST_F(SandboxTest, ACommandRunsAndItsStreamsAndCodeComeBack) {
  const SandboxResult result = Shell("read x; echo out $x; echo err >&2; exit 3", "hello\n");
  EXPECT_EQ(result.output, "out hello\n");
  EXPECT_EQ(result.errors, "err\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(result.timed_out || result.output_full);
  EXPECT_GT(result.took, Duration::zero());
  EXPECT_EQ(Shell("kill -TERM $$").exit_code, 128 + 15);
  EXPECT_THAT(Shell("exec no_such_program").errors, HasSubstr("no_such_program"));
}

TEST_F(SandboxTest, LargeInputAndOutputPassWhole) {
  Open({.output_bytes_max = 2 << 20, .wall_max = kLong});
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(Shell("cat", large).output, large);
  EXPECT_EQ(Shell("exit 0", large).exit_code, 0);  // an input that nobody reads
}

TEST_F(SandboxTest, ItSeesNoFilesVariablesProcessesOrNetworkOfTheHost) {
  setenv("FOREBAY_TEST_SECRET", "sesame", 1);
  const TempFolder folder;
  const std::string file = folder.Write("secret.txt", "sesame");
  EXPECT_THAT(Shell("env; cat /proc/*/environ").output, Not(HasSubstr("sesame")));
  EXPECT_NE(Shell("cat " + file).exit_code, 0);
  EXPECT_THAT(Shell("ls /root /home /etc/passwd /var 2>/dev/null | wc -l").output, "0\n");
  // Its own processes: bwrap's, sh, ls, wc and little more.
  EXPECT_LT(std::stoi(Shell("ls -d /proc/[0-9]* | wc -l").output), 8);
  EXPECT_EQ(Shell("tail -n +3 /proc/net/dev | grep -vc ' lo:'").output, "0\n");
  EXPECT_THAT(Shell("id -u").output, geteuid() == 0 ? "65534\n" : std::to_string(geteuid()) + "\n");
}

// No namespace holds a virtual machine's sockets, and no limit counts memory that has a descriptor.
TEST_F(SandboxTest, SocketsOfOtherKindsAndMemoryThatNoLimitCountsAreRefused) {
  const std::string calls =
      fmt::format("calls = ({}, 0, 4096, 0o1600), ({}, 0, 4, 0o1600), ({}, 0, 0o1600), ({}, 8, 0)",
                  SYS_shmget, SYS_semget, SYS_msgget, SYS_io_uring_setup);
  const SandboxResult result = Shell("exec python3 -c '" + calls + R"(
import ctypes, errno, os, socket
def tried(fn):
    try:
        fn()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
print(tried(lambda: socket.socket(socket.AF_VSOCK)), tried(lambda: socket.socket(socket.AF_PACKET)))
print(tried(lambda: os.memfd_create("m")))
libc = ctypes.CDLL(None, use_errno=True)
def system(number, *arguments):
    if libc.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), "")
for call in calls:
    print(tried(lambda: system(*call)))
print(tried(socket.socketpair), tried(socket.socket), tried(lambda: socket.socket(socket.AF_INET6)))
')");
  EXPECT_EQ(result.output,
            "EAFNOSUPPORT EAFNOSUPPORT\nENOSYS\nENOSYS\nENOSYS\nENOSYS\nENOSYS\ndone done done\n")
      << result.errors;
}

TEST_F(SandboxTest, ItWritesInItsOwnTmpOnlyAndBeginsAnew) {
  EXPECT_EQ(Shell("pwd; echo x > /tmp/file; cat file").output, "/tmp\nx\n");
  EXPECT_EQ(Shell("ls /tmp").output, "");
  for (const std::string path : {"/x", "/usr/x", "/dev/x", "/dev/shm/x", "/proc/x", "/etc/x"}) {
    EXPECT_NE(Shell("echo x > " + path).exit_code, 0) << path;
  }
}

TEST_F(SandboxTest, FilesOfTheHostThatAreNamedCanBeRead) {
  const TempFolder folder;
  folder.Write("data.txt", "shared");
  // Nobody must be able to read it.
  ASSERT_EQ(system(("chmod -R a+rX " + folder.path()).c_str()), 0);
  Open({.wall_max = kLong, .read_only = {folder.path()}});
  EXPECT_EQ(Shell("cat " + folder.path() + "/data.txt").output, "shared");
  EXPECT_NE(Shell("echo x > " + folder.path() + "/data.txt").exit_code, 0);
}

TEST_F(SandboxTest, ProcessorTimeIsLimited) {
  Open({.cpu_s_max = 1, .wall_max = kLong});
  const SandboxResult result = Shell("while :; do :; done");
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + 9);
}

TEST_F(SandboxTest, MemoryFilesAndTmpAreLimited) {
  Open({.memory_bytes_max = 256 << 20,
        .file_bytes_max = 1 << 20,
        .tmp_bytes_max = 4 << 20,
        .wall_max = kLong});
  EXPECT_THAT(Shell("python3 -c 'x = bytearray(300 << 20)'").errors, HasSubstr("MemoryError"));
  EXPECT_EQ(Shell("python3 -c 'x = bytearray(50 << 20); print(len(x))'").output, "52428800\n");
  EXPECT_EQ(Shell("head -c 2000000 /dev/zero > f; wc -c < f").output, "1048576\n");
  const SandboxResult full =
      Shell("for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero > f$i || exit 1; done");
  EXPECT_THAT(full.errors, HasSubstr("space"));
}

TEST_F(SandboxTest, ProcessesAreLimitedAlsoForAForkBomb) {
  Open({.processes_max = 8, .wall_max = kLong});
  const SandboxResult result =
      Shell("i=0; while [ $i -lt 20 ]; do sleep 5 & i=$((i+1)); done; echo all");
  EXPECT_THAT(result.output, Not(HasSubstr("all")));
  EXPECT_THAT(result.errors, HasSubstr("ork"));  // Cannot fork
  Open({.processes_max = 8, .wall_max = seconds(2)});
  const SandboxResult bomb = Shell("b() { b | b & }; b; sleep 100");
  EXPECT_TRUE(bomb.timed_out || bomb.exit_code != 0);
  // The limit is that of each sandbox: others still have theirs.
  Open({.processes_max = 8, .wall_max = kLong});
  EXPECT_EQ(Shell("echo a | cat | cat").output, "a\n");
}

TEST_F(SandboxTest, OutputIsLimitedAndAFloodIsEnded) {
  Open({.output_bytes_max = 1000, .wall_max = kLong});
  for (const std::string stream : {"1", "2"}) {
    const SandboxResult result = Shell("yes flood >&" + stream);
    EXPECT_TRUE(result.output_full);
    EXPECT_FALSE(result.timed_out);
    EXPECT_THAT(stream == "1" ? result.output : result.errors, SizeIs(1000));
  }
  EXPECT_FALSE(Shell("head -c 999 /dev/zero").output_full);
}

TEST_F(SandboxTest, AHangIsEndedWithEverythingItStarted) {
  const int before = Children();
  EXPECT_TRUE(WithMoreTime(milliseconds(300), [&](Duration wall) {
    Open({.wall_max = wall});
    const SandboxResult result = Shell(
        "trap '' TERM HUP; setsid sh -c 'sleep 1000' & nohup sleep 1000 & echo on; sleep 1000");
    EXPECT_TRUE(result.timed_out);
    EXPECT_EQ(Children(), before);
    EXPECT_EQ(sandbox_->running(), 0);
    return result.output == "on\n";
  }));
}

TEST_F(SandboxTest, WhatACommandLeavesInTheBackgroundEndsWithIt) {
  const SandboxResult result = Shell("sleep 1000 & echo started");
  EXPECT_EQ(result.output, "started\n");
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(Children(), 0);
}

TEST_F(SandboxTest, TheDeadlineIsNotTheCommandsFault) {
  Open();
  RunToEnd(*loop_, [](SandboxTest* t) -> Task<void> {
    Task<Result<SandboxResult>> running =
        t->sandbox_->Run({.command = {"sleep", "100"}}, t->Soon(milliseconds(200)));
    const Result<SandboxResult> late = co_await std::move(running);
    EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  }(this));
  EXPECT_EQ(Children(), 0);
}

TEST_F(SandboxTest, MoreRunsThanMayBeAtOnceWaitTheirTurn) {
  Open({.parallel_max = 2});
  RunToEnd(*loop_, [](SandboxTest* t) -> Task<void> {
    int ended = 0;
    int64_t most = 0;
    for (int i = 0; i < 6; ++i) {
      t->loop_->Spawn(
          [](SandboxTest* test) -> Task<void> {
            Task<Result<SandboxResult>> running =
                test->sandbox_->Run({.command = {"sleep", "0.1"}}, test->Soon());
            const Result<SandboxResult> result = co_await std::move(running);
            EXPECT_TRUE(result.ok()) << result.status().ToString();
          }(t),
          [&ended] { ++ended; });
    }
    while (ended < 6) {
      most = std::max(most, t->sandbox_->running());
      co_await t->loop_->SleepUntil(t->Soon(milliseconds(5)));
    }
    EXPECT_EQ(most, 2);
    EXPECT_EQ(t->sandbox_->waiting(), 0);
  }(this));
}

TEST_F(SandboxTest, ADroppedRunKillsItsCommandAndGivesItsPlaceBack) {
  Open({.parallel_max = 1});
  const auto hang = [](SandboxTest* t) -> Droppable {
    Task<Result<SandboxResult>> running =
        t->sandbox_->Run({.command = {"sleep", "1000"}}, t->Soon());
    const Result<SandboxResult> result = co_await std::move(running);
    ADD_FAILURE() << "it was dropped, not " << result.status().ToString();
  };
  const Droppable runs = hang(this);
  const Droppable waits = hang(this);
  RunToEnd(*loop_,
           [](SandboxTest* t, std::coroutine_handle<> a, std::coroutine_handle<> b) -> Task<void> {
             while (t->sandbox_->running() == 0)
               co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
             EXPECT_EQ(t->sandbox_->waiting(), 1);
             b.destroy();
             EXPECT_EQ(t->sandbox_->waiting(), 0);
             a.destroy();
             while (t->sandbox_->running() > 0)
               co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
           }(this, runs.handle, waits.handle));
  EXPECT_EQ(Children(), 0);
  EXPECT_EQ(Shell("echo next").output, "next\n");
}

TEST_F(SandboxTest, W3_NoDescriptorOrProcessIsLeft) {
  Shell("echo warm");
  const int before = OpenDescriptors();
  for (int i = 0; i < 5; ++i) Shell("echo x; sleep 0.01");
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(Children(), 0);
  // Also when the sandbox goes while something runs.
  bool told = false;
  const Droppable runs = [](SandboxTest* t, bool* ended) -> Droppable {
    Task<Result<SandboxResult>> running =
        t->sandbox_->Run({.command = {"sleep", "1000"}}, t->Soon());
    const Result<SandboxResult> result = co_await std::move(running);
    EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
    *ended = true;
  }(this, &told);
  RunToEnd(*loop_, [](SandboxTest* t, const bool* ended, int wanted) -> Task<void> {
    while (t->sandbox_->running() == 0) co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    t->sandbox_.reset();
    const auto left = [&] { return !*ended || Children() > 0 || OpenDescriptors() != wanted; };
    for (int i = 0; i < 30'000 && left(); ++i) {
      co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    }
  }(this, &told, before));
  EXPECT_TRUE(told);
  runs.handle.destroy();
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(Children(), 0);
}

TEST_F(SandboxTest, WrongCommandsAndOptionsAreNamed) {
  Open();
  RunToEnd(*loop_, [](SandboxTest* t) -> Task<void> {
    std::vector<SandboxRun> wrong(4);
    wrong[1].command = {""};
    wrong[2].command = {"sh", "-c", std::string(200'000, 'x')};
    wrong[3].command = {"sh", "-c", std::string("a\0b", 3)};
    for (SandboxRun& run : wrong) {
      Task<Result<SandboxResult>> running = t->sandbox_->Run(std::move(run), t->Soon());
      const Result<SandboxResult> result = co_await std::move(running);
      EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(result.status().message(), HasSubstr("command"));
    }
  }(this));
  const std::vector<std::pair<SandboxOptions, std::string>> cases = {
      {{.cpu_s_max = 0}, "cpu_s_max"},           {{.processes_max = 0}, "processes_max"},
      {{.tmp_bytes_max = 0}, "tmp_bytes_max"},   {{.output_bytes_max = 0}, "output_bytes_max"},
      {{.wall_max = seconds(0)}, "wall_max"},    {{.parallel_max = -1}, "parallel_max"},
      {{.read_only = {"relative"}}, "relative"}, {{.read_only = {"/no/such"}}, "/no/such"}};
  for (const auto& [options, name] : cases) {
    const auto sandbox = Sandbox::Create(*loop_, options);
    ASSERT_FALSE(sandbox.ok());
    EXPECT_EQ(sandbox.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(sandbox.status().message(), HasSubstr(name));
  }
}

TEST_F(SandboxTest, WhatIsMissingIsSaid) {
  const auto none = Sandbox::Create(*loop_, {.bwrap = "no_bwrap_here"});
  EXPECT_EQ(none.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(none.status().message(), HasSubstr("install bubblewrap"));
  const auto broken = Sandbox::Create(*loop_, {.bwrap = "false"});
  EXPECT_EQ(broken.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(broken.status().message(), HasSubstr("user namespaces"));
}

}  // namespace
}  // namespace forebay::env
