#include "forebay/buffer/core/mirror.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/record.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {
constexpr size_t kNotesMax = 100;
}  // namespace

void TableMirror::Apply(const RecordHeader& header, std::string_view payload) {
  Status bad;
  switch (header.type) {
    case RecordType::kOpening:
    case RecordType::kSnapshot:
      return;
    case RecordType::kDispatch: {
      const auto id = ParseDispatch(payload);
      bad = id.status();
      if (id.ok()) ForceDispatch(*id);
      break;
    }
    case RecordType::kTrajectory: {
      const std::optional<TrajectoryId> id = PeekId(payload);
      if (id) {
        ApplyTrajectory(header, *id);
      } else {
        bad = DataLoss("a trajectory record holds no trajectory");
      }
      break;
    }
    case RecordType::kReject: {
      const auto reject = ParseReject(payload);
      bad = reject.status();
      if (reject.ok()) ApplyReject(*reject);
      break;
    }
    case RecordType::kCloseGroup: {
      const auto group_id = ParseNumber(payload);
      bad = group_id.status();
      std::vector<TrajectoryId> closed;
      // A group that is gone, or has nothing left, is as closed as it can be.
      if (group_id.ok()) table_.CloseGroup(*group_id, &closed).ok();
      break;
    }
    case RecordType::kLease: {
      const auto lease = ParseLease(payload);
      bad = lease.status();
      if (lease.ok()) ApplyLease(*lease);
      break;
    }
    case RecordType::kCommit: {
      const auto commit = ParseLease(payload);
      bad = commit.status();
      if (commit.ok()) ApplyCommit(*commit);
      break;
    }
  }
  if (!bad.ok() && notes_.size() < kNotesMax) {
    notes_.push_back(fmt::format("record {}: {}", header.sequence, bad.message()));
  }
}

// False when there is no place for the attempt.
bool TableMirror::ForceDispatch(const TrajectoryId& id) {
  if (table_.Dispatch(id).ok()) return true;
  if (table_.Dispatched(id.trajectory_id)) return false;
  // The record that ended the attempt before it was lost.
  const std::optional<TrajectoryId> before = table_.Occupant(id.group_id, id.member);
  if (before && table_.Reject(*before, RejectReason::kQuarantined).ok() &&
      table_.Dispatch(id).ok()) {
    if (notes_.size() < kNotesMax) {
      notes_.push_back(fmt::format(
          "the end of attempt {} (group {}, member {}) is not in the log: counted as quarantined",
          before->trajectory_id, id.group_id, id.member));
    }
    return true;
  }
  return false;
}

void TableMirror::ApplyTrajectory(const RecordHeader& header, const TrajectoryId& id) {
  if (!table_.InFlight(id))
    ForceDispatch(id);  // its dispatch was lost, or it is no longer in flight
  table_.Pend(id, {.min_version = header.min_version, .segment = header.segment}).ok();
}

void TableMirror::ApplyReject(const RejectRecord& reject) {
  for (const TrajectoryId& id : reject.ids) {
    if (!table_.Dispatched(id.trajectory_id)) ForceDispatch(id);
    table_.Reject(id, reject.reason).ok();
  }
}

void TableMirror::ApplyLease(const LeaseRecord& lease) {
  const Status applied =
      table_.ReplayLease(lease.sequence, lease.learner_version, lease.trajectory_ids);
  // Whatever it replaces, it is the newest of its number.
  unapplied_leases_.erase(unapplied_leases_.lower_bound(lease.sequence), unapplied_leases_.end());
  if (applied.ok()) return;
  unapplied_leases_[lease.sequence] = lease;
  if (notes_.size() < kNotesMax) notes_.push_back(applied.message());
}

int64_t TableMirror::Consume(const std::vector<int64_t>& trajectory_ids) {
  int64_t groups = 0;
  for (const int64_t id : trajectory_ids) {
    const std::optional<int64_t> group_id = table_.GroupOf(id);
    if (group_id && table_.Consume(*group_id)) ++groups;
  }
  return groups;
}

void TableMirror::ApplyCommit(const LeaseRecord& commit) {
  if (commit.sequence >= table_.next_batch()) table_.SetNextBatch(commit.sequence + 1);
  table_.Commit(commit.sequence).ok();
  const int64_t groups = Consume(commit.trajectory_ids);
  unapplied_leases_.erase(unapplied_leases_.begin(),
                          unapplied_leases_.upper_bound(commit.sequence));
  if (groups > 0 && notes_.size() < kNotesMax) {
    notes_.push_back(
        fmt::format("a lease up to batch {} is not in the log; its commit names {} groups: they "
                    "count as trained",
                    commit.sequence, groups));
  }
}

}  // namespace forebay::buffer
