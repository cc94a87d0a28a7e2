// The learner's side of Core: leases, commits and figures.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/writer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// An overdue group holds leases back: while the version stands still nothing of it can go stale.
// Not while appends wait for room, though: its own may be among them, and only batches make room.
bool Core::CanLease(int64_t groups) const {
  return table_.ready_groups() >= groups && (!table_.OverdueGroup() || !waiting_.empty());
}

Status Core::LeaseTimedOut(int64_t groups) const {
  std::string text = fmt::format("waiting for {} groups: {}", groups, table_.Describe());
  if (const auto overdue = table_.OverdueGroup()) {
    text += fmt::format("; group {} went stale {} times and is waited for", *overdue,
                        kStaleAttemptsMax);
  }
  return DeadlineExceeded(text);
}

Result<Batch> Core::Lease(int64_t groups, int64_t learner_version, TimePoint deadline) {
  if (groups < 1) return InvalidArgument(fmt::format("a lease of {} groups: at least 1", groups));
  while (true) {
    Calls calls;
    {
      MutexLock lock(mutex_);
      FB_RETURN_IF_ERROR(RefusalLocked());
      if (!lease_error_.ok()) return std::exchange(lease_error_, OkStatus());
      if (leasing_ == 0) {
        if (BatchState* next = table_.NextToHandOut()) {
          next->handed_out = true;
          return Batch{.sequence = next->sequence,
                       .learner_version = next->learner_version,
                       .replay = next->replay,
                       .trajectories = table_.Content(*next)};
        }
        NoteRejected(table_.RejectStale(learner_version, options_.max_staleness),
                     RejectReason::kStale, calls);
        if (CanLease(groups)) {
          const BatchState& batch = table_.Lease(groups, learner_version);
          if (writer_ == nullptr) continue;
          LeaseRecord record{.sequence = batch.sequence, .learner_version = learner_version};
          for (const TrajectoryId& id : table_.Ids(batch))
            record.trajectory_ids.push_back(id.trajectory_id);
          leasing_ = batch.sequence;
          LogEntry entry;
          entry.header.type = RecordType::kLease;
          entry.payload = EncodeLease(record);
          entry.copies = 2;  // a lost lease could make a checkpoint's batch be trained on again
          entry.done = [this, sequence = batch.sequence](const Status& status) {
            OnLeaseWritten(sequence, status);
          };
          writer_->Submit(std::move(entry));
        }
      }
      if (calls.empty() && !manual_) {
        // After the deadline a lease that is being written stays: the next call gets it.
        if (Now() >= deadline) {
          if (leasing_ != 0) {
            return DeadlineExceeded(
                fmt::format("waiting for the log to write the lease of batch {}", leasing_));
          }
          return LeaseTimedOut(groups);
        }
        learner_.WaitUntil(mutex_, deadline);
        continue;
      }
    }
    Run(calls);
    if (!manual_) continue;
    Pump();
    MutexLock lock(mutex_);
    if (Now() >= deadline && leasing_ == 0 && lease_error_.ok() && failed_.ok() &&
        table_.NextToHandOut() == nullptr && !CanLease(groups)) {
      return LeaseTimedOut(groups);
    }
  }
}

// On the writer's thread.
void Core::OnLeaseWritten(int64_t sequence, const Status& status) {
  MutexLock lock(mutex_);
  if (!status.ok()) {
    table_.UnleaseFrom(sequence);
    lease_error_ = status;
  }
  leasing_ = 0;
  learner_.NotifyAll();
}

Status Core::MarkTrained(int64_t batch_sequence) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    FB_RETURN_IF_ERROR(table_.MarkTrained(batch_sequence));
    Admit(calls);
  }
  Run(calls);
  return OkStatus();
}

Status Core::Commit(int64_t batch_sequence) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    if (batch_sequence <= table_.committed_batch()) return OkStatus();
    if (!failed_.ok()) return failed_;
    LeaseRecord record{.sequence = batch_sequence};
    for (int64_t sequence = table_.committed_batch() + 1; sequence <= batch_sequence; ++sequence) {
      const BatchState* batch = table_.FindBatch(sequence);
      if (batch == nullptr) break;
      for (const TrajectoryId& id : table_.Ids(*batch))
        record.trajectory_ids.push_back(id.trajectory_id);
    }
    FB_RETURN_IF_ERROR(table_.Commit(batch_sequence));
    Submit(RecordType::kCommit, EncodeLease(record));
    Admit(calls);
  }
  Run(calls);
  return OkStatus();
}

Ledger Core::ledger() const {
  MutexLock lock(mutex_);
  return table_.ledger();
}

BufferStats Core::stats() const {
  const LogStats log = writer_ == nullptr ? LogStats{} : writer_->stats();
  MutexLock lock(mutex_);
  return {.ready_groups = table_.ready_groups(),
          .partial_groups = table_.partial_groups(),
          .memory_bytes = table_.memory_bytes() + writing_memory_,
          .disk_bytes = log.disk_bytes,
          .segments = log.segments,
          .appends = appends_,
          .flushes = log.flushes,
          .append_wait_seconds = append_wait_seconds_};
}

}  // namespace forebay::buffer
