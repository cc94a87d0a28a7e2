// Table: the state machine of the buffer (groups, versions, leases, takes and the ledger), without
// files, threads or clocks.
//
// It knows where each trajectory's record lies, not what is in it. It is used by the Buffer, and by
// recovery, which replays records into it; a snapshot of it stands for every record before.
//
// About 110 bytes a pending trajectory in groups of one, whatever their number: nothing that is
// large ever moves or doubles, and nothing is allocated for each trajectory or group once warm.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/bytes.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/group_store.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/buffer/table/ready_queue.h"
#include "forebay/buffer/table/ready_selector.h"
#include "forebay/buffer/table/segment_use.h"
#include "forebay/buffer/table/take_pool.h"
#include "forebay/buffer/table/version_lists.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// What a finished attempt brings with it.
struct PendingInfo {
  int64_t min_version = 0;  // 0 .. kVersionMax
  float priority = 1;       // finite, not negative
  uint32_t segment = 0;     // of the log
  uint32_t offset_64 = 0;   // of the record's header in its segment, in units of 64 bytes
  uint32_t payload_bytes = 0;
  friend bool operator==(const PendingInfo&, const PendingInfo&) = default;
};

// A trajectory that is pending or retained.
struct Placed {
  TrajectoryId id;
  PendingInfo info;
  friend bool operator==(const Placed&, const Placed&) = default;
};

struct BatchState {
  int64_t sequence = 0;
  int64_t learner_version = 0;
  std::vector<int64_t> groups;  // ascending
  bool trained = false;
  bool replay = false;      // leased before a crash
  bool handed_out = false;  // since this process began
  bool retained = false;    // committed: consumed, only its content is still there
  friend bool operator==(const BatchState&, const BatchState&) = default;
};

// Attempts of one member that may go stale before its group is overdue.
inline constexpr int32_t kStaleAttemptsMax = 2;
inline constexpr int32_t kMemberMax = 65535;
inline constexpr int32_t kAttemptMax = 65535;
inline constexpr int64_t kVersionMax = (int64_t{1} << 32) - 2;
// A snapshot lists the details of up to so many pending and retained trajectories; of more, only
// their ids: their records say the rest.
inline constexpr int64_t kListedPendingMax = 16384;
// Of members of groups that vanished, so many are named as missing.
inline constexpr int64_t kVanishedMembersMax = int64_t{1} << 24;

// Not thread-safe; copyable.
class Table {
 public:
  // `listed_pending_max`: as kListedPendingMax, for tests.
  explicit Table(int32_t group_size, int64_t listed_pending_max = kListedPendingMax);

  // ---- attempts
  // kFailedPrecondition: the id was used, the member is taken or its group is finished.
  // kInvalidArgument: no such member, or a number outside of its limits. kResourceExhausted: 2^32
  // members are there.
  // `place` may be null: where the attempt is, for Pend.
  Status Dispatch(const TrajectoryId& id, uint32_t* place = nullptr);
  bool InFlight(const TrajectoryId& id) const;
  // Marks the append of an attempt in flight as under way, until EndAppend or the end of the
  // flight.
  enum class Begun : uint8_t { kNotInFlight, kNow, kBefore };
  Begun BeginAppend(const TrajectoryId& id, uint32_t* place);
  void BeginFirstAppend(uint32_t place);       // of what Dispatch just placed
  void EndAppend(const TrajectoryId& id);      // without success: it is in flight as before
  bool Pending(const TrajectoryId& id) const;  // leased and taken ones too
  // The attempt in flight under this number, whatever else a caller says of it.
  std::optional<TrajectoryId> InFlightAs(int64_t trajectory_id) const;
  bool Dispatched(int64_t trajectory_id) const { return dispatched_.Contains(trajectory_id); }
  // in flight -> pending. kNotFound when the attempt is not in flight. kInvalidArgument: the
  // version or the priority is outside of its limits. `place`: where it probably is, which saves
  // the search.
  Status Pend(const TrajectoryId& id, const PendingInfo& info, uint32_t place = kNoIndex);
  // in flight or pending -> rejected; the member is vacant. kNotFound; kFailedPrecondition: leased
  // or taken.
  Status Reject(const TrajectoryId& id, RejectReason reason);
  // As Buffer::CloseGroup (kFailedPrecondition for a taken one too). Gives back what was closed.
  Status CloseGroup(int64_t group_id, std::vector<TrajectoryId>* closed);
  // Rejects every pending trajectory that is too old and held by nobody. Gives them back in
  // (version, id) order. A group whose members were rejected so kStaleAttemptsMax times is overdue
  // until it is whole: its members become stale in turn, and it would never be.
  std::vector<TrajectoryId> RejectStale(int64_t learner_version, int64_t max_staleness);
  void CountLate() { ++ledger_.late; }

  // Undoes Dispatch: the id can be dispatched again. kNotFound.
  Status Undispatch(const TrajectoryId& id);

  // ---- where the records are
  // Of a pending or retained trajectory.
  std::optional<PendingInfo> Where(int64_t trajectory_id) const;
  // Its record was copied to another place. False when it is neither pending nor retained.
  bool Relocate(int64_t trajectory_id, uint32_t segment, uint32_t offset_64);
  // The members of these groups (of a batch or a take) by (group_id, member): pending or retained
  // ones only.
  std::vector<Placed> Members(std::span<const int64_t> groups) const;
  // A segment may be recycled when it is not live AND a snapshot that was made since then is
  // durable: a snapshot without details needs the records of what was pending when it was made.
  bool SegmentIsLive(uint32_t segment) const { return segments_.Of(segment).records > 0; }
  int64_t live_bytes(uint32_t segment) const { return segments_.Of(segment).bytes; }
  // Live segments, the emptiest first.
  std::vector<SegmentLive> SegmentsByLiveBytes() const { return segments_.ByBytes(); }

  // ---- batches
  int64_t ready_groups() const { return ready_groups_; }
  // An overdue group that is not whole, if there is one.
  std::optional<int64_t> OverdueGroup() const;
  int64_t next_batch() const { return next_batch_; }
  int64_t committed_batch() const { return committed_batch_; }
  int64_t released_batch() const { return released_batch_; }
  // Leases the `groups` oldest ready groups (there must be so many). It is handed out once it is
  // logged. The reference holds until the next call.
  const BatchState& Lease(int64_t groups, int64_t learner_version);
  // Undoes a lease that could not be logged, and every later one: their groups are ready again.
  // Committed batches stay.
  void UnleaseFrom(int64_t sequence);
  // The first leased batch that the learner does not have, or nullptr: a replay, or a lease just
  // logged. Whoever hands it out sets handed_out.
  BatchState* NextToHandOut();
  // The batch, leased or retained; nullptr when it is neither (any more).
  const BatchState* FindBatch(int64_t sequence) const;
  // kNotFound: not leased. OK when it was trained or committed before.
  Status MarkTrained(int64_t sequence);
  // Consumes batches up to this one; they are retained until Release. kFailedPrecondition: a batch
  // that was never leased.
  Status Commit(int64_t sequence);
  // Batches up to this one are not retained any more (those that are committed). Idempotent.
  void Release(int64_t sequence);
  // The reverse of Commit: batches after `to` are leased replays again. Gives how many.
  // kFailedPrecondition, and nothing changed, when one of them is not retained.
  Result<int64_t> Uncommit(int64_t to);

  // ---- takes: groups that a reader without checkpoints holds. A taken group is not ready, cannot
  // become stale, be rejected, closed or leased. Takes are not in snapshots: after a restart their
  // groups are ready again.
  // The id, or nullopt when there are not so many ready groups (or TakePool::kTakesMax takes).
  std::optional<int64_t> Take(int64_t groups, Selector selector, TimePoint expires, Rng& rng);
  // nullptr: not (any more) taken. Valid until the next call.
  const TakeState* FindTake(int64_t take_id) const { return takes_.Find(take_id); }
  // The groups are consumed: counted as trained, nothing is retained. kNotFound.
  Status AcknowledgeTake(int64_t take_id);
  Status GiveBackTake(int64_t take_id);  // ready again. kNotFound
  // Gives back the takes whose time has come, the first to expire first.
  std::vector<int64_t> ExpireTakes(TimePoint now);
  std::optional<TimePoint> next_expiry() { return takes_.NextExpiry(); }
  int64_t taken_groups() const { return taken_groups_; }
  // Take ids are made from serials 1, 2, ...: a process that must not know the takes of the one
  // before begins above its serials (below 2^43).
  void SkipTakeSerials(int64_t serial) { takes_.SkipTo(serial); }

  // ---- recovery
  // A lease as it was logged: replaces leases from `sequence` on. kFailedPrecondition when not all
  // of these trajectories are pending, or they are not whole groups, or the batch is committed.
  Status ReplayLease(int64_t sequence, int64_t learner_version, const std::vector<int64_t>& ids);
  // The group was trained on, whatever is left of its records: its open attempts count as trained.
  // False when it is not there, held or retained.
  bool Consume(int64_t group_id);
  // The group of an attempt in flight or pending.
  std::optional<int64_t> GroupOf(int64_t trajectory_id) const;
  void SetCommitted(int64_t sequence);
  void SetNextBatch(int64_t sequence);
  void MarkReplays();                             // every leased batch
  std::vector<TrajectoryId> InFlightIds() const;  // by (group, member)
  std::vector<TrajectoryId> PendingIds() const;   // by (group, member); leased and taken ones too
  // The attempt that has this member now (in flight or pending).
  std::optional<TrajectoryId> Occupant(int64_t group_id, int32_t member) const;
  // Members to dispatch again, by (group, member). Groups of which nothing is left but that they
  // were there (up to kVanishedMembersMax members) are missing as a whole, with next_attempt 1 and
  // their id as the task.
  std::vector<MissingMember> Missing() const;
  int64_t next_trajectory_id() const { return dispatched_.Max() + 1; }
  int64_t next_group_id() const { return known_.Max() + 1; }
  // Batch of the pending trajectory's group; 0: not leased.
  int64_t BatchOf(const TrajectoryId& id) const;

  // ---- after DecodeSnapshot of a snapshot without details, before anything else
  // True when trajectories are pending whose place is not known yet: Restore them, then
  // FinishRestore.
  bool Restoring() const { return restoring_.has_value(); }
  bool Awaits(int64_t trajectory_id) const;
  // The record of an awaited trajectory was found. False: it is not awaited (any more), or it does
  // not fit.
  bool Restore(const TrajectoryId& id, const PendingInfo& info);
  // Makes room for all that is awaited, but no more than `most`: at once rather than bit by bit.
  void ReserveRestore(int64_t most);
  // Starts to load what Restore of this trajectory will look at: first kFar, then kNear, each some
  // calls of Restore before. Millions of them take the time of their memory otherwise.
  enum class Ahead { kFar, kNear };
  void PrefetchRestore(int64_t trajectory_id, int64_t group_id, Ahead ahead) const {
    if (ahead == Ahead::kFar) {
      store_.PrefetchEntries(group_id, trajectory_id);
    } else {
      store_.PrefetchGroups(group_id);
    }
  }
  // What was not found counts as rejected (kQuarantined) when it was pending; leases from the first
  // batch on that lost a group are undone, retained batches that lost one are released. Gives how
  // many were not found.
  int64_t FinishRestore();

  // ---- what is there
  const Ledger& ledger() const { return ledger_; }
  int64_t partial_groups() const { return partial_groups_; }
  int64_t pending_bytes() const { return pending_bytes_; }  // payloads, pending or retained
  int64_t memory_bytes() const;                             // of the table itself
  int32_t group_size() const { return static_cast<int32_t>(store_.group_size()); }
  // "2 ready, 3 partial (group 17 lacks members 2, 5), 12 in flight"
  std::string Describe() const;
  // As Buffer::Inspect. O(groups), whatever the limit.
  std::vector<GroupInfo> Inspect(int64_t from_group_id, int64_t limit) const;

  // Batches that are trained and not committed are leased ones in it.
  std::string EncodeSnapshot() const;
  // kDataLoss for bytes that are not a snapshot, or one that does not balance.
  static Result<Table> DecodeSnapshot(std::string_view bytes,
                                      int64_t listed_pending_max = kListedPendingMax);

 private:
  struct Restoration {
    IdSet awaited;
    int64_t pending = 0;              // of those that are awaited; the others are retained
    std::map<int64_t, int64_t> held;  // group -> batch
  };

  bool IsOpen(uint32_t s, const TrajectoryId& id) const;  // the slot has it, not retained
  uint32_t FindOpen(const TrajectoryId& id) const;        // slot in flight or pending, or kNoIndex
  TrajectoryId IdOf(uint32_t s) const;
  PendingInfo InfoOf(uint32_t s) const;
  void FindGroups(std::span<const int64_t> groups, std::vector<uint32_t>* found) const;
  bool IsReady(const Group& group) const;
  // An attempt of the slot becomes pending (or retained, by its group).
  void Place(uint32_t s, const PendingInfo& info);
  void Unplace(uint32_t s);       // the record is not needed any more
  void AddMember(uint32_t g);     // that was placed
  void RemoveMember(uint32_t g);  // that was pending
  void Vacate(uint32_t s);        // in flight or pending -> vacant, nowhere
  void EnterReady(uint32_t g);
  void LeaveReady(uint32_t g);
  void FilterReady();
  uint32_t PopOldest();
  void BuildSelector();
  void TrackPresent();
  void Hold(uint32_t g, int64_t holder);
  void Unhold(uint32_t g);
  // Of a held or retained group: every member is let go, then the group.
  void LetGo(uint32_t g);
  void FinishGroup(uint32_t g);
  std::deque<BatchState>::iterator LowerBatch(int64_t sequence);
  std::deque<BatchState>::const_iterator LowerBatch(int64_t sequence) const;
  std::vector<int64_t> SpareGroups();
  void KeepSpare(std::vector<int64_t>& groups);
  std::vector<uint32_t> OpenGroups() const;  // that are not whole, by group_id
  std::vector<uint32_t> AllGroups() const;   // by group_id
  bool ListsPending() const;
  void EncodeGroup(uint32_t g, bool details, ByteWriter& out) const;
  Status DecodeHead(ByteReader& in);
  Status DecodeBatches(ByteReader& in, std::map<int64_t, int64_t>& held);
  Status DecodeAwaited(ByteReader& in, std::map<int64_t, int64_t> held);
  Status DecodeGroups(ByteReader& in, const std::map<int64_t, int64_t>& held);
  Status DecodeMember(ByteReader& in, uint32_t s);

  GroupStore store_;
  VersionLists versions_;  // of what is pending and held by nobody
  ReadyQueue ready_;
  std::optional<ReadySelector> selector_;  // from the first draw on
  SegmentUse segments_;
  TakePool takes_;
  std::deque<BatchState> batches_;  // by sequence: retained, then leased
  std::vector<int64_t> spare_;      // memory of groups of an ended take or batch
  std::vector<uint32_t> found_;     // memory of FindGroups
  std::set<int64_t> overdue_;       // groups, not whole
  IdSet dispatched_;
  IdSet known_;     // groups that had an attempt
  IdSet finished_;  // groups that were consumed or closed
  // Pending and retained trajectories, once there are enough of them that a snapshot may need it.
  std::optional<IdSet> present_;
  std::optional<Restoration> restoring_;
  Ledger ledger_;
  int64_t listed_pending_max_;
  int64_t present_count_ = 0;
  int64_t ready_groups_ = 0, partial_groups_ = 0, taken_groups_ = 0;
  int64_t pending_bytes_ = 0;
  int64_t committed_batch_ = 0, released_batch_ = 0;
  int64_t next_batch_ = 1;
  int64_t hand_out_from_ = 0;  // every batch before it is handed out, trained or retained
};

}  // namespace forebay::buffer
