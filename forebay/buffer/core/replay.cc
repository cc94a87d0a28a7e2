#include "forebay/buffer/core/replay.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {
constexpr size_t kNotesMax = 100;
}  // namespace

void Replay::Note(std::string note) {
  if (notes_.size() < kNotesMax) notes_.push_back(std::move(note));
}

bool Replay::NeedsPayload(const RecordHeader& header) const {
  return header.sequence > state_sequence_ && HoldsLease(header.type);
}

int64_t Replay::FinishState() {
  if (table_.Restoring()) not_found_ += table_.FinishRestore();
  return not_found_;
}

void Replay::Apply(const RecordHeader& header, uint32_t offset_64, std::string_view payload) {
  // What the state has is found in records up to it, the later ones change it.
  if (header.sequence > state_sequence_) FinishState();
  if (header.type == RecordType::kTrajectory) {
    return ApplyTrajectory(header, {.min_version = header.min_version,
                                    .priority = header.priority,
                                    .segment = header.segment,
                                    .offset_64 = offset_64,
                                    .payload_bytes = header.payload_bytes});
  }
  if (header.sequence <= state_sequence_) return;
  Result<LeaseRecord> lease = LeaseRecord();
  if (NeedsPayload(header)) {
    lease = ParseLease(payload);
    if (!lease.ok()) {
      return Note(fmt::format("record {}: {}", header.sequence, lease.status().message()));
    }
  }
  switch (header.type) {
    case RecordType::kPad:
    case RecordType::kUnfinished:
    case RecordType::kTrajectory:
      return;
    case RecordType::kDispatch:
      ForceDispatch(header.id());
      return;
    case RecordType::kReject:
      if (header.code >= kRejectReasons) {
        return Note(fmt::format("record {}: a reason that is not known", header.sequence));
      }
      if (!table_.Dispatched(header.trajectory_id)) ForceDispatch(header.id());
      table_.Reject(header.id(), static_cast<RejectReason>(header.code)).ok();
      return;
    case RecordType::kCloseGroup: {
      std::vector<TrajectoryId> closed;
      // A group that is gone, or has nothing left, is as closed as it can be.
      table_.CloseGroup(header.group_id, &closed).ok();
      return;
    }
    case RecordType::kLease:
      return ApplyLease(*lease);
    case RecordType::kCommit:
      return ApplyCommit(*lease);
    case RecordType::kRelease:
      table_.Release(header.trajectory_id);
      return;
    case RecordType::kConsume:
      Consume(lease->trajectory_ids);
      return;
  }
}

void Replay::ApplyTrajectory(const RecordHeader& header, const PendingInfo& info) {
  const TrajectoryId id = header.id();
  if (table_.Awaits(id.trajectory_id)) {
    table_.Restore(id, info);
    return;
  }
  if (header.sequence <= state_sequence_) {
    const std::optional<PendingInfo> where = table_.Where(id.trajectory_id);
    if (where && *where == info) {
      seen_.Insert(id.trajectory_id);
    } else if (header.sequence >= replay_from_ && table_.InFlight(id)) {
      table_.Pend(id, info).ok();
      seen_.Insert(id.trajectory_id);
    }
    return;
  }
  if (header.code == kMovedRecord) {
    if (table_.Relocate(id.trajectory_id, info.segment, info.offset_64)) {
      seen_.Insert(id.trajectory_id);
    }
    return;
  }
  if (!table_.InFlight(id)) ForceDispatch(id);  // its dispatch was lost, or implied
  if (table_.Pend(id, info).ok()) seen_.Insert(id.trajectory_id);
}

std::vector<TrajectoryId> Replay::Unseen() const {
  std::vector<TrajectoryId> unseen;
  if (!listed_) return unseen;  // FinishState has counted them
  for (const TrajectoryId& id : table_.PendingIds()) {
    if (!seen_.Contains(id.trajectory_id)) unseen.push_back(id);
  }
  return unseen;
}

// False when there is no place for the attempt.
bool Replay::ForceDispatch(const TrajectoryId& id) {
  if (table_.Dispatch(id).ok()) return true;
  if (table_.Dispatched(id.trajectory_id)) return false;
  // The record that ended the attempt before it was lost.
  const std::optional<TrajectoryId> before = table_.Occupant(id.group_id, id.member);
  if (before && table_.Reject(*before, RejectReason::kQuarantined).ok() &&
      table_.Dispatch(id).ok()) {
    Note(
        fmt::format("the end of attempt {} (group {}, member {}) is not in the log: counted as "
                    "quarantined",
                    before->trajectory_id, id.group_id, id.member));
    return true;
  }
  return false;
}

void Replay::ApplyLease(const LeaseRecord& lease) {
  const Status applied =
      table_.ReplayLease(lease.sequence, lease.learner_version, lease.trajectory_ids);
  // Whatever it replaces, it is the newest of its number.
  unapplied_leases_.erase(unapplied_leases_.lower_bound(lease.sequence), unapplied_leases_.end());
  if (applied.ok()) return;
  unapplied_leases_[lease.sequence] = lease;
  Note(applied.message());
}

int64_t Replay::Consume(const std::vector<int64_t>& trajectory_ids) {
  int64_t groups = 0;
  for (const int64_t id : trajectory_ids) {
    const std::optional<int64_t> group_id = table_.GroupOf(id);
    if (group_id && table_.Consume(*group_id)) ++groups;
  }
  return groups;
}

void Replay::ApplyCommit(const LeaseRecord& commit) {
  if (commit.sequence >= table_.next_batch()) table_.SetNextBatch(commit.sequence + 1);
  table_.Commit(commit.sequence).ok();
  const int64_t groups = Consume(commit.trajectory_ids);
  unapplied_leases_.erase(unapplied_leases_.begin(),
                          unapplied_leases_.upper_bound(commit.sequence));
  if (groups > 0) {
    Note(
        fmt::format("a lease up to batch {} is not in the log; its commit names {} groups: they "
                    "count as trained",
                    commit.sequence, groups));
  }
}

}  // namespace forebay::buffer
