// Goal: coroutines, timers and completions run in order on both loops; a virtual loop jumps through
// time.
#include "forebay/base/loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace forebay {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

Task<int> Add(Loop& loop, int a, int b, Duration delay) {
  co_await loop.SleepUntil(loop.Now() + delay);
  co_return a + b;
}

Task<void> AddTwice(Loop& loop, Duration delay, int* out) {
  const int first = co_await Add(loop, 1, 2, delay);
  *out = co_await Add(loop, first, 10, delay);
}

Task<void> Await(Completion<std::string> completion, std::string* out) {
  *out = co_await completion.Wait();
}

Task<void> Sleeper(Loop& loop, int i, int64_t* done) {
  co_await loop.SleepUntil(loop.Now() + milliseconds(i % 977));
  ++*done;
}

TEST(LoopTest, TasksNestAndSleepOnARealLoop) {
  std::unique_ptr<Loop> loop = MakeLoop();
  int out = 0;
  loop->Spawn(AddTwice(*loop, milliseconds(1), &out), [&] { loop->Stop(); });
  loop->Run();
  EXPECT_EQ(out, 13);
}

TEST(LoopTest, AVirtualLoopJumps) {
  std::unique_ptr<Loop> loop = MakeVirtualLoop();
  const TimePoint start = loop->Now();
  int out = 0;
  loop->Spawn(AddTwice(*loop, hours(5), &out));
  loop->Run();  // ends when nothing is left
  EXPECT_EQ(out, 13);
  EXPECT_EQ(loop->Now() - start, Duration(hours(10)));
}

TEST(LoopTest, ManySleepersEndOnce) {
  std::unique_ptr<Loop> loop = MakeVirtualLoop();
  int64_t done = 0;
  for (int i = 0; i < 20000; ++i) loop->Spawn(Sleeper(*loop, i, &done));
  loop->Run();
  EXPECT_EQ(done, 20000);
}

TEST(LoopTest, CancelledTimersDoNotRun) {
  for (const std::unique_ptr<Loop>& loop : {MakeLoop(), MakeVirtualLoop()}) {
    bool cancelled_ran = false;
    const uint64_t timer =
        loop->RunAt(loop->Now() + milliseconds(1), [&] { cancelled_ran = true; });
    loop->Cancel(timer);
    loop->RunAt(loop->Now() + milliseconds(5), [&] { loop->Stop(); });
    loop->Run();
    EXPECT_FALSE(cancelled_ran);
  }
}

TEST(LoopTest, CompletionsComeFromOtherThreadsAndTheFirstWins) {
  std::unique_ptr<Loop> loop = MakeLoop();
  Completion<std::string> completion(*loop);
  std::string out;
  loop->Spawn(Await(completion, &out), [&] { loop->Stop(); });
  std::thread other([completion] {
    completion.Set("first");
    completion.Set("second");
  });
  loop->Run();
  other.join();
  EXPECT_EQ(out, "first");
}

TEST(LoopTest, ReadableAndForgottenDescriptors) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  std::unique_ptr<Loop> loop = MakeLoop();
  bool readable = false;
  loop->WhenReadable(pipe_fds[0], [&] {
    readable = true;
    loop->Stop();
  });
  ASSERT_EQ(::write(pipe_fds[1], "x", 1), 1);
  loop->Run();
  EXPECT_TRUE(readable);

  bool forgotten_ran = false;
  loop->WhenReadable(pipe_fds[0], [&] { forgotten_ran = true; });
  loop->Forget(pipe_fds[0]);
  loop->RunAt(loop->Now() + milliseconds(5), [&] { loop->Stop(); });
  loop->Run();
  EXPECT_FALSE(forgotten_ran);
  // Forget leaves the descriptor open for its owner.
  char byte;
  EXPECT_EQ(::read(pipe_fds[0], &byte, 1), 1);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

}  // namespace
}  // namespace forebay
