// Table: the state machine of the buffer (groups, versions, leases and the ledger), without files,
// threads or clocks.
//
// It is used three times: by the Buffer with the trajectories in it; by the log's writer without
// them (it follows what was written, so that a snapshot of it stands for every record before); and
// by recovery, which replays records into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// What a finished attempt brings with it.
struct PendingInfo {
  int64_t min_version = 0;
  int64_t memory_bytes = 0;
  int64_t segment = 0;  // of the log, where its record lies
  TrajectoryPtr trajectory;
};

struct BatchState {
  int64_t sequence = 0;
  int64_t learner_version = 0;
  std::vector<int64_t> groups;  // ascending
  bool trained = false;
  bool replay = false;      // leased before a crash
  bool handed_out = false;  // since this process began
  friend bool operator==(const BatchState&, const BatchState&) = default;
};

// Attempts of one member that may go stale before its group is overdue.
inline constexpr int32_t kStaleAttemptsMax = 2;

// Not thread-safe; copyable (a copy shares the trajectories).
class Table {
 public:
  explicit Table(int32_t group_size) : group_size_(group_size) {}

  // ---- attempts
  // kFailedPrecondition: the id was used, the member is taken or its group is finished.
  // kInvalidArgument: no such member.
  Status Dispatch(const TrajectoryId& id);
  bool InFlight(const TrajectoryId& id) const;
  bool Dispatched(int64_t trajectory_id) const { return dispatched_.Contains(trajectory_id); }
  // in flight -> pending. kNotFound when the attempt is not in flight.
  Status Pend(const TrajectoryId& id, PendingInfo info);
  // in flight or pending -> rejected; the member is vacant. kNotFound; kFailedPrecondition: leased.
  Status Reject(const TrajectoryId& id, RejectReason reason);
  // As Buffer::CloseGroup. Gives back what was closed.
  Status CloseGroup(int64_t group_id, std::vector<TrajectoryId>* closed);
  // Rejects every pending, not leased trajectory that is too old. Gives them back in (version, id)
  // order. A group whose members were rejected so kStaleAttemptsMax times is overdue until it is
  // whole: its members become stale in turn, and it would never be.
  std::vector<TrajectoryId> RejectStale(int64_t learner_version, int64_t max_staleness);
  void CountLate() { ++ledger_.late; }

  // ---- batches
  int64_t ready_groups() const { return static_cast<int64_t>(ready_.size()); }
  // An overdue group that is not whole, if there is one.
  std::optional<int64_t> OverdueGroup() const;
  int64_t next_batch() const { return next_batch_; }
  int64_t committed_batch() const { return committed_batch_; }
  // Leases the `groups` oldest ready groups (there must be so many). It is handed out once it is
  // logged.
  const BatchState& Lease(int64_t groups, int64_t learner_version);
  // Undoes a lease that could not be logged, and every later one: their groups are ready again.
  void UnleaseFrom(int64_t sequence);
  // The first leased batch that the learner does not have, or nullptr: a replay, or a lease just
  // logged.
  BatchState* NextToHandOut();
  // The batch, or nullptr when it is not leased (any more).
  const BatchState* FindBatch(int64_t sequence) const;
  // Its trajectories by (group_id, member).
  std::vector<TrajectoryPtr> Content(const BatchState& batch) const;
  std::vector<TrajectoryId> Ids(const BatchState& batch) const;
  // kNotFound: not leased. OK when it was trained or committed before.
  Status MarkTrained(int64_t sequence);
  // kFailedPrecondition: a batch that was never leased.
  Status Commit(int64_t sequence);

  // ---- recovery
  // A lease as it was logged: replaces leases from `sequence` on. kFailedPrecondition when not all
  // of these trajectories are pending, or they are not whole groups.
  Status ReplayLease(int64_t sequence, int64_t learner_version, const std::vector<int64_t>& ids);
  // The reverse of Commit for one whole group, when an older checkpoint was restored: it is pending
  // again.
  // False when it was not consumed, or these are not the group.
  bool Uncommit(const std::vector<std::pair<TrajectoryId, PendingInfo>>& members);
  // The group was trained on, whatever is left of its records: its open attempts count as trained.
  // False when it is not there, or leased.
  bool Consume(int64_t group_id);
  // The group of an open attempt.
  std::optional<int64_t> GroupOf(int64_t trajectory_id) const;
  void SetCommitted(int64_t sequence) { committed_batch_ = sequence; }
  void SetNextBatch(int64_t sequence) { next_batch_ = sequence; }
  // Puts the content of a pending trajectory in its place. False when it is not pending.
  bool Fill(int64_t trajectory_id, PendingInfo info);
  void MarkReplays();       // every leased batch
  void DropTrajectories();  // keeps the state only
  std::vector<TrajectoryId> InFlightIds() const;
  // The attempt that has this member now.
  std::optional<TrajectoryId> Occupant(int64_t group_id, int32_t member) const;
  std::vector<TrajectoryId> PendingIds() const;
  // Members to dispatch again, by (group, member).
  std::vector<MissingMember> Missing() const;
  int64_t next_trajectory_id() const { return dispatched_.Max() + 1; }
  int64_t next_group_id() const;
  // Batch of the pending trajectory's group; 0: not leased.
  int64_t BatchOf(const TrajectoryId& id) const;

  // ---- what is there
  const Ledger& ledger() const { return ledger_; }
  int64_t partial_groups() const { return static_cast<int64_t>(partial_.size()); }
  int64_t memory_bytes() const { return memory_bytes_; }
  int32_t group_size() const { return group_size_; }
  // Segments that hold a trajectory which is not consumed.
  bool SegmentIsLive(int64_t segment) const { return segment_live_.count(segment) > 0; }
  // "2 ready, 3 partial (group 17 lacks members 2, 5), 12 in flight"
  std::string Describe() const;

  std::string EncodeSnapshot() const;
  // kDataLoss for bytes that are not a snapshot, or one that does not balance.
  static Result<Table> DecodeSnapshot(std::string_view bytes);

 private:
  enum class State : uint8_t { kVacant = 0, kInFlight = 1, kPending = 2 };
  struct Member {
    State state = State::kVacant;
    int32_t attempt = -1;  // the last one
    int64_t trajectory_id = 0;
    int64_t task_id = 0;
    int32_t stale_attempts = 0;  // rejected as stale by this process
    PendingInfo info;
  };
  struct Group {
    std::vector<Member> members;
    int64_t batch = 0;  // that it is leased in
    int32_t pending = 0, in_flight = 0;
  };
  struct Place {
    int64_t group_id;
    int32_t member;
  };

  Member* Find(const TrajectoryId& id);
  const Member* Find(const TrajectoryId& id) const;
  TrajectoryId IdOf(int64_t group_id, int32_t member, const Member& m) const;
  std::pair<int64_t, int64_t> ReadyKey(int64_t group_id, const Group& group) const;
  void EnterPending(int64_t group_id, int32_t member);  // counts; the member is filled
  void LeavePending(int64_t group_id, int32_t member);
  void SetBatch(int64_t group_id, Group& group, int64_t batch);
  void ReleaseSegment(int64_t segment);
  void ReleaseMemory(Member& member);
  void FinishGroup(int64_t group_id);

  int32_t group_size_;
  std::map<int64_t, Group> groups_;
  std::unordered_map<int64_t, Place> open_;           // trajectory id, in flight or pending
  std::set<std::pair<int64_t, int64_t>> ready_;       // (min_version, group): complete, not leased
  std::set<std::pair<int64_t, int64_t>> by_version_;  // (min_version, id): pending, not leased
  std::set<int64_t> partial_;                         // groups with some members pending
  std::set<int64_t> often_stale_;                     // groups, not finished
  std::map<int64_t, BatchState> batches_;             // leased, not committed
  std::map<int64_t, int64_t> segment_live_;
  IdSet dispatched_;
  IdSet finished_;  // groups that were consumed or closed
  Ledger ledger_;
  int64_t memory_bytes_ = 0;
  int64_t committed_batch_ = 0;
  int64_t next_batch_ = 1;
};

}  // namespace forebay::buffer
