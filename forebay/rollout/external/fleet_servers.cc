// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/external/fleet.h"
#include "forebay/rollout/external/publisher.h"
#include "forebay/rollout/external/server.h"
#include "forebay/rollout/external/start_task.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout::external {
namespace {

constexpr Duration kTurnPeriod = std::chrono::milliseconds(50);
// Answers of 500 in a row, nothing good between them, after which a server counts as dead. One that
// fails a tenth of what it is asked goes on.
constexpr int64_t kPassingFailures = 5;
constexpr int kReloadAttempts = 3;

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
        Task<void> waiting = WaitFor(member, passes ? kTurnPeriod : options_.health_period);
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

// Whether it says that one request failed, and not yet that the server did.
bool Fleet::Passes(const Status& status, int64_t* in_a_row) {
  return status.code() == StatusCode::kInternal && ++*in_a_row < kPassingFailures;
}

Task<Status> Fleet::Prepare(Member* member) {
  member->server->SetTicket("");  // it may be another process by now
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
      gives_ ? PreparePublisher(member) : PrepareReload(member, std::move(facts->version));
  co_return co_await std::move(preparing);
}

Task<Status> Fleet::PrepareReload(Member* member, std::string version) {
  // It was only a broken connection if it still has what we gave it; else it was started again.
  const bool kept = member->version == target_.version && !version.empty() &&
                    version == std::to_string(target_.version);
  if (kept) co_return OkStatus();
  Task<Status> refreshing = Refresh(member);
  co_return co_await std::move(refreshing);
}

Task<Status> Fleet::PreparePublisher(Member* member) {
  Task<Result<Publisher::Held>> entering =
      member->publisher->Enter(loop_.Now() + options_.health_deadline);
  const Result<Publisher::Held> held = co_await std::move(entering);
  if (!held.ok()) co_return held.status();
  if (held->policy_version == target_.version && held->digest == target_.digest) {
    member->version = target_.version;
    member->version_max = std::max(member->version_max, target_.version);
    co_return OkStatus();
  }
  Task<Status> giving = Give(member);
  co_return co_await std::move(giving);
}

// While its requests go on.
Task<Status> Fleet::Give(Member* member) {
  const std::shared_ptr<const Offering> offering = target_.offering;
  const Publisher& publisher = *member->publisher;
  const int64_t offered = publisher.bytes_offered();
  const int64_t sent = publisher.bytes_sent();
  Task<Status> giving = member->publisher->Give(offering, &member->version_max,
                                                loop_.Now() + options_.reload_deadline);
  const Status status = co_await std::move(giving);
  member->version = status.ok() ? offering->manifest.policy_version : -1;
  const MutexLock lock(mutex_);
  stats_.published_bytes += publisher.bytes_offered() - offered;
  stats_.published_bytes_sent += publisher.bytes_sent() - sent;
  co_return status;
}

Task<Status> Fleet::Refresh(Member* member) {
  if (gives_) {
    Task<Status> giving = Give(member);
    co_return co_await std::move(giving);
  }
  const TimePoint began = loop_.Now();
  const TimePoint deadline = began + options_.reload_deadline;
  // One at a time, so that the others go on.
  while (reloading_ != nullptr) {
    Task<void> waiting = WaitFor(member, kTurnPeriod);
    co_await std::move(waiting);
  }
  reloading_ = member;
  member->draining = true;
  while (member->active > 0 && loop_.Now() < deadline) {
    Task<void> waiting = WaitFor(member, kTurnPeriod);
    co_await std::move(waiting);
  }
  DropRequests(*member, Unavailable(member->server->url() +
                                    ": its requests did not end in time for new weights"));
  const int64_t version = target_.version;
  member->version = -1;
  Status status;
  for (int attempt = 0;
       attempt == 0 || (status.code() == StatusCode::kInternal && attempt < kReloadAttempts);
       ++attempt) {
    Task<Status> reloading = member->server->Reload(target_.folder, version, deadline);
    status = co_await std::move(reloading);
  }
  reloading_ = nullptr;
  member->draining = false;
  if (status.ok()) member->version = version;
  {
    const MutexLock lock(mutex_);
    stats_.publish_stall_last_s = Seconds(loop_.Now() - began);
    stats_.publish_stall_seconds += stats_.publish_stall_last_s;
    stats_.publish_stall_max_s = std::max(stats_.publish_stall_max_s, stats_.publish_stall_last_s);
  }
  co_return status;
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

// ---- weights

Status Fleet::CheckCoverage(const weights::Snapshot& snapshot) const {
  std::string wrong;
  int64_t count = 0;
  const auto note = [&](const std::string& name, const char* what) {
    if (++count <= 3) wrong += fmt::format("{}'{}' {}", wrong.empty() ? "" : ", ", name, what);
  };
  for (const auto& [name, shape] : names_) {
    const auto at = snapshot.tensors.find(name);
    if (at == snapshot.tensors.end()) {
      note(name, "is missing");
    } else if (at->second.shape().dims != shape.dims) {
      note(name, "has another shape");
    }
  }
  for (const auto& [name, tensor] : snapshot.tensors) {
    if (!names_.contains(name)) note(name, "is not of the model");
  }
  if (count == 0) return OkStatus();
  return InvalidArgument(fmt::format("version {} does not cover the model's {} tensors: {}{}",
                                     snapshot.policy_version, names_.size(), wrong,
                                     count > 3 ? fmt::format(" and {} more", count - 3) : ""));
}

void Fleet::Publish(std::shared_ptr<const weights::Snapshot> snapshot,
                    std::function<void(Status)> taken) {
  if (stopped_) return taken(Cancelled("the engine has been shut down"));
  if (const Status covered = CheckCoverage(*snapshot); !covered.ok()) return taken(covered);
  if (!options_.reload) {
    const int64_t ahead = snapshot->policy_version - first_version_;
    if (ahead > options_.versions_ahead_max) {
      return taken(FailedPrecondition(fmt::format(
          "the rollout servers keep the weights of version {}, and version {} has been trained: "
          "what "
          "they sample is {} versions old, more than buffer.max_staleness allows, and would be "
          "dropped. Use servers that take new weights (rollout.reload)",
          first_version_, snapshot->policy_version, ahead)));
    }
    return taken(OkStatus());
  }
  if (next_) next_->taken(Cancelled("newer weights took its place"));
  next_ = Next{.snapshot = std::move(snapshot), .taken = std::move(taken)};
  PublishNext();
}

void Fleet::PublishNext() {
  if (!next_ || !write_done_ || stopped_) return;
  write_done_ = false;
  writing_ = Write(*std::exchange(next_, std::nullopt));
  StartTask(*writing_);
}

Task<void> Fleet::Write(Next next) {
  const int64_t version = next.snapshot->policy_version;
  const std::string folder = fmt::format("{}/version_{:06}", options_.weights_folder, version);
  std::string digest;
  std::shared_ptr<const Offering> offering;
  Task<Status> writing = Offload(&loop_, &workers_, [&] {
    if (gives_) {
      offering = MakeOffering(next.snapshot);
      digest = offering->digest;
      return OkStatus();
    }
    weights::ModelFiles files = options_.files;
    files.tensors = next.snapshot->tensors;
    digest = weights::Digest(files.tensors);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return weights::WriteModelFolder(folder, files);
  });
  const Status written = co_await std::move(writing);
  if (stopped_) {
    next.taken(Cancelled("the engine has been shut down"));
    co_return;
  }
  if (!written.ok()) {
    next.taken(written.WithContext("writing weights for the rollout servers"));
  } else {
    if (target_.taken) target_.taken(Cancelled("newer weights took its place"));
    if (!gives_) folders_.push_back(target_.folder);
    target_ = {.version = version,
               .digest = std::move(digest),
               .folder = folder,
               .offering = std::move(offering),
               .taken = std::move(next.taken)};
    for (const std::unique_ptr<Member>& member : members_) Wake(*member);
    Settle();
  }
  loop_.Post([this] {  // drops this coroutine
    write_done_ = true;
    PublishNext();
  });
}

// Tells the publisher once every server that can be used has the weights, or none could take them.
void Fleet::Settle() {
  if (!target_.taken) return;
  bool any = false;
  Status trouble;
  for (const std::unique_ptr<Member>& member : members_) {
    const bool has = member->ready && member->version == target_.version;
    any |= has;
    if (has) continue;
    if (member->usable) return;
    if (trouble.ok()) trouble = member->trouble;
  }
  if (!any) {
    if (trouble.code() == StatusCode::kInternal) trouble = Unavailable(trouble.message());
    std::exchange(target_.taken,
                  nullptr)(trouble.WithContext("no rollout server took the new weights"));
    return;
  }
  policy_version_ = target_.version;
  {
    const MutexLock lock(mutex_);
    digest_ = target_.digest;
    ++stats_.publishes;
  }
  workers_.Post([folders = std::exchange(folders_, {})] {
    std::error_code ignored;
    for (const std::string& folder : folders) std::filesystem::remove_all(folder, ignored);
  });
  std::exchange(target_.taken, nullptr)(OkStatus());
}

}  // namespace forebay::rollout::external
