// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/external/fleet.h"
#include "forebay/rollout/external/server.h"
#include "forebay/rollout/external/start_task.h"
#include "forebay/rollout/external/wire.h"

namespace forebay::rollout::external {
namespace {

// Before a server that failed one request is asked again.
constexpr Duration kPause = std::chrono::milliseconds(50);
// Answers of 500 in a row, nothing good between them, after which a server counts as dead. One that
// fails a tenth of what it is asked goes on.
constexpr int64_t kPassingFailures = 5;

Task<void> Tell(Task<Status> work, std::function<void(Status)> ended) {
  Status status = co_await std::move(work);
  ended(std::move(status));
}

// What no waiting will change.
bool Permanent(const Status& status) {
  return status.code() == StatusCode::kFailedPrecondition ||
         status.code() == StatusCode::kInvalidArgument;
}

}  // namespace

Task<void> Fleet::Supervise(Member* member) {
  while (true) {
    if (!member->ready) {
      Task<Status> preparing = Prepare(member);
      const Status status = co_await std::move(preparing);
      if (!status.ok()) {
        const bool passes = member->usable && Passes(status, &member->failures);
        if (!passes) Lose(*member, status);
        Task<void> waiting = WaitFor(member, passes ? kPause : options_.health_period);
        co_await std::move(waiting);
        continue;
      }
      Log(member->server->url() + (member->trouble.ok() ? " is ready" : " is back"));
      member->trouble = OkStatus();
      member->ready = member->usable = true;
      member->failures = 0;
      TellStart();
      Settle();
      Dispatch();
    }
    if (!options_.reload || member->version == target_.version) {
      Task<void> waiting = WaitFor(member, options_.health_period);
      co_await std::move(waiting);
    }
    if (!member->ready) continue;
    if (options_.reload && member->version != target_.version) {
      Task<Status> refreshing = Refresh(member);
      const Status status = co_await std::move(refreshing);
      if (!status.ok()) Lose(*member, status);
      Settle();
      Dispatch();
      continue;
    }
    const TimePoint health_deadline = loop_.Now() + options_.health_deadline;
    Task<Status> checking = gives_ ? member->publisher->Check(health_deadline)
                                   : member->server->CheckHealth(health_deadline);
    const Status health = co_await std::move(checking);
    if (health.ok()) member->health_failures = 0;
    if (health.ok() || health.code() == StatusCode::kResourceExhausted ||
        Passes(health, &member->health_failures)) {
      continue;
    }
    Lose(*member, health);
    DropRequests(*member, Unavailable(health.message()));
  }
}

Task<void> Fleet::AwaitSilence(Member* member, std::function<void(Status)> silent) {
  const Ask alive = gives_ ? Ask{.method = "GET", .target = "/weights/v1"} : wire_->Alive();
  Status answered;
  while (answered.ok()) {
    const OneShot<bool> pause(loop_);  // unlike a sleep it may be dropped
    loop_.RunAt(loop_.Now() + options_.health_period, [pause] { pause.Set(true); });
    auto pausing = pause.Wait();
    co_await pausing;
    Task<Status> asking =
        member->server->CheckAnswers(alive, loop_.Now() + options_.health_deadline);
    answered = co_await std::move(asking);
  }
  silent(std::move(answered));
}

Task<Status> Fleet::WhileItAnswers(Member* member, Task<Status> work) {
  struct Outcome {
    Status status;
    bool silent = false;
  };
  const OneShot<Outcome> end(loop_);
  Task<void> working =
      Tell(std::move(work), [end](Status status) { end.Set({std::move(status)}); });
  Task<void> listening = AwaitSilence(
      member, [end](Status status) { end.Set({.status = std::move(status), .silent = true}); });
  StartTask(working);
  StartTask(listening);
  auto waiting = end.Wait();
  const Outcome ended = co_await waiting;
  if (!ended.silent) co_return ended.status;
  working = {};  // closes its connections
  const Status lost = Unavailable(fmt::format("{} stopped answering while it was given weights: {}",
                                              member->server->url(), ended.status.message()));
  Lose(*member, lost);
  DropRequests(*member, lost);
  co_return lost;
}

// Whether it says that one request failed, and not yet that the server did.
bool Fleet::Passes(const Status& status, int64_t* in_a_row) {
  return status.code() == StatusCode::kInternal && ++*in_a_row < kPassingFailures;
}

Task<Status> Fleet::Prepare(Member* member) {
  // It may be another process by now.
  member->server->SetTicket("");
  member->server->SetAdapter("");
  Task<Result<ServerFacts>> examining =
      member->server->Examine(loop_.Now() + options_.health_deadline);
  Result<ServerFacts> facts = co_await std::move(examining);
  if (!facts.ok()) co_return facts.status();
  const std::string& url = member->server->url();
  if (facts->context > 0 && facts->context < options_.context) {
    co_return FailedPrecondition(
        fmt::format("{} holds {} tokens of a sequence, the run wants {}: start it with a larger "
                    "context, or lower rollout.context",
                    url, facts->context, options_.context));
  }
  member->processed = facts->processed;
  if (!options_.reload) {
    if (!facts->digest.empty() && facts->digest != target_.digest) {
      co_return FailedPrecondition(fmt::format(
          "{} serves other weights (digest {}) than the run has (digest {}): what it samples would "
          "be trained on as if these had; serve the run's own model",
          url, facts->digest, target_.digest));
    }
    if (!member->label) member->label = facts->version;
    if (*member->label != facts->version) {
      co_return FailedPrecondition(
          fmt::format("{} has weights of version '{}' now; it began with "
                      "'{}'",
                      url, facts->version, *member->label));
    }
    member->version = first_version_;
    co_return OkStatus();
  }
  Task<Status> preparing =
      gives_ ? PreparePublisher(member) : PrepareReload(member, std::move(*facts));
  co_return co_await std::move(preparing);
}

Task<void> Fleet::WaitFor(Member* member, Duration at_most) {
  member->wake.emplace(loop_);
  member->wake_timer =
      loop_.RunAt(loop_.Now() + at_most, [wake = *member->wake] { wake.Set(true); });
  auto waiting = member->wake->Wait();
  co_await waiting;
  loop_.Cancel(member->wake_timer);
  member->wake_timer = 0;
}

void Fleet::Wake(Member& member) {
  if (member.wake) member.wake->Set(true);
}

// It gets nothing until it has been asked who it is; what waits still hopes for it.
void Fleet::Suspect(Member& member, const Status& why) {
  if (!member.ready) return;
  Log(fmt::format("{} is asked again who it is: {}", member.server->url(), why.message()));
  member.trouble = why;
  member.ready = false;
  Wake(member);
}

void Fleet::Lose(Member& member, const Status& why) {
  if (member.usable || member.trouble.message() != why.message()) {
    Log(fmt::format("{} cannot be used: {}", member.server->url(), why.message()));
  }
  member.ready = member.usable = false;
  member.trouble = why;
  {
    const MutexLock lock(mutex_);
    if (Permanent(why) && start_error_.ok()) start_error_ = why;
    start_trouble_ = why;
  }
  started_.NotifyAll();
  Settle();
  Dispatch();
}

void Fleet::TellStart() {
  int64_t ready = 0;
  for (const std::unique_ptr<Member>& member : members_) ready += member->ready ? 1 : 0;
  {
    const MutexLock lock(mutex_);
    ready_at_start_ = ready;
  }
  started_.NotifyAll();
}

Status Fleet::AwaitStart(TimePoint deadline) {
  const MutexLock lock(mutex_);
  while (ready_at_start_ < static_cast<int64_t>(options_.servers.size())) {
    if (!start_error_.ok()) return start_error_;
    if (!started_.WaitUntil(mutex_, deadline)) {
      return Unavailable(fmt::format(
          "{} of {} rollout servers were ready in time; the last reason: {}", ready_at_start_,
          options_.servers.size(), start_trouble_.ok() ? "none" : start_trouble_.message()));
    }
  }
  return OkStatus();
}

void Fleet::Log(const std::string& sentence) const {
  if (options_.log) options_.log(sentence);
}

}  // namespace forebay::rollout::external
