// The actors' side of Core: from Append to the acknowledgement.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/clock.h"
#include "forebay/base/futex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// A thread that waits for its own append. Owned by both sides: the thread may give up first.
class Waiter {
 public:
  // All of told_ and sleeping_ in one order: either this sees the sleeper, or that sees that it was
  // told.
  void Set(const Status& status) {
    status_ = status;
    told_.store(1);
    if (sleeping_.load()) FutexWakeAll(told_);
    Unref();
  }
  // False after the deadline.
  bool Wait(TimePoint deadline) {
    sleeping_.store(true);
    while (told_.load() == 0) {
      if (!FutexWait(told_, 0, deadline)) return told_.load() != 0;
    }
    return true;
  }
  bool told() const { return told_.load(std::memory_order_acquire) != 0; }
  const Status& status() const { return status_; }
  void Unref() {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<uint32_t> told_{0};
  std::atomic<bool> sleeping_{false};
  std::atomic<int> owners_{2};
  Status status_;
};

}  // namespace

void Core::EndWithoutTraining(const TrajectoryId& id, RejectReason reason, const Done& done) {
  HelpNotes();
  Calls calls;
  Status status;
  {
    const Locked lock(*this);
    status = EndAttempt(id, reason, calls);
  }
  Run(calls);
  if (done) done(status);
  Admit(calls);
}

// An append that ends its attempt without anything to train on. Sent again, it is acknowledged
// again.
Status Core::EndAttempt(const TrajectoryId& id, RejectReason reason, Calls& calls) {
  FB_RETURN_IF_ERROR(RefusalLocked());
  if (options_.implied_dispatch) {
    if (!table_.Dispatched(id.trajectory_id)) {
      FB_RETURN_IF_ERROR(table_.Dispatch(id));
    } else if (!table_.InFlight(id)) {
      ++duplicates_;
      return OkStatus();
    }
  }
  if (!table_.InFlight(id)) {
    table_.CountLate();
    return NotFound(
        fmt::format("attempt {} (group {}, member {}) is not in flight: dropped as late",
                    id.trajectory_id, id.group_id, id.member));
  }
  FB_RETURN_IF_ERROR(table_.Reject(id, reason));
  NoteRejected({id}, reason, calls);
  return OkStatus();
}

void Core::Append(Trajectory trajectory, TimePoint deadline, Done done) {
  if (const Status valid = Validate(trajectory); !valid.ok()) {
    if (done) done(valid.WithContext(fmt::format("trajectory {}", trajectory.id.trajectory_id)));
    return;
  }
  AppendEncoded(Encode(trajectory), {.deadline = deadline}, std::move(done));
}

void Core::AppendEncoded(std::string_view encoded, const AppendOptions& options, Done done) {
  LogSlot slot;
  if (StartAppend(encoded, options, done, &slot) != Place::kReserved) return;
  log_->FillTrajectory(slot, encoded);
  if (log_->sync()) {
    log_->Kick();
  } else {
    FinishAppend(slot);
    done(OkStatus());
    RecycleNow();
  }
}

Status Core::AppendEncodedAndWait(std::string_view encoded, const AppendOptions& options) {
  auto* const waiter = new Waiter;
  Done done = [waiter](const Status& status) { waiter->Set(status); };
  LogSlot slot;
  const Place place = StartAppend(encoded, options, done, &slot);
  if (place == Place::kReserved) {
    log_->FillTrajectory(slot, encoded);
    if (!log_->sync()) {
      FinishAppend(slot);
      delete waiter;  // nobody else has it
      RecycleNow();
      return OkStatus();
    }
    log_->Await(slot.group, options.deadline);
  }
  // The keeper ends a wait for room at its deadline, with the reason: let it speak first.
  constexpr auto kKeeperIsLate = std::chrono::seconds(1);
  if (!waiter->told()) waiter->Wait(options.deadline + kKeeperIsLate);
  const Status status = waiter->told() ? waiter->status()
                                       : DeadlineExceeded(
                                             "the append was not acknowledged in time; it may "
                                             "still become durable");
  waiter->Unref();
  return status;
}

Core::Locked::Locked(const Core& core) : core_(core) {
  core.mutex_.Lock();
  // What was settled is there; to count it changes nothing that somebody has seen.
  if (core.log_ != nullptr && core.log_->HasSettled()) const_cast<Core&>(core).ApplySettled(calls_);
}

Core::Locked::~Locked() {
  core_.mutex_.Unlock();
  Run(calls_);
}

// kOs, kMemory: what was filled is durable. It becomes pending when somebody looks, which is now if
// somebody waits for it. Of expected_ and what is settled either this sees the one, or whoever
// expects it sees the other.
void Core::FinishAppend(const LogSlot& slot) {
  log_->Settle(slot);
  if (!expected_.load()) return;
  const Locked lock(*this);
  expected_ = groups_wanted_ > 0 || !twins_.empty() || listener_.on_pending != nullptr;
}

void Core::ApplySettled(Calls& calls) {
  settled_.clear();
  log_->TakeSettled(&settled_);
  // Not OK: its attempt was ended meanwhile, as if just after the append.
  for (const LogEntry& entry : settled_) SettleEntry(entry, calls).ok();
  WakeReaders();
}

// kReserved: fill the slot. Else `done` was called, or will be.
Core::Place Core::StartAppend(std::string_view encoded, const AppendOptions& options, Done& done,
                              LogSlot* slot) {
  if (!done) done = [](const Status&) {};
  const std::optional<TrajectorySummary> summary = PeekSummary(encoded);
  if (!summary) {
    done(DataLoss("what was appended is not an encoded trajectory"));
    return Place::kEnded;
  }
  const TrajectoryId& id = summary->id;
  if (id.trajectory_id != options.trajectory_id.value_or(id.trajectory_id)) {
    done(InvalidArgument(fmt::format(
        "the bytes of trajectory {} were changed while they were appended: they are {}'s now",
        *options.trajectory_id, id.trajectory_id)));
    return Place::kEnded;
  }
  if (!Trains(summary->outcome) || summary->min_version < 0) {
    EndWithoutTraining(
        id, Trains(summary->outcome) ? RejectReason::kNoLossTokens : RejectReason::kOutcome, done);
    return Place::kEnded;
  }
  const int64_t limit = std::min(options_.record_bytes_max, log_->payload_bytes_max());
  if (static_cast<int64_t>(encoded.size()) > limit) {
    done(InvalidArgument(fmt::format(
        "trajectory {} has {} bytes, the limit is {} (record_bytes_max {}, segment_bytes {}): "
        "shorten the episode or raise it",
        id.trajectory_id, encoded.size(), limit, options_.record_bytes_max,
        options_.segment_bytes)));
    return Place::kEnded;
  }
  if (summary->min_version > kVersionMax || !(options.priority >= 0) ||
      options.priority > std::numeric_limits<float>::max()) {
    done(InvalidArgument(
        fmt::format("trajectory {}: version {}, priority {}: a version is at most "
                    "{}, a priority finite and not negative",
                    id.trajectory_id, summary->min_version, options.priority, kVersionMax)));
    return Place::kEnded;
  }
  Status ended;
  bool duplicate = false;
  uint32_t place = kNoIndex;
  {
    const Locked lock(*this);
    ended = CheckAppend(*summary, &duplicate, &place, done);
    if (ended.ok() && !duplicate) {
      if (waiting_.empty() && !appends_paused_ &&
          TryReserve(*summary, options.priority, encoded.size(), place, done, slot)) {
        return Place::kReserved;
      }
      waiting_.push_back({.summary = *summary,
                          .priority = options.priority,
                          .place = place,
                          .encoded = std::string(encoded),
                          .since = Now(),
                          .deadline = options.deadline,
                          .done = std::exchange(done, nullptr)});
      readers_.NotifyAll();  // see CanLease
    }
  }
  if (!ended.ok() || duplicate) {
    if (done) {
      done(ended);
    } else {
      const Locked lock(*this);  // the one that it joined may be settled, and nobody told then
    }
    return Place::kEnded;
  }
  // There may be room, and others before it: all who append help to get them through.
  Calls calls;
  Admit(calls);
  RecycleNow();
  Signal();
  return Place::kWaits;
}

// Whether the attempt may end with this append; it is noted as being appended then. A duplicate of
// one that is being written now takes `done` and tells it together.
Status Core::CheckAppend(const TrajectorySummary& summary, bool* duplicate, uint32_t* place,
                         Done& done) {
  const TrajectoryId& id = summary.id;
  FB_RETURN_IF_ERROR(RefusalLocked());
  const bool implied = options_.implied_dispatch;
  if (implied && !table_.Dispatched(id.trajectory_id)) {
    FB_RETURN_IF_ERROR(table_.Dispatch(id, place));
    table_.BeginFirstAppend(*place);
    return OkStatus();
  }
  const Table::Begun begun = table_.BeginAppend(id, place);
  if (begun == Table::Begun::kNow) return OkStatus();
  if (implied) {
    if (begun == Table::Begun::kBefore) {
      twins_[id.trajectory_id].push_back(std::exchange(done, nullptr));
      expected_ = true;
    } else if (const auto other = table_.InFlightAs(id.trajectory_id)) {
      return InvalidArgument(fmt::format(
          "trajectory {} is being appended as attempt {} of member {} of group {}, task {}: it "
          "cannot be attempt {} of member {} of group {}, task {}, too",
          id.trajectory_id, other->attempt, other->member, other->group_id, other->task_id,
          id.attempt, id.member, id.group_id, id.task_id));
    }
    *duplicate = true;
    ++duplicates_;
    return OkStatus();
  }
  table_.CountLate();
  return NotFound(fmt::format("attempt {} (group {}, member {}) is not in flight: dropped as late",
                              id.trajectory_id, id.group_id, id.member));
}

// Whoever appended the same meanwhile is told the same.
void Core::TellTwins(int64_t trajectory_id, const Status& status, Calls& calls) {
  if (twins_.empty()) return;
  const auto twins = twins_.find(trajectory_id);
  if (twins == twins_.end()) return;
  for (Done& twin : twins->second) {
    calls.emplace_back([done = std::move(twin), status] { done(status); });
  }
  twins_.erase(twins);
}

bool Core::TryReserve(const TrajectorySummary& summary, float priority, size_t bytes,
                      uint32_t place, const Done& done, LogSlot* slot) {
  RecordHeader header{.type = RecordType::kTrajectory,
                      .min_version = static_cast<uint32_t>(summary.min_version),
                      .priority = priority};
  header.SetId(summary.id);
  return log_->Reserve(Log::Kind::kTrajectory, header, bytes, place, log_->sync() ? done : nullptr,
                       slot);
}

// Lets waiting appends go on, in order, as far as there is room.
void Core::Admit(Calls& calls) {
  bool filled = false;
  while (true) {
    LogSlot slot;
    Waiting next;
    {
      const Locked lock(*this);
      if (waiting_.empty() || appends_paused_) break;
      Waiting& first = waiting_.front();
      const bool gone = !table_.InFlight(first.summary.id);  // rejected while it waited
      if (!gone && !TryReserve(first.summary, first.priority, first.encoded.size(), first.place,
                               first.done, &slot)) {
        break;
      }
      append_wait_seconds_ += Seconds(Now() - first.since);
      if (gone) {
        table_.CountLate();
      }
      next = std::move(first);
      waiting_.pop_front();
      if (gone) {
        const Status ended = NotFound("the attempt ended while it waited");
        TellTwins(next.summary.id.trajectory_id, ended, calls);
        calls.emplace_back([done = std::move(next.done), ended] { done(ended); });
        continue;
      }
    }
    log_->FillTrajectory(slot, next.encoded);
    filled = true;
    if (log_->sync()) continue;
    FinishAppend(slot);
    next.done(OkStatus());
  }
  if (filled && log_->sync()) log_->Kick();
  Run(calls);
}

// kSync: everything that has become durable becomes pending, in log order; then its owners are
// told.
void Core::Publish() {
  Log::Acknowledged acknowledged;
  std::vector<Status> results;  // of the last entries; those before are OK
  Calls calls;
  {
    const Locked lock(*this);
    log_->TakeAcknowledged(&acknowledged);
    for (const LogEntry& entry : acknowledged.entries) {
      Status status = SettleEntry(entry, calls);
      if (!status.ok() && results.empty()) {
        results.resize(static_cast<size_t>(&entry - acknowledged.entries.data()));
      }
      if (!status.ok() || !results.empty()) results.push_back(std::move(status));
    }
    WakeReaders();
  }
  Run(calls);
  for (size_t i = 0; i < acknowledged.entries.size(); ++i) {
    const Done& done = acknowledged.entries[i].done;
    if (done) done(results.empty() ? OkStatus() : results[i]);
  }
  Log::Wake(acknowledged);
}

Status Core::SettleEntry(const LogEntry& entry, Calls& calls) {
  const RecordHeader& header = entry.header;
  Status lost = entry.durable ? OkStatus() : log_->failed();
  if (header.type != RecordType::kTrajectory) return lost;
  const TrajectoryId id = header.id();
  if (header.code == kMovedRecord) {
    if (entry.durable) table_.Relocate(id.trajectory_id, header.segment, entry.offset_64);
    return OkStatus();
  }
  Status status = entry.durable ? table_.Pend(id,
                                              {.min_version = header.min_version,
                                               .priority = header.priority,
                                               .segment = header.segment,
                                               .offset_64 = entry.offset_64,
                                               .payload_bytes = header.payload_bytes},
                                              entry.place)
                                : std::move(lost);
  if (status.ok()) {
    ++appends_;
    if (listener_.on_pending) calls.emplace_back([this, id] { listener_.on_pending(id); });
  } else if (entry.durable) {
    table_.CountLate();  // its attempt was ended meanwhile
  }
  if (!entry.durable) table_.EndAppend(id);
  // What is appended without the lock was told OK before this.
  TellTwins(id.trajectory_id, log_->sync() ? status : OkStatus(), calls);
  return status;
}

void Core::EndWaiting(Waiting& waiting, const Status& why, Calls& calls) {
  table_.EndAppend(waiting.summary.id);
  TellTwins(waiting.summary.id.trajectory_id, why, calls);
  calls.emplace_back([done = std::move(waiting.done), why] { done(why); });
}

void Core::FailWaiting(const Status& why, Calls& calls) {
  for (Waiting& w : waiting_) {
    EndWaiting(w, why, calls);
  }
  waiting_.clear();
}

std::string Core::RoomText() const {
  const LogStats log = log_->stats();
  std::string text = logged() ? fmt::format("{} of {} bytes of disk are taken", log.disk_bytes,
                                            options_.disk_bytes_max)
                              : fmt::format("{} of {} bytes of memory are taken", log.disk_bytes,
                                            options_.memory_bytes_max);
  if (appends_paused_) text = "appends are paused";
  if (!disk_error_.ok()) text += fmt::format(" ({})", disk_error_.message());
  if (!state_error_.ok()) text += fmt::format(" ({})", state_error_.message());
  return text + ": " + table_.Describe();
}

void Core::SweepDeadlines(TimePoint now) {
  Calls calls;
  {
    const Locked lock(*this);
    std::string room;  // once for all: it looks at every segment and group
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->deadline > now) {
        ++it;
        continue;
      }
      append_wait_seconds_ += Seconds(now - it->since);
      if (room.empty()) room = RoomText();
      EndWaiting(*it, DeadlineExceeded(fmt::format("the buffer stayed full: {}", room)), calls);
      it = waiting_.erase(it);
    }
  }
  Run(calls);
  Admit(calls);  // the one that was first may have been the largest
}

}  // namespace forebay::buffer
