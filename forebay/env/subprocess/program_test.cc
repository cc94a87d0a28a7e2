// Goal: a program's end, its last words and its failures are told, and nothing of it outlives its
// time.
#include "forebay/env/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/more_time_testing.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Result<ProgramEnd> RunIt(ProgramOptions options, Duration within = seconds(120),
                         std::function<bool()> stop = nullptr) {
  std::unique_ptr<Loop> loop = MakeLoop();
  std::optional<Result<ProgramEnd>> out;
  const auto run = [&]() -> Task<void> {
    Task<Result<ProgramEnd>> running =
        RunProgram(*loop, std::move(options), loop->Now() + within, std::move(stop));
    Result<ProgramEnd> end = co_await std::move(running);
    out.emplace(std::move(end));
  };
  loop->Spawn(run(), [&] { loop->Stop(); });
  loop->Run();
  return std::move(*out);
}

ProgramOptions Shell(const std::string& script) { return {.command = {"sh", "-c", script}}; }

TEST(ProgramTest, TellsHowItEndedAndItsLastWords) {
  ProgramOptions options = Shell("cat; echo out $A; echo err >&2; pwd");
  options.environment["A"] = "b";
  options.folder = "/";
  Result<ProgramEnd> end = RunIt(std::move(options));
  ASSERT_TRUE(end.ok()) << end.status().ToString();
  EXPECT_TRUE(end->ok);
  EXPECT_EQ(end->output, "out b\n/");
  EXPECT_EQ(end->errors, "err");
  end = RunIt(Shell("exit 3"));
  EXPECT_FALSE(end->ok);
  EXPECT_THAT(end->how, HasSubstr("code 3"));
  end = RunIt(Shell("kill -9 $$"));
  EXPECT_FALSE(end->ok);
  EXPECT_THAT(end->how, HasSubstr("SIGKILL"));
}

TEST(ProgramTest, KeepsTheLastBytesOfAFlood) {
  ProgramOptions options = Shell("yes | head -c 10000000; echo last");
  options.tail_bytes = 1000;
  const Result<ProgramEnd> end = RunIt(std::move(options));
  ASSERT_TRUE(end.ok());
  EXPECT_LE(end->output.size(), 1000U);
  EXPECT_THAT(end->output, ::testing::EndsWith("last"));
}

TEST(ProgramTest, WhatCannotStartIsAnError) {
  EXPECT_FALSE(RunIt({.command = {"no-such-program-here"}}).ok());
  EXPECT_FALSE(RunIt({.command = {}}).ok());
  EXPECT_FALSE(RunIt({.command = {"true"}, .folder = "/no/such/folder"}).ok());
}

TEST(ProgramTest, ItsTimeIsLimitedAndItsChildrenGoWithIt) {
  const Result<ProgramEnd> late =
      RunIt(Shell("sleep 300 & echo $! >/dev/null; wait"), milliseconds(200));
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(WithMoreTime(milliseconds(500), [](Duration within) {
    const Result<ProgramEnd> loud = RunIt(Shell("echo stuck here >&2; sleep 300"), within);
    EXPECT_EQ(loud.status().code(), StatusCode::kDeadlineExceeded);
    return loud.status().message().find("stuck here") != std::string::npos;
  }));
  // A child that outlives the program: killed when the program ends.
  const Result<ProgramEnd> left = RunIt(Shell("sleep 300 >/dev/null 2>&1 & echo $!"));
  ASSERT_TRUE(left.ok());
  const pid_t child = std::stoi(left->output);
  for (int i = 0; i < 30'000 && kill(child, 0) == 0; ++i) usleep(1000);
  EXPECT_NE(kill(child, 0), 0);
}

TEST(ProgramTest, IsStoppedWhenItsOwnerSaysSo) {
  bool stop = false;
  int asked = 0;
  const Result<ProgramEnd> end = RunIt(Shell("sleep 300"), seconds(120), [&] {
    stop = ++asked > 1;
    return stop;
  });
  EXPECT_EQ(end.status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace forebay::env
