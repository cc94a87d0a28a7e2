// What a ReferenceTable says, and what it forgets.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/segment_use.h"
#include "forebay/buffer/table/table.h"
#include "forebay/buffer/table/table_reference_testing.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

bool ReferenceTable::Relocate(int64_t trajectory_id, uint32_t segment, uint32_t offset_64) {
  const auto it = attempts_.find(trajectory_id);
  if (it == attempts_.end() || it->second.state == State::kInFlight) return false;
  it->second.info.segment = segment;
  it->second.info.offset_64 = offset_64;
  return true;
}

std::optional<PendingInfo> ReferenceTable::Where(int64_t trajectory_id) const {
  const auto it = attempts_.find(trajectory_id);
  if (it == attempts_.end() || it->second.state == State::kInFlight) return std::nullopt;
  return it->second.info;
}

void ReferenceTable::Restart() {
  takes_.clear();
  stale_.clear();
  for (auto& [sequence, batch] : batches_) {
    if (batch.trained && !batch.retained) {
      batch.trained = false;
      ledger_.trained -= std::ssize(batch.groups) * group_size_;
      ledger_.pending += std::ssize(batch.groups) * group_size_;
    }
    batch.handed_out = true;
    batch.replay = false;
  }
}

void ReferenceTable::Lose(const std::set<int64_t>& trajectory_ids) {
  std::set<int64_t> touched, whole;
  for (const int64_t id : trajectory_ids) touched.insert(attempts_.at(id).id.group_id);
  for (const int64_t group_id : touched) {
    if (std::ranges::count_if(In(group_id), [](const Attempt* a) {
          return a->state != State::kInFlight;
        }) == group_size_) {
      whole.insert(group_id);
    }
  }
  for (const int64_t id : trajectory_ids) {
    const Attempt a = attempts_.at(id);
    Remove(id);
    // Of a whole group only its record said which attempt it was.
    if (whole.count(a.id.group_id) > 0) last_[{a.id.group_id, a.id.member}].attempt = 0;
    if (a.state == State::kRetained) continue;
    --ledger_.pending;
    ++ledger_.rejected[static_cast<size_t>(RejectReason::kQuarantined)];
  }
  for (const int64_t group_id : whole) {
    if (finished_.count(group_id) == 0 && In(group_id).empty()) vanished_.insert(group_id);
  }
  for (auto it = batches_.begin(); it != batches_.end();) {
    const bool broken = std::ranges::any_of(
        it->second.groups, [&](int64_t group_id) { return touched.count(group_id) > 0; });
    if (broken && !it->second.retained) {
      UnleaseFrom(it->first);
      return;
    }
    if (broken) {
      for (const Placed& p : Members(it->second.groups)) Remove(p.id.trajectory_id);
    }
    it = broken ? batches_.erase(it) : std::next(it);
  }
}

std::vector<Placed> ReferenceTable::Members(const std::vector<int64_t>& groups) const {
  std::vector<Placed> members;
  for (const Placed& p : Present()) {
    if (std::ranges::count(groups, p.id.group_id) > 0) members.push_back(p);
  }
  return members;
}

std::vector<Placed> ReferenceTable::Present() const {
  std::vector<Placed> present;
  for (const auto& [id, a] : attempts_) {
    if (a.state != State::kInFlight) present.push_back({a.id, a.info});
  }
  std::ranges::sort(present, [](const Placed& a, const Placed& b) {
    return std::tie(a.id.group_id, a.id.member) < std::tie(b.id.group_id, b.id.member);
  });
  return present;
}

std::vector<TrajectoryId> ReferenceTable::Ids(State state) const {
  std::vector<TrajectoryId> ids;
  for (const auto& [id, a] : attempts_) {
    if (a.state == state) ids.push_back(a.id);
  }
  std::ranges::sort(ids, [](const TrajectoryId& a, const TrajectoryId& b) {
    return std::tie(a.group_id, a.member) < std::tie(b.group_id, b.member);
  });
  return ids;
}

std::vector<MissingMember> ReferenceTable::Missing() const {
  std::set<int64_t> groups;
  for (const auto& [key, id] : last_) {
    if (finished_.count(key.first) == 0) groups.insert(key.first);
  }
  std::vector<MissingMember> missing;
  for (const int64_t group_id : groups) {
    int64_t task_id = 0;
    for (int32_t i = 0; i < group_size_; ++i) {
      if (const auto last = last_.find({group_id, i}); last != last_.end()) {
        task_id = last->second.task_id;
      }
    }
    for (int32_t i = 0; i < group_size_; ++i) {
      if (Occupied(group_id, i)) continue;
      const auto last = last_.find({group_id, i});
      const bool tried = last != last_.end();
      missing.push_back({.group_id = group_id,
                         .member = i,
                         .next_attempt = tried ? last->second.attempt + 1 : 0,
                         .task_id = tried ? last->second.task_id : task_id});
    }
  }
  return missing;
}

std::vector<GroupInfo> ReferenceTable::Inspect(int64_t from_group_id, int64_t limit) const {
  std::set<int64_t> groups;
  for (const auto& [key, id] : last_) {
    if (finished_.count(key.first) + vanished_.count(key.first) == 0) groups.insert(key.first);
  }
  std::vector<GroupInfo> infos;
  for (auto it = groups.lower_bound(from_group_id); it != groups.end() && std::ssize(infos) < limit;
       ++it) {
    const int64_t holder = HolderOf(*it);
    GroupInfo info{.group_id = *it,
                   .batch = std::max<int64_t>(holder, 0),
                   .take_id = std::max<int64_t>(-holder, 0)};
    info.members.resize(static_cast<size_t>(group_size_));
    for (const Attempt* a : In(*it)) {
      const bool pending = a->state == State::kPending;
      info.members[static_cast<size_t>(a->id.member)] =
          pending ? MemberState::kPending : MemberState::kInFlight;
      if (!pending) continue;
      info.min_version = info.min_version < 0 ? a->info.min_version
                                              : std::min(info.min_version, a->info.min_version);
    }
    infos.push_back(info);
  }
  return infos;
}

std::vector<SegmentLive> ReferenceTable::SegmentsByLiveBytes() const {
  std::map<uint32_t, SegmentLive> segments;
  for (const Placed& p : Present()) {
    SegmentLive& live = segments[p.info.segment];
    live.segment = p.info.segment;
    ++live.records;
    live.bytes += p.info.payload_bytes;
  }
  std::vector<SegmentLive> list;
  for (const auto& [segment, live] : segments) list.push_back(live);
  std::ranges::stable_sort(list, {}, &SegmentLive::bytes);
  return list;
}

std::optional<int64_t> ReferenceTable::OverdueGroup() const {
  for (const auto& [key, count] : stale_) {
    if (count < kStaleAttemptsMax || finished_.count(key.first) > 0) continue;
    const auto in = In(key.first);
    if (std::ranges::count_if(in, [](const Attempt* a) { return a->state == State::kPending; }) <
        group_size_) {
      return key.first;
    }
  }
  return std::nullopt;
}

int64_t ReferenceTable::PartialGroups() const {
  std::map<int64_t, int32_t> pending;
  for (const TrajectoryId& id : Ids(State::kPending)) ++pending[id.group_id];
  return std::ranges::count_if(pending,
                               [&](const auto& entry) { return entry.second < group_size_; });
}

int64_t ReferenceTable::PendingBytes() const {
  int64_t bytes = 0;
  for (const Placed& p : Present()) bytes += p.info.payload_bytes;
  return bytes;
}

std::optional<TimePoint> ReferenceTable::NextExpiry() const {
  std::optional<TimePoint> next;
  for (const auto& [take_id, take] : takes_) {
    if (!next || take.expires < *next) next = take.expires;
  }
  return next;
}

}  // namespace forebay::buffer
