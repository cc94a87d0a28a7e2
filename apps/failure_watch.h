// FailureWatch: tells a run whose episodes fail now and then from one that is dead.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {

// Told of each episode that ends. Single failures are logged and waited out: the coordinator has
// the episode played again. What ends the run, with the reason: an engine that has ended, an
// environment that cannot begin an episode, one that begins them and fails every one for a while,
// and prompts that leave no room for an action. On the loop, by whose clock it goes.
class FailureWatch {
 public:
  // Infrastructure failures in a row after which somebody looks whether the whole thing is dead.
  static constexpr int64_t kFailuresToProbe = 16;
  // The same for episodes whose first prompt left no room for an action.
  static constexpr int64_t kUnplayableMax = 16;
  static constexpr int kProbes = 5;
  static constexpr Duration kProbePause = std::chrono::milliseconds(500);
  // An environment that starts and then fails every episode ends the run after this many waves of
  // failures, if they have lasted: shorter trouble is waited out.
  static constexpr int64_t kFailedWavesMax = 4;
  static constexpr int64_t kFailuresMin = 64;
  static constexpr Duration kFailuresLast = std::chrono::seconds(20);
  // Failed episodes in the log; the rest of a second's is counted.
  static constexpr int64_t kFailuresLoggedPerSecond = 20;

  struct Options {
    std::string environment;  // its name
    int64_t tokens_max = 0;   // of an episode
    int64_t actors = 0;       // a wave of failures is one of each
  };
  struct Hooks {
    std::function<Task<Status>()> probe_engine;  // whether it samples; kUnavailable: it has ended
    // Whether an episode can begin.
    std::function<Task<Status>()> probe_environment;
    std::function<void(const Status&)> fail;  // the run ends; called once at most
    std::function<void(const std::string&)> log;
  };

  FailureWatch(Loop& loop, Options options, Hooks hooks);
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  // An episode ended without a result, and why. Comes before its NoteEnd.
  void NoteFailure(const TrajectoryId& id, Outcome outcome, const Status& status);
  // An episode ended; `acted`: the policy wrote something in it. Waits while it probes, which it
  // does for one episode at a time. Must outlive the task.
  Task<void> NoteEnd(Outcome outcome, bool acted);
  // The run cannot go on. Only the first reason counts, and none after Stop.
  void Fail(const Status& status);
  // The run ends by itself: nothing is a failure any more.
  void Stop() { stopped_ = true; }

 private:
  void NoteRoom(Outcome outcome, bool acted);
  void NoteRow(Outcome outcome);
  Task<void> Probe();

  Loop& loop_;
  const Options options_;
  const Hooks hooks_;
  int64_t failures_ = 0;  // in a row, since the last look at the environment
  int64_t unplayable_ = 0;
  int64_t failures_in_all_ = 0;  // in a row; a probe that succeeds does not end the row
  TimePoint failing_since_;      // the first of them
  Status last_failure_;
  TimePoint logged_since_;
  int64_t logged_ = 0;
  bool probing_ = false;
  bool failed_ = false;
  bool stopped_ = false;
};

}  // namespace forebay::apps
