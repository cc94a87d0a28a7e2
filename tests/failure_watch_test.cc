// Goal: a run whose episodes fail now and then goes on; one that is dead ends with the reason,
// soon.
#include "apps/failure_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Outcome kFails = Outcome::kEnvError;

class FailureWatchTest : public ::testing::Test {
 protected:
  // `count` episodes end so, one after the other, with `apart` between them.
  void End(int64_t count, Outcome outcome, bool acted = true, Duration apart = milliseconds(1)) {
    const auto ending = [&]() -> Task<void> {
      for (int64_t i = 0; i < count; ++i) {
        if (!Trains(outcome)) watch().NoteFailure({.task_id = 3}, outcome, Internal("broken"));
        Task<void> noting = watch().NoteEnd(outcome, acted);
        co_await std::move(noting);
        co_await loop_->SleepUntil(loop_->Now() + apart);
      }
    };
    loop_->Spawn(ending(), [&] { loop_->Stop(); });
    loop_->Run();
  }
  FailureWatch& watch() {
    if (!watch_) {
      watch_ = std::make_unique<FailureWatch>(
          *loop_,
          FailureWatch::Options{.environment = "maze", .tokens_max = 512, .actors = actors_},
          FailureWatch::Hooks{.probe_engine = [this]() -> Task<Status> {
                                ++engine_probes_;
                                co_return engine_;
                              },
                              .probe_environment = [this]() -> Task<Status> {
                                const size_t probe = environment_probes_.size();
                                environment_probes_.push_back(loop_->Now());
                                co_return probe < broken_probes_ ? Unavailable("no process")
                                                                 : OkStatus();
                              },
                              .fail = [this](const Status& why) { failures_.push_back(why); },
                              .log = [this](const std::string& line) { log_.push_back(line); }});
    }
    return *watch_;
  }
  // Why the run has ended; "" if it has not.
  std::string Why() const {
    EXPECT_LE(failures_.size(), 1U);
    return failures_.empty() ? "" : failures_.front().message();
  }

  const std::unique_ptr<Loop> loop_ = MakeVirtualLoop();
  int64_t actors_ = 8;
  Status engine_;             // what a probe of it says
  size_t broken_probes_ = 0;  // of the environment
  int engine_probes_ = 0;
  std::vector<TimePoint> environment_probes_;
  std::vector<Status> failures_;
  std::vector<std::string> log_;
  std::unique_ptr<FailureWatch> watch_;
};

TEST_F(FailureWatchTest, SingleFailuresAreOnlyLogged) {
  for (int i = 0; i < 20; ++i) {
    End(FailureWatch::kFailuresToProbe - 1, kFails, true, seconds(1));
    End(1, Outcome::kDone);
  }
  EXPECT_EQ(engine_probes_, 0);
  EXPECT_EQ(Why(), "");
  ASSERT_THAT(log_, SizeIs(20 * (FailureWatch::kFailuresToProbe - 1)));
  EXPECT_EQ(log_[0], "episode of task 3 ended in env_error: broken");
}

TEST_F(FailureWatchTest, ManyInARowAreLookedAtAndAnEnvironmentThatStartsIsLetBe) {
  End(FailureWatch::kFailuresToProbe, kFails);
  EXPECT_EQ(engine_probes_, 1);
  EXPECT_THAT(environment_probes_, SizeIs(1));
  End(FailureWatch::kFailuresToProbe - 1, kFails);  // counted anew
  EXPECT_EQ(engine_probes_, 1);
  End(1, kFails);
  EXPECT_EQ(engine_probes_, 2);
  EXPECT_EQ(Why(), "");
}

TEST_F(FailureWatchTest, AnEnvironmentIsDeadOnlyWhenAllProbesFail) {
  broken_probes_ = FailureWatch::kProbes - 1;
  End(FailureWatch::kFailuresToProbe, kFails);
  ASSERT_THAT(environment_probes_, SizeIs(FailureWatch::kProbes));
  EXPECT_EQ(environment_probes_.back() - environment_probes_.front(),
            (FailureWatch::kProbes - 1) * FailureWatch::kProbePause);
  EXPECT_EQ(Why(), "");

  broken_probes_ = 1000;
  End(2 * FailureWatch::kFailuresToProbe, kFails);
  EXPECT_THAT(Why(), AllOf(HasSubstr("every recent episode failed"), HasSubstr("no process")));
}

TEST_F(FailureWatchTest, AnEngineIsAskedAtItsFirstError) {
  struct Case {
    Status engine;
    bool dies;
  };
  for (const Case& c : std::vector<Case>{{OkStatus(), false},
                                         {DeadlineExceeded("slow"), false},
                                         {ResourceExhausted("full"), false},
                                         {Unavailable("the device is gone"), true}}) {
    watch_.reset();
    engine_probes_ = 0;
    engine_ = c.engine;
    End(1, Outcome::kEngineError);
    EXPECT_EQ(engine_probes_, 1);
    EXPECT_THAT(environment_probes_, IsEmpty());  // it is not its fault
    EXPECT_EQ(!Why().empty(), c.dies) << c.engine.ToString();
  }
  EXPECT_THAT(Why(), AllOf(HasSubstr("the rollout engine died"), HasSubstr("device is gone")));
}

TEST_F(FailureWatchTest, AnEnvironmentThatStartsAndFailsEveryEpisodeEndsTheRun) {
  struct Case {
    const char* what;
    int64_t actors;
    int64_t failures;
    Duration apart;
    bool success_between;
    bool ends;
  };
  const std::vector<Case> cases = {
      {"enough and long", 8, FailureWatch::kFailuresMin, milliseconds(400), false, true},
      {"one less", 8, FailureWatch::kFailuresMin - 1, milliseconds(400), false, false},
      {"many at once", 8, 10 * FailureWatch::kFailuresMin, milliseconds(1), false, false},
      {"an episode between", 8, FailureWatch::kFailuresMin, milliseconds(400), true, false},
      {"waves of more actors", 32, 4 * 32 - 1, milliseconds(400), false, false},
      {"four waves of them", 32, 4 * 32, milliseconds(400), false, true},
  };
  for (const Case& c : cases) {
    watch_.reset();
    failures_.clear();
    actors_ = c.actors;
    End(c.failures / 2, kFails, true, c.apart);
    if (c.success_between) End(1, Outcome::kDone);
    End(c.failures - c.failures / 2, Outcome::kEnvTimeout, true, c.apart);
    EXPECT_EQ(!Why().empty(), c.ends) << c.what;
    if (c.ends) {
      EXPECT_THAT(Why(), AllOf(HasSubstr("the last " + std::to_string(c.failures) + " episodes"),
                               HasSubstr("env_timeout"), HasSubstr("broken")));
    }
  }
}

TEST_F(FailureWatchTest, PromptsThatLeaveNoRoomEndTheRun) {
  End(FailureWatch::kUnplayableMax - 1, Outcome::kTruncatedTokens, /*acted=*/false);
  End(5, kFails, /*acted=*/false);  // says nothing about prompts
  End(1, Outcome::kDone, /*acted=*/true);
  End(FailureWatch::kUnplayableMax - 1, Outcome::kTruncatedTokens, /*acted=*/false);
  EXPECT_EQ(Why(), "");
  End(3, Outcome::kTruncatedTokens, /*acted=*/false);
  EXPECT_THAT(Why(), AllOf(HasSubstr("'maze'"), HasSubstr("in 16 episodes in a row"),
                           HasSubstr("rollout.tokens_max = 512")));
  EXPECT_EQ(failures_[0].code(), StatusCode::kInvalidArgument);
}

TEST_F(FailureWatchTest, WhatWeEndedIsNoFailure) {
  broken_probes_ = 1000;
  End(10 * FailureWatch::kFailuresMin, Outcome::kAborted, true, seconds(1));
  EXPECT_THAT(log_, IsEmpty());
  watch().Stop();
  End(10 * FailureWatch::kFailuresMin, kFails, true, seconds(1));
  End(FailureWatch::kUnplayableMax, Outcome::kDone, /*acted=*/false);
  watch().Fail(Unavailable("the buffer is closed"));
  EXPECT_EQ(engine_probes_, 0);
  EXPECT_EQ(Why(), "");
}

TEST_F(FailureWatchTest, TheFirstReasonCounts) {
  engine_ = Unavailable("gone");
  watch().Fail(Internal("first"));
  End(100, Outcome::kEngineError, true, seconds(1));
  EXPECT_EQ(Why(), "first");
}

TEST_F(FailureWatchTest, OneLooksWhileOthersFail) {
  broken_probes_ = 3;  // looking takes 1.5 s
  End(FailureWatch::kFailuresToProbe - 1, kFails);
  int64_t running = 40;
  const auto fail = [&](Duration after) -> Task<void> {
    co_await loop_->SleepUntil(loop_->Now() + after);
    Task<void> noting = watch().NoteEnd(kFails, true);
    co_await std::move(noting);
  };
  for (int64_t i = running; i > 0; --i) {
    loop_->Spawn(fail(milliseconds(i)), [&] {
      if (--running == 0) loop_->Stop();
    });
  }
  loop_->Run();
  EXPECT_EQ(engine_probes_, 1);
  EXPECT_THAT(environment_probes_, SizeIs(4));
  EXPECT_EQ(Why(), "");
}

TEST_F(FailureWatchTest, ALogIsNotFloodedByFailures) {
  End(30, kFails, true, milliseconds(10));
  EXPECT_THAT(log_, SizeIs(FailureWatch::kFailuresLoggedPerSecond));
  loop_->Spawn(
      [](Loop* loop) -> Task<void> {
        co_await loop->SleepUntil(loop->Now() + seconds(1));
      }(loop_.get()),
      [&] { loop_->Stop(); });
  loop_->Run();
  End(1, kFails);
  ASSERT_THAT(log_, SizeIs(FailureWatch::kFailuresLoggedPerSecond + 2));
  EXPECT_EQ(log_[FailureWatch::kFailuresLoggedPerSecond], "10 more episodes failed");
}

}  // namespace
}  // namespace forebay::apps
