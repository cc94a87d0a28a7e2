// How servers get new weights.
// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/external/fleet.h"
#include "forebay/rollout/external/publisher.h"
#include "forebay/rollout/external/server.h"
#include "forebay/rollout/external/start_task.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout::external {
namespace {

constexpr Duration kTurnPeriod = std::chrono::milliseconds(50);
constexpr int kReloadAttempts = 3;

}  // namespace

Task<Status> Fleet::PrepareReload(Member* member, ServerFacts facts) {
  // It was only a broken connection if it still has what we gave it; else it was started again.
  if (gives_adapters_) {
    const bool kept = !member->adapter.empty() &&
                      std::ranges::find(facts.models, member->adapter) != facts.models.end();
    if (!kept) {
      member->adapter.clear();
      member->has_base = false;
    }
    member->server->SetAdapter(member->adapter);
    if (kept && member->version == target_.version) co_return OkStatus();
  } else if (member->version == target_.version && !facts.version.empty() &&
             facts.version == std::to_string(target_.version)) {
    co_return OkStatus();
  }
  Task<Status> refreshing = Refresh(member);
  co_return co_await std::move(refreshing);
}

Task<Status> Fleet::PreparePublisher(Member* member) {
  Task<Result<Publisher::Held>> entering =
      member->publisher->Enter(loop_.Now() + options_.health_deadline);
  const Result<Publisher::Held> held = co_await std::move(entering);
  if (!held.ok()) co_return held.status();
  const Status once = CheckListedOnce(*member);
  if (!once.ok()) co_return once;
  if (held->policy_version == target_.version && held->digest == target_.digest) {
    member->version = target_.version;
    member->version_max = std::max(member->version_max, target_.version);
    co_return OkStatus();
  }
  Task<Status> giving = Give(member);
  co_return co_await std::move(giving);
}

// Two of the list that are one server would each undo what the other gives it. One server has one
// ticket for this publisher.
Status Fleet::CheckListedOnce(Member& member) const {
  for (const std::unique_ptr<Member>& other : members_) {
    if (other.get() == &member || other->server->ticket() != member.server->ticket()) continue;
    member.server->SetTicket("");  // it is the other one's
    return FailedPrecondition(
        fmt::format("{} and {} are the same server under two names: name each server once "
                    "(rollout.servers)",
                    other->server->url(), member.server->url()));
  }
  return OkStatus();
}

// While its requests go on.
Task<Status> Fleet::Give(Member* member) {
  const std::shared_ptr<const Offering> offering = target_.offering;
  const Publisher& publisher = *member->publisher;
  const int64_t offered = publisher.bytes_offered();
  const int64_t sent = publisher.bytes_sent();
  Task<Status> whole = member->publisher->Give(offering, &member->version_max,
                                               loop_.Now() + options_.reload_deadline);
  Task<Status> giving = WhileItAnswers(member, std::move(whole));
  const Status status = co_await std::move(giving);
  member->version = status.ok() ? offering->manifest.policy_version : -1;
  const MutexLock lock(mutex_);
  stats_.published_bytes += publisher.bytes_offered() - offered;
  stats_.published_bytes_sent += publisher.bytes_sent() - sent;
  co_return status;
}

// Over the run's base, which it has been given first. Each version has a name of its own, which
// requests give: what runs goes on with the one before.
Task<Status> Fleet::LoadAdapter(Member* member) {
  if (!member->has_base) {
    Task<Status> reloading = Reload(member, /*base=*/true);
    const Status reloaded = co_await std::move(reloading);
    if (!reloaded.ok()) co_return reloaded;
    member->has_base = true;
  }
  const int64_t version = target_.version;
  const TimePoint deadline = loop_.Now() + options_.reload_deadline;
  const std::string name =
      fmt::format("forebay-{}-{}-{}", started_us_, version, ++adapters_loaded_);
  Task<Status> whole = member->server->LoadAdapter(name, target_.adapter_folder, deadline);
  Task<Status> loading = WhileItAnswers(member, std::move(whole));
  const Status loaded = co_await std::move(loading);
  if (!loaded.ok()) co_return loaded;
  const std::string before = std::exchange(member->adapter, name);
  member->server->SetAdapter(name);
  member->version = version;
  if (before.empty()) co_return OkStatus();
  Task<Status> unloading =
      member->server->UnloadAdapter(before, loop_.Now() + options_.health_deadline);
  const Status ignored = co_await std::move(unloading);
  static_cast<void>(ignored);  // it may have been started again since
  co_return OkStatus();
}

Task<Status> Fleet::WriteMerged() {
  while (target_.folder.empty()) {
    const std::shared_ptr<const weights::Snapshot> snapshot = target_.snapshot;
    const std::string folder = MergedFolder(snapshot->policy_version);
    const OneShot<Status> done(loop_);  // Stop may drop this coroutine meanwhile
    workers_.Post([this, snapshot, folder, done] {
      weights::ModelFiles files = options_.files;
      files.tensors = snapshot->tensors;
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
      Status status = weights::WriteModelFolder(folder, files);
      loop_.Post([done, status = std::move(status)] { done.Set(status); });
    });
    auto writing = done.Wait();
    const Status written = co_await writing;
    if (!written.ok()) co_return written.WithContext("writing weights for the rollout servers");
    if (target_.snapshot == snapshot) target_.folder = folder;
    if (target_.snapshot != snapshot) folders_.push_back(folder);
  }
  co_return OkStatus();
}

Task<Status> Fleet::Refresh(Member* member) {
  if (gives_) {
    Task<Status> giving = Give(member);
    co_return co_await std::move(giving);
  }
  if (!target_.adapter_folder.empty() && member->loads_adapters) {
    Task<Status> loading = LoadAdapter(member);
    const Status loaded = co_await std::move(loading);
    if (loaded.code() != StatusCode::kUnimplemented) co_return loaded;
    member->loads_adapters = false;
    Log(loaded.message() + ": it gets merged weights");
  }
  Task<Status> reloading = Reload(member, /*base=*/false);
  co_return co_await std::move(reloading);
}

// One at a time, so that the others go on, and when its requests have ended.
Task<Status> Fleet::TakeTurn(Member* member, TimePoint* began) {
  while (reloading_ != nullptr) {
    Task<void> waiting = WaitFor(member, kTurnPeriod);
    co_await std::move(waiting);
  }
  reloading_ = member;
  *began = loop_.Now();
  member->draining = true;
  while (member->active > 0 && loop_.Now() < *began + options_.reload_deadline) {
    Task<void> waiting = WaitFor(member, kTurnPeriod);
    co_await std::move(waiting);
  }
  co_return OkStatus();
}

Task<Status> Fleet::Reload(Member* member, bool base) {
  TimePoint began = loop_.Now();
  Task<Status> turn = TakeTurn(member, &began);
  Task<Status> taking = WhileItAnswers(member, std::move(turn));
  Status status = co_await std::move(taking);
  const TimePoint deadline = began + options_.reload_deadline;
  DropRequests(*member, Unavailable(member->server->url() +
                                    ": its requests did not end in time for new weights"));
  if (status.ok() && !base) {
    Task<Status> writing = WriteMerged();
    status = co_await std::move(writing);
  }
  const int64_t version = base ? first_version_ : target_.version;
  const std::string folder = base ? base_folder_ : target_.folder;
  member->version = -1;
  member->has_base = false;
  member->adapter.clear();
  member->server->SetAdapter("");
  bool again = status.ok();
  for (int attempt = 0; again && attempt < kReloadAttempts; ++attempt) {
    Task<Status> whole = member->server->Reload(folder, version, deadline);
    Task<Status> reloading = WhileItAnswers(member, std::move(whole));
    status = co_await std::move(reloading);
    again = status.code() == StatusCode::kInternal;
  }
  if (reloading_ == member) reloading_ = nullptr;
  member->draining = false;
  if (status.ok() && !base) member->version = version;
  {
    const MutexLock lock(mutex_);
    stats_.publish_stall_last_s = Seconds(loop_.Now() - began);
    stats_.publish_stall_seconds += stats_.publish_stall_last_s;
    stats_.publish_stall_max_s = std::max(stats_.publish_stall_max_s, stats_.publish_stall_last_s);
  }
  co_return status;
}

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

void Fleet::Publish(std::shared_ptr<const weights::Snapshot> snapshot, AdapterWriter adapter,
                    std::function<void(Status)> taken) {
  if (stopped_) return taken(HasShutDown());
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
  next_ = Next{.snapshot = std::move(snapshot),
               .adapter = gives_adapters_ ? std::move(adapter) : nullptr,
               .taken = std::move(taken)};
  PublishNext();
}

void Fleet::PublishNext() {
  if (!next_ || !write_done_ || stopped_) return;
  write_done_ = false;
  writing_ = Write(*std::exchange(next_, std::nullopt));
  StartTask(*writing_);
}

std::string Fleet::MergedFolder(int64_t version) const {
  return fmt::format("{}/version_{:06}", options_.weights_folder, version);
}

Task<void> Fleet::Write(Next next) {
  const int64_t version = next.snapshot->policy_version;
  const bool adapted = next.adapter != nullptr;
  const std::string folder = adapted
                                 ? fmt::format("{}/adapter_{:06}", options_.weights_folder, version)
                                 : MergedFolder(version);
  std::string digest;
  std::shared_ptr<const Offering> offering;
  Task<Status> writing = Offload(&loop_, &workers_, [&] {
    if (gives_) {
      offering = MakeOffering(next.snapshot);
      digest = offering->digest;
      return OkStatus();
    }
    digest = weights::Digest(next.snapshot->tensors);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    if (adapted) return next.adapter(folder);
    weights::ModelFiles files = options_.files;
    files.tensors = next.snapshot->tensors;
    return weights::WriteModelFolder(folder, files);
  });
  const Status written = co_await std::move(writing);
  if (stopped_) {
    next.taken(HasShutDown());
    co_return;
  }
  if (!written.ok()) {
    next.taken(written.WithContext("writing weights for the rollout servers"));
  } else {
    if (target_.taken) target_.taken(Cancelled("newer weights took its place"));
    if (!target_.folder.empty()) folders_.push_back(target_.folder);
    if (!target_.adapter_folder.empty()) adapters_.push_back(target_.adapter_folder);
    target_ = {.version = version,
               .digest = std::move(digest),
               .folder = adapted || gives_ ? "" : folder,
               .adapter_folder = adapted ? folder : "",
               .snapshot = adapted ? next.snapshot : nullptr,
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
  // What still runs may be of the adapter before.
  while (adapters_.size() > 1) {
    folders_.push_back(adapters_.front());
    adapters_.erase(adapters_.begin());
  }
  workers_.Post([folders = std::exchange(folders_, {})] {
    std::error_code ignored;
    for (const std::string& folder : folders) std::filesystem::remove_all(folder, ignored);
  });
  std::exchange(target_.taken, nullptr)(OkStatus());
}

}  // namespace forebay::rollout::external
