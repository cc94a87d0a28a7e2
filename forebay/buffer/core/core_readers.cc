// The readers' side of Core: leases of the learner, takes of everybody else.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// What the views of a Taken point into.
struct Core::Views {
  std::vector<std::shared_ptr<char>> memories;
  std::vector<std::unique_ptr<char[]>> buffers;
};

// An overdue group holds leases back: while the version stands still nothing of it can go stale.
// Not while appends wait for room, though: its own may be among them, and only batches make room.
bool Core::CanLease(int64_t groups) const {
  return table_.ready_groups() >= groups && (!table_.OverdueGroup() || !waiting_.empty());
}

Status Core::LeaseTimedOut(int64_t groups) const {
  std::string text = fmt::format("waiting for {} groups: {}", groups, table_.Describe());
  if (readers_paused_) text += "; readers are paused";
  if (const auto overdue = table_.OverdueGroup()) {
    text += fmt::format("; group {} went stale {} times and is waited for", *overdue,
                        kStaleAttemptsMax);
  }
  return DeadlineExceeded(text);
}

// Only when a waiting reader can get what it wants: a wake-up for each append would cost more than
// the append.
void Core::WakeReaders() {
  if (groups_wanted_ > 0 && table_.ready_groups() >= groups_wanted_) {
    groups_wanted_ = 0;
    readers_.NotifyAll();
  }
}

// Sleeps until something may have changed. Not OK: the deadline has come, or somebody unblocked it.
Status Core::WaitForGroups(int64_t groups, TimePoint deadline, uint64_t unblocked) {
  if (unblocked != unblocked_) return Unavailable("unblocked: " + unblock_reason_);
  if (Now() >= deadline) return LeaseTimedOut(groups);
  expected_ = true;
  if (log_->HasSettled()) return OkStatus();  // it may be enough
  groups_wanted_ = groups_wanted_ == 0 ? groups : std::min(groups_wanted_, groups);
  ++readers_waiting_;
  readers_.WaitUntil(mutex_, deadline);
  // A wish that nobody has any more would cost each append the lock.
  if (--readers_waiting_ == 0) groups_wanted_ = 0;
  return OkStatus();
}

Core::Pinned Core::Pin(std::span<const int64_t> groups) const {
  Pinned pinned{.placed = table_.Members(groups)};
  uint32_t last = 0;
  for (const Placed& p : pinned.placed) {
    if (p.info.segment == last) continue;
    last = p.info.segment;
    std::shared_ptr<Segment>& segment = pinned.segments[last];
    if (segment != nullptr) continue;
    Result<std::shared_ptr<Segment>> found = log_->Pin(last);
    if (found.ok()) {
      segment = std::move(*found);
    } else {
      pinned.error = found.status();
    }
  }
  return pinned;
}

// Of the groups' members, as a record names them.
void Core::AppendIds(std::span<const int64_t> groups, std::vector<int64_t>* ids) const {
  for (const Placed& p : table_.Members(groups)) ids->push_back(p.id.trajectory_id);
}

// Without the lock. `damaged`: what is lost; the result is an error then. An error without any: it
// cannot be read now.
Result<Taken> Core::View(const Pinned& pinned, std::vector<TrajectoryId>* damaged) const {
  FB_RETURN_IF_ERROR(pinned.error);
  auto views = std::make_shared<Views>();
  Taken taken;
  taken.trajectories.reserve(pinned.placed.size());
  std::map<uint32_t, std::shared_ptr<char>> memories;
  for (const auto& [number, segment] : pinned.segments) {
    if (segment == nullptr) continue;
    if (auto memory = log_->MemoryOf(*segment)) {
      views->memories.push_back(memory);
      memories[number] = std::move(memory);
    }
  }
  Status first;
  for (const Placed& p : pinned.placed) {
    const std::shared_ptr<Segment>& segment = pinned.segments.at(p.info.segment);
    Result<std::string_view> payload = DataLoss(fmt::format("segment {} is gone", p.info.segment));
    if (segment != nullptr) {
      const auto memory = memories.find(p.info.segment);
      std::unique_ptr<char[]> buffer;
      payload = Log::Read(*segment, memory == memories.end() ? nullptr : memory->second,
                          p.info.offset_64, p.info.payload_bytes, p.id.trajectory_id, &buffer);
      if (buffer != nullptr) views->buffers.push_back(std::move(buffer));
    }
    if (!payload.ok()) {
      damaged->push_back(p.id);
      if (first.ok()) first = payload.status();
      continue;
    }
    taken.trajectories.push_back({.id = p.id,
                                  .min_version = p.info.min_version,
                                  .priority = p.info.priority,
                                  .encoded = *payload});
  }
  if (!first.ok()) return first;
  taken.memory = std::move(views);
  return taken;
}

Result<std::vector<TrajectoryPtr>> Core::Load(const Pinned& pinned,
                                              std::vector<TrajectoryId>* damaged) const {
  FB_ASSIGN_OR_RETURN(const Taken taken, View(pinned, damaged));
  std::vector<TrajectoryPtr> loaded;
  loaded.reserve(taken.trajectories.size());
  Status first;
  for (const TrajectoryView& view : taken.trajectories) {
    Result<Trajectory> t = Decode(view.encoded);
    if (t.ok() && t->id == view.id) {
      loaded.push_back(std::make_shared<const Trajectory>(std::move(*t)));
      continue;
    }
    damaged->push_back(view.id);
    if (first.ok()) {
      first = t.ok() ? DataLoss("another trajectory lies in its place") : t.status();
    }
  }
  if (!first.ok()) return first;
  return loaded;
}

// Acknowledged once, and damaged since: they must be sampled again.
void Core::Quarantine(const std::vector<TrajectoryId>& ids, Calls& calls) {
  for (const TrajectoryId& id : ids) {
    if (table_.Reject(id, RejectReason::kQuarantined).ok()) {
      NoteRejected({id}, RejectReason::kQuarantined, calls);
    }
  }
}

// ---- the learner

Result<Batch> Core::Lease(int64_t groups, int64_t learner_version, TimePoint deadline) {
  if (groups < 1) return InvalidArgument(fmt::format("a lease of {} groups: at least 1", groups));
  uint64_t unblocked = 0;
  {
    const Locked lock(*this);
    unblocked = unblocked_;
  }
  while (true) {
    HelpNotes();
    Calls calls;
    std::optional<Leasing> leasing;
    {
      const Locked lock(*this);
      FB_RETURN_IF_ERROR(ClosedLocked());
      if (!lease_error_.ok()) return std::exchange(lease_error_, OkStatus());
      if (std::optional<Batch> batch = HandOut()) return *std::move(batch);
      // A failed log keeps what it has: batches that are leased in it can still be trained on.
      if (leasing_ == 0 && table_.NextToHandOut() == nullptr) FB_RETURN_IF_ERROR(failed_);
      if (leasing_ == 0) leasing = StartLease(groups, learner_version, calls);
      if (!leasing && calls.empty() && !(manual_ && leasing_ != 0)) {
        FB_RETURN_IF_ERROR(WaitForLease(groups, deadline, unblocked));
        continue;
      }
    }
    Run(calls);
    if (leasing) FB_RETURN_IF_ERROR(ReadLeased(*leasing));
    if (manual_) Pump();
  }
}

// The first batch that is logged and read, and that the learner does not have.
std::optional<Batch> Core::HandOut() {
  if (leasing_ != 0) return std::nullopt;
  BatchState* const next = table_.NextToHandOut();
  if (next == nullptr) return std::nullopt;
  const auto loaded = loaded_.find(next->sequence);
  if (loaded == loaded_.end()) return std::nullopt;
  next->handed_out = true;
  Batch batch{.sequence = next->sequence,
              .learner_version = next->learner_version,
              .replay = next->replay,
              .trajectories = std::move(loaded->second)};
  loaded_.erase(loaded);
  return batch;
}

// A replay, else a new batch if there are enough groups.
std::optional<Core::Leasing> Core::StartLease(int64_t groups, int64_t learner_version,
                                              Calls& calls) {
  if (const BatchState* const replay = table_.NextToHandOut()) {
    leasing_ = replay->sequence;
    return Leasing{.sequence = leasing_, .fresh = false, .pinned = Pin(replay->groups)};
  }
  if (readers_paused_) return std::nullopt;
  NoteRejected(table_.RejectStale(learner_version, options_.max_staleness), RejectReason::kStale,
               calls);
  if (!CanLease(groups)) return std::nullopt;
  const BatchState& batch = table_.Lease(groups, learner_version);
  leasing_ = batch.sequence;
  return Leasing{.sequence = leasing_, .fresh = true, .pinned = Pin(batch.groups)};
}

Status Core::WaitForLease(int64_t groups, TimePoint deadline, uint64_t unblocked) {
  // Nothing changes while this thread waits, but for what Pump does.
  if (manual_) return LeaseTimedOut(groups);
  if (leasing_ != 0 && Now() >= deadline) {
    // It stays: the next call gets it.
    return DeadlineExceeded(
        fmt::format("waiting for the log to write the lease of batch {}", leasing_));
  }
  return WaitForGroups(groups, deadline, unblocked);
}

// Reads what was leased, without the lock, and logs it if it is new.
Status Core::ReadLeased(const Leasing& leasing) {
  std::vector<TrajectoryId> damaged;
  Result<std::vector<TrajectoryPtr>> loaded = Load(leasing.pinned, &damaged);
  Calls calls;
  {
    const Locked lock(*this);
    if (!leasing.fresh || !loaded.ok()) EndLeasing();
    if (loaded.ok()) {
      loaded_[leasing.sequence] = std::move(*loaded);
      if (leasing.fresh) LogLease(*table_.FindBatch(leasing.sequence));
      return OkStatus();
    }
    if (!leasing.fresh) {
      return loaded.status().WithContext(
          fmt::format("batch {} cannot be read again", leasing.sequence));
    }
    table_.UnleaseFrom(leasing.sequence);
    if (damaged.empty()) return loaded.status();
    Quarantine(damaged, calls);
  }
  Run(calls);
  return OkStatus();
}

// Whoever waits for the lease under way, or for its groups, looks again.
void Core::EndLeasing() {
  leasing_ = 0;
  readers_.NotifyAll();
}

// Durable before the learner gets the batch, so that after a crash it gets the same one.
void Core::LogLease(const BatchState& batch) {
  if (!logged()) {
    EndLeasing();
    return;
  }
  LeaseRecord record{.sequence = batch.sequence, .learner_version = batch.learner_version};
  AppendIds(batch.groups, &record.trajectory_ids);
  const std::string payload = EncodeLease(record);
  // Twice: a lost lease could make a checkpoint's batch be trained on again.
  Note({.type = RecordType::kLease}, payload);
  if (!log_->sync()) {
    EndLeasing();
    if (Note({.type = RecordType::kLease}, payload)) return;
    lease_error_ = log_->failed();
    loaded_.erase(record.sequence);
    table_.UnleaseFrom(record.sequence);
    return;
  }
  Note({.type = RecordType::kLease}, payload,
       [this, sequence = batch.sequence](const Status& status) {
         OnLeaseWritten(sequence, status);
       });
}

void Core::OnLeaseWritten(int64_t sequence, const Status& status) {
  const Locked lock(*this);
  if (!status.ok()) {
    table_.UnleaseFrom(sequence);
    loaded_.erase(sequence);
    lease_error_ = status;
  }
  EndLeasing();
}

Status Core::MarkTrained(int64_t batch_sequence) {
  {
    const Locked lock(*this);
    FB_RETURN_IF_ERROR(table_.MarkTrained(batch_sequence));
    if (logged() || batch_sequence <= table_.committed_batch()) return OkStatus();
    // Memory does not outlive the process, so nothing is ever replayed from it.
    FB_RETURN_IF_ERROR(table_.Commit(batch_sequence));
    table_.Release(batch_sequence);
  }
  Signal();
  return OkStatus();
}

Status Core::Commit(int64_t batch_sequence) {
  HelpNotes();
  int64_t before = 0;
  {
    const Locked lock(*this);
    if (batch_sequence <= table_.committed_batch()) return OkStatus();
    if (!failed_.ok()) return failed_;
    before = table_.committed_batch();
    LeaseRecord record{.sequence = batch_sequence};
    for (int64_t sequence = table_.committed_batch() + 1; sequence <= batch_sequence; ++sequence) {
      const BatchState* batch = table_.FindBatch(sequence);
      if (batch == nullptr) break;
      AppendIds(batch->groups, &record.trajectory_ids);
    }
    FB_RETURN_IF_ERROR(table_.Commit(batch_sequence));
    Note({.type = RecordType::kCommit}, EncodeLease(record));
  }
  // The checkpoint before this one may still be what a restart has to go back to.
  return options_.retain_committed ? OkStatus() : Release(before);
}

Status Core::Release(int64_t batch_sequence) {
  {
    const Locked lock(*this);
    if (!failed_.ok()) return failed_;
    if (batch_sequence > table_.committed_batch()) {
      return FailedPrecondition(fmt::format("batch {} is not committed: the last one is {}",
                                            batch_sequence, table_.committed_batch()));
    }
    if (batch_sequence <= table_.released_batch()) return OkStatus();
    table_.Release(batch_sequence);
    Note({.type = RecordType::kRelease, .trajectory_id = batch_sequence});
  }
  Signal();
  return OkStatus();
}

Result<Batch> Core::ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) {
  if (shards < 1 || shard < 0 || shard >= shards) {
    return InvalidArgument(fmt::format("shard {} of {}: 0 to {}", shard, shards, shards - 1));
  }
  Batch batch{.sequence = batch_sequence};
  Pinned pinned;
  {
    const Locked lock(*this);
    const BatchState* state = table_.FindBatch(batch_sequence);
    if (state == nullptr) {
      return NotFound(fmt::format("batch {} is not there: {} are released, {} is leased next",
                                  batch_sequence, table_.released_batch(), table_.next_batch()));
    }
    batch.learner_version = state->learner_version;
    batch.replay = state->replay;
    std::vector<int64_t> groups;
    for (size_t i = static_cast<size_t>(shard); i < state->groups.size();
         i += static_cast<size_t>(shards)) {
      groups.push_back(state->groups[i]);
    }
    pinned = Pin(groups);
  }
  std::vector<TrajectoryId> damaged;
  FB_ASSIGN_OR_RETURN(batch.trajectories, Load(pinned, &damaged));
  return batch;
}

// ---- takes

Result<Taken> Core::Take(const TakeOptions& options, TimePoint deadline) {
  if (options.groups < 1) {
    return InvalidArgument(fmt::format("a take of {} groups: at least 1", options.groups));
  }
  if (options.expires_after <= Duration::zero()) {
    return InvalidArgument("expires_after must be positive");
  }
  uint64_t unblocked = 0;
  {
    const Locked lock(*this);
    unblocked = unblocked_;
  }
  while (true) {
    Calls calls;
    Pinned pinned;
    std::optional<int64_t> take_id;
    {
      const Locked lock(*this);
      FB_RETURN_IF_ERROR(ClosedLocked());
      if (!readers_paused_) {
        NoteRejected(table_.RejectStale(options.learner_version, options_.max_staleness),
                     RejectReason::kStale, calls);
        if (table_.ready_groups() >= options.groups) {
          const TimePoint expires = Now() + options.expires_after;
          take_id = table_.Take(options.groups, options.selector, expires, rng_);
          if (expires < keeper_sleeps_until_) Signal();  // it would end the take too late
        }
      }
      if (!take_id && calls.empty()) {
        FB_RETURN_IF_ERROR(failed_);  // nothing more will come
        if (manual_) return LeaseTimedOut(options.groups);
        FB_RETURN_IF_ERROR(WaitForGroups(options.groups, deadline, unblocked));
        continue;
      }
    }
    Run(calls);
    if (!take_id) continue;
    {
      // Apart, so that writers are kept out for a few microseconds only.
      const Locked lock(*this);
      const TakeState* const take = table_.FindTake(*take_id);
      if (take == nullptr) continue;  // it expired already
      pinned = Pin(take->groups);
    }
    std::vector<TrajectoryId> damaged;
    Result<Taken> taken = View(pinned, &damaged);
    if (taken.ok()) {
      taken->take_id = *take_id;
      return taken;
    }
    {
      const Locked lock(*this);
      if (table_.GiveBackTake(*take_id).ok()) Quarantine(damaged, calls);
      readers_.NotifyAll();
    }
    Run(calls);
    if (damaged.empty()) return taken.status();
  }
}

Status Core::Acknowledge(int64_t take_id) {
  HelpNotes();
  const Locked lock(*this);
  if (!failed_.ok()) return failed_;
  LeaseRecord record;
  const TakeState* const take = table_.FindTake(take_id);
  if (logged() && take != nullptr) AppendIds(take->groups, &record.trajectory_ids);
  FB_RETURN_IF_ERROR(table_.AcknowledgeTake(take_id));
  if (logged()) {
    // Twice, as a lease: should it be damaged, the groups would be given out again.
    const std::string payload = EncodeLease(record);
    Note({.type = RecordType::kConsume}, payload);
    Note({.type = RecordType::kConsume}, payload);
  }
  if (!waiting_.empty()) Signal();
  return OkStatus();
}

Status Core::GiveBack(int64_t take_id) {
  const Locked lock(*this);
  FB_RETURN_IF_ERROR(table_.GiveBackTake(take_id));
  readers_.NotifyAll();
  return OkStatus();
}

}  // namespace forebay::buffer
