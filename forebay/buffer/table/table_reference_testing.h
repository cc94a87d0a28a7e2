// ReferenceTable: what a Table should say, from plain maps and full scans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/segment_use.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// For tests. Nothing incremental but the ledger. Functions are as the Table's; those that can fail
// give the code.
class ReferenceTable {
 public:
  enum class State : uint8_t { kInFlight, kPending, kRetained };
  struct Attempt {
    TrajectoryId id;
    State state = State::kInFlight;
    PendingInfo info;
  };
  struct TakeEntry {
    std::vector<int64_t> groups;
    TimePoint expires;
  };

  explicit ReferenceTable(int32_t group_size) : group_size_(group_size) {}

  StatusCode Dispatch(const TrajectoryId& id);
  StatusCode Pend(const TrajectoryId& id, const PendingInfo& info);
  StatusCode Reject(const TrajectoryId& id, RejectReason reason);
  StatusCode CloseGroup(int64_t group_id, std::vector<TrajectoryId>* closed);
  std::vector<TrajectoryId> RejectStale(int64_t learner_version, int64_t max_staleness);

  // (min_version, group) of ready groups, in the order of Lease.
  std::vector<std::pair<int64_t, int64_t>> Ready() const;
  BatchState Lease(int64_t groups, int64_t learner_version);
  void UnleaseFrom(int64_t sequence);
  StatusCode MarkTrained(int64_t sequence);
  StatusCode Commit(int64_t sequence);
  void Release(int64_t sequence);
  std::optional<int64_t> Uncommit(int64_t to);  // nullopt: refused
  StatusCode ReplayLease(int64_t sequence, int64_t learner_version,
                         const std::vector<int64_t>& ids);
  bool Consume(int64_t group_id);

  void Take(int64_t take_id, const std::vector<int64_t>& groups, TimePoint expires);
  StatusCode AcknowledgeTake(int64_t take_id);
  StatusCode GiveBackTake(int64_t take_id);
  std::vector<int64_t> ExpireTakes(TimePoint now);

  bool Relocate(int64_t trajectory_id, uint32_t segment, uint32_t offset_64);
  std::optional<PendingInfo> Where(int64_t trajectory_id) const;
  // What a snapshot forgets.
  void Restart();
  // FinishRestore, of a snapshot without details, without these.
  void Lose(const std::set<int64_t>& trajectory_ids);

  std::vector<Placed> Members(const std::vector<int64_t>& groups) const;
  std::vector<Placed> Present() const;  // pending and retained
  std::vector<TrajectoryId> Ids(State state) const;
  std::vector<MissingMember> Missing() const;
  std::vector<GroupInfo> Inspect(int64_t from_group_id, int64_t limit) const;
  std::vector<SegmentLive> SegmentsByLiveBytes() const;
  std::optional<int64_t> OverdueGroup() const;
  int64_t PartialGroups() const;
  int64_t PendingBytes() const;
  bool IsFinished(int64_t group_id) const { return finished_.count(group_id) > 0; }
  bool Occupied(int64_t group_id, int32_t member) const;
  std::optional<TimePoint> NextExpiry() const;

  const Ledger& ledger() const { return ledger_; }
  const std::map<int64_t, Attempt>& attempts() const { return attempts_; }
  const std::map<int64_t, BatchState>& batches() const { return batches_; }
  const std::map<int64_t, TakeEntry>& takes() const { return takes_; }
  int64_t committed() const { return committed_; }
  int64_t released() const { return released_; }
  int64_t next_batch() const { return next_batch_; }
  int32_t group_size() const { return group_size_; }

 private:
  std::vector<Attempt*> In(int64_t group_id);
  std::vector<const Attempt*> In(int64_t group_id) const;
  int64_t HolderOf(int64_t group_id) const;  // batch, -take, 0
  const Attempt* Open(const TrajectoryId& id) const;
  void Finish(int64_t group_id);  // its attempts are gone
  void Remove(int64_t trajectory_id);

  int32_t group_size_;
  std::map<int64_t, Attempt> attempts_;  // that are there
  std::map<std::pair<int64_t, int32_t>, TrajectoryId> last_;
  std::map<std::pair<int64_t, int32_t>, int32_t> stale_;
  std::set<int64_t> used_, finished_, vanished_;
  std::map<int64_t, BatchState> batches_;
  std::map<int64_t, TakeEntry> takes_;
  Ledger ledger_;
  int64_t committed_ = 0, released_ = 0, next_batch_ = 1;
};

}  // namespace forebay::buffer
