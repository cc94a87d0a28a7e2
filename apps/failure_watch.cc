// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "apps/failure_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {

FailureWatch::FailureWatch(Loop& loop, Options options, Hooks hooks)
    : loop_(loop), options_(std::move(options)), hooks_(std::move(hooks)) {}

void FailureWatch::Fail(const Status& status) {
  if (std::exchange(failed_, true) || stopped_) return;
  hooks_.fail(status);
}

void FailureWatch::NoteFailure(const TrajectoryId& id, Outcome outcome, const Status& status) {
  if (outcome == Outcome::kAborted) return;  // by us
  last_failure_ = status;
  const TimePoint now = loop_.Now();
  if (now - logged_since_ >= std::chrono::seconds(1)) {
    if (logged_ > kFailuresLoggedPerSecond) {
      hooks_.log(std::to_string(logged_ - kFailuresLoggedPerSecond) + " more episodes failed");
    }
    logged_since_ = now;
    logged_ = 0;
  }
  if (++logged_ > kFailuresLoggedPerSecond) return;
  hooks_.log("episode of task " + std::to_string(id.task_id) + " ended in " +
             std::string(OutcomeName(outcome)) + ": " + status.message());
}

Task<void> FailureWatch::NoteEnd(Outcome outcome, bool acted) {
  NoteRoom(outcome, acted);
  if (Trains(outcome)) failures_ = failures_in_all_ = 0;
  if (Trains(outcome) || outcome == Outcome::kAborted || stopped_) co_return;
  NoteRow(outcome);
  if (probing_) co_return;
  if (++failures_ < kFailuresToProbe && outcome != Outcome::kEngineError) co_return;
  probing_ = true;
  Task<void> probing = Probe();
  co_await std::move(probing);
  probing_ = false;
}

// Prompts that fill rollout.tokens_max leave nothing to train on, however often they are played.
void FailureWatch::NoteRoom(Outcome outcome, bool acted) {
  if (!Trains(outcome)) return;
  unplayable_ = acted ? 0 : unplayable_ + 1;
  if (unplayable_ < kUnplayableMax) return;
  Fail(InvalidArgument(
      "the first messages of '" + options_.environment + "' left no room for an action in " +
      std::to_string(unplayable_) +
      " episodes in a row: rollout.tokens_max = " + std::to_string(options_.tokens_max) +
      "; raise it (and rollout.context), or shorten the messages"));
}

void FailureWatch::NoteRow(Outcome outcome) {
  if (failures_in_all_++ == 0) failing_since_ = loop_.Now();
  if (failures_in_all_ < std::max(kFailuresMin, kFailedWavesMax * options_.actors)) return;
  if (loop_.Now() - failing_since_ < kFailuresLast) return;
  Fail(last_failure_.WithContext("the last " + std::to_string(failures_in_all_) +
                                 " episodes failed, the last one in " +
                                 std::string(OutcomeName(outcome))));
}

// Is the engine, or the environment, dead for good?
Task<void> FailureWatch::Probe() {
  Task<Status> asking = hooks_.probe_engine();
  const Status engine = co_await std::move(asking);
  if (engine.code() == StatusCode::kUnavailable) {
    Fail(engine.WithContext("the rollout engine died"));
    co_return;
  }
  if (failures_ < kFailuresToProbe) co_return;
  // Once may be bad luck: another episode can have killed the process under this one.
  Status check;
  for (int probe = 0; probe < kProbes && !stopped_; ++probe) {
    if (probe > 0) co_await loop_.SleepUntil(loop_.Now() + kProbePause);
    Task<Status> checking = hooks_.probe_environment();
    check = co_await std::move(checking);
    if (check.ok()) break;
  }
  if (!check.ok()) Fail(check.WithContext("every recent episode failed"));
  failures_ = 0;
}

}  // namespace forebay::apps
