#include "forebay/buffer/table/table_reference_testing.h"

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
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/segment_use.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

std::vector<const ReferenceTable::Attempt*> ReferenceTable::In(int64_t group_id) const {
  std::vector<const Attempt*> in;
  for (const auto& [id, a] : attempts_) {
    if (a.id.group_id == group_id) in.push_back(&a);
  }
  std::ranges::sort(in, {}, [](const Attempt* a) { return a->id.member; });
  return in;
}

std::vector<ReferenceTable::Attempt*> ReferenceTable::In(int64_t group_id) {
  std::vector<Attempt*> in;
  for (const Attempt* a : std::as_const(*this).In(group_id)) in.push_back(const_cast<Attempt*>(a));
  return in;
}

int64_t ReferenceTable::HolderOf(int64_t group_id) const {
  for (const auto& [sequence, batch] : batches_) {
    if (!batch.retained && std::ranges::count(batch.groups, group_id) > 0) return sequence;
  }
  for (const auto& [take_id, take] : takes_) {
    if (std::ranges::count(take.groups, group_id) > 0) return -take_id;
  }
  return 0;
}

const ReferenceTable::Attempt* ReferenceTable::Open(const TrajectoryId& id) const {
  const auto it = attempts_.find(id.trajectory_id);
  if (it == attempts_.end() || it->second.state == State::kRetained ||
      it->second.id.group_id != id.group_id || it->second.id.member != id.member) {
    return nullptr;
  }
  return &it->second;
}

void ReferenceTable::Remove(int64_t trajectory_id) { attempts_.erase(trajectory_id); }

void ReferenceTable::Finish(int64_t group_id) {
  finished_.insert(group_id);
  vanished_.erase(group_id);
}

bool ReferenceTable::Occupied(int64_t group_id, int32_t member) const {
  return std::ranges::any_of(In(group_id),
                             [&](const Attempt* a) { return a->id.member == member; });
}

StatusCode ReferenceTable::Dispatch(const TrajectoryId& id) {
  if (id.trajectory_id < 0 || id.group_id < 0 || id.member < 0 || id.member >= group_size_ ||
      id.attempt < 0 || id.attempt > kAttemptMax) {
    return StatusCode::kInvalidArgument;
  }
  if (finished_.count(id.group_id) > 0 || Occupied(id.group_id, id.member) ||
      !used_.insert(id.trajectory_id).second) {
    return StatusCode::kFailedPrecondition;
  }
  if (vanished_.erase(id.group_id) > 0) {
    for (int32_t i = 0; i < group_size_; ++i) last_.erase({id.group_id, i});
  }
  attempts_[id.trajectory_id] = {.id = id};
  last_[{id.group_id, id.member}] = id;
  ++ledger_.dispatched;
  ++ledger_.in_flight;
  return StatusCode::kOk;
}

StatusCode ReferenceTable::Pend(const TrajectoryId& id, const PendingInfo& info) {
  const Attempt* a = Open(id);
  if (a == nullptr || a->state != State::kInFlight) return StatusCode::kNotFound;
  if (info.min_version < 0 || info.min_version > kVersionMax || !(info.priority >= 0) ||
      info.priority > 1e30F) {
    return StatusCode::kInvalidArgument;
  }
  --ledger_.in_flight;
  ++ledger_.pending;
  attempts_[id.trajectory_id].state = State::kPending;
  attempts_[id.trajectory_id].info = info;
  return StatusCode::kOk;
}

StatusCode ReferenceTable::Reject(const TrajectoryId& id, RejectReason reason) {
  const Attempt* a = Open(id);
  if (a == nullptr) return StatusCode::kNotFound;
  if (HolderOf(id.group_id) != 0) return StatusCode::kFailedPrecondition;
  --(a->state == State::kInFlight ? ledger_.in_flight : ledger_.pending);
  ++ledger_.rejected[static_cast<size_t>(reason)];
  Remove(id.trajectory_id);
  return StatusCode::kOk;
}

StatusCode ReferenceTable::CloseGroup(int64_t group_id, std::vector<TrajectoryId>* closed) {
  const bool known = last_.lower_bound({group_id, 0}) != last_.lower_bound({group_id + 1, 0});
  if (!known || finished_.count(group_id) > 0) return StatusCode::kNotFound;
  if (HolderOf(group_id) != 0) return StatusCode::kFailedPrecondition;
  for (const Attempt* a : In(group_id)) closed->push_back(a->id);
  for (const TrajectoryId& id : *closed) Reject(id, RejectReason::kClosed);
  Finish(group_id);
  return closed->empty() ? StatusCode::kNotFound : StatusCode::kOk;
}

std::vector<TrajectoryId> ReferenceTable::RejectStale(int64_t learner_version,
                                                      int64_t max_staleness) {
  std::vector<std::pair<int64_t, int64_t>> old;
  for (const auto& [id, a] : attempts_) {
    if (a.state == State::kPending && a.info.min_version < learner_version - max_staleness &&
        HolderOf(a.id.group_id) == 0) {
      old.emplace_back(a.info.min_version, id);
    }
  }
  std::ranges::sort(old);
  std::vector<TrajectoryId> stale;
  for (const auto& [version, id] : old) {
    stale.push_back(attempts_.at(id).id);
    ++stale_[{stale.back().group_id, stale.back().member}];
    Reject(stale.back(), RejectReason::kStale);
  }
  return stale;
}

std::vector<std::pair<int64_t, int64_t>> ReferenceTable::Ready() const {
  std::map<int64_t, std::pair<int32_t, int64_t>> groups;  // -> members, oldest
  for (const auto& [id, a] : attempts_) {
    if (a.state != State::kPending) continue;
    auto [it, added] = groups.try_emplace(a.id.group_id, 0, a.info.min_version);
    ++it->second.first;
    it->second.second = std::min(it->second.second, a.info.min_version);
  }
  std::vector<std::pair<int64_t, int64_t>> ready;
  for (const auto& [group, info] : groups) {
    if (info.first == group_size_ && HolderOf(group) == 0) ready.emplace_back(info.second, group);
  }
  std::ranges::sort(ready);
  return ready;
}

BatchState ReferenceTable::Lease(int64_t groups, int64_t learner_version) {
  BatchState batch{.sequence = next_batch_++, .learner_version = learner_version};
  const auto ready = Ready();
  for (int64_t i = 0; i < groups; ++i) {
    batch.groups.push_back(ready[static_cast<size_t>(i)].second);
  }
  std::ranges::sort(batch.groups);
  return batches_[batch.sequence] = batch;
}

void ReferenceTable::UnleaseFrom(int64_t sequence) {
  std::erase_if(batches_, [&](const auto& entry) {
    return entry.first >= sequence && !entry.second.retained;
  });
  next_batch_ = std::min(next_batch_, std::max(sequence, committed_ + 1));
}

StatusCode ReferenceTable::MarkTrained(int64_t sequence) {
  const auto it = batches_.find(sequence);
  if (it == batches_.end()) {
    return sequence > 0 && sequence <= committed_ ? StatusCode::kOk : StatusCode::kNotFound;
  }
  if (it->second.trained) return StatusCode::kOk;
  it->second.trained = true;
  ledger_.pending -= std::ssize(it->second.groups) * group_size_;
  ledger_.trained += std::ssize(it->second.groups) * group_size_;
  return StatusCode::kOk;
}

StatusCode ReferenceTable::Commit(int64_t sequence) {
  if (sequence >= next_batch_) return StatusCode::kFailedPrecondition;
  for (auto& [number, batch] : batches_) {
    if (number > sequence || batch.retained) continue;
    MarkTrained(number);
    batch.retained = true;
    for (const int64_t group_id : batch.groups) {
      for (Attempt* a : In(group_id)) a->state = State::kRetained;
      Finish(group_id);
    }
  }
  committed_ = std::max(committed_, sequence);
  return StatusCode::kOk;
}

void ReferenceTable::Release(int64_t sequence) {
  for (auto it = batches_.begin(); it != batches_.end();) {
    if (it->first > sequence || !it->second.retained) break;
    for (const Placed& p : Members(it->second.groups)) Remove(p.id.trajectory_id);
    it = batches_.erase(it);
  }
  released_ = std::max(released_, std::min(sequence, committed_));
}

std::optional<int64_t> ReferenceTable::Uncommit(int64_t to) {
  for (int64_t sequence = to + 1; sequence <= committed_; ++sequence) {
    if (batches_.count(sequence) == 0) return std::nullopt;
  }
  int64_t back = 0;
  for (int64_t sequence = to + 1; sequence <= committed_; ++sequence, ++back) {
    BatchState& batch = batches_.at(sequence);
    batch.retained = batch.trained = batch.handed_out = false;
    batch.replay = true;
    for (const int64_t group_id : batch.groups) {
      finished_.erase(group_id);
      for (Attempt* a : In(group_id)) {
        a->state = State::kPending;
        --ledger_.trained;
        ++ledger_.pending;
      }
    }
  }
  committed_ = std::min(committed_, to);
  released_ = std::min(released_, committed_);
  return back;
}

StatusCode ReferenceTable::ReplayLease(int64_t sequence, int64_t learner_version,
                                       const std::vector<int64_t>& ids) {
  if (sequence <= committed_) return StatusCode::kFailedPrecondition;
  UnleaseFrom(sequence);
  std::map<int64_t, std::set<int64_t>> groups;
  const auto ready = Ready();
  for (const int64_t id : ids) {
    const auto it = attempts_.find(id);
    if (it == attempts_.end()) return StatusCode::kFailedPrecondition;
    const int64_t group_id = it->second.id.group_id;
    if (std::ranges::count(ready, group_id, [](const auto& r) { return r.second; }) == 0 ||
        !groups[group_id].insert(id).second) {
      return StatusCode::kFailedPrecondition;
    }
  }
  BatchState batch{.sequence = sequence, .learner_version = learner_version, .handed_out = true};
  for (const auto& [group_id, members] : groups) {
    if (std::ssize(members) != group_size_) return StatusCode::kFailedPrecondition;
    batch.groups.push_back(group_id);
  }
  if (batch.groups.empty()) return StatusCode::kFailedPrecondition;
  batches_[sequence] = batch;
  next_batch_ = sequence + 1;
  return StatusCode::kOk;
}

bool ReferenceTable::Consume(int64_t group_id) {
  const bool known = last_.lower_bound({group_id, 0}) != last_.lower_bound({group_id + 1, 0});
  if (!known || finished_.count(group_id) + vanished_.count(group_id) > 0 ||
      HolderOf(group_id) != 0) {
    return false;
  }
  for (const Attempt* a : In(group_id)) {
    --(a->state == State::kInFlight ? ledger_.in_flight : ledger_.pending);
    ++ledger_.trained;
    Remove(a->id.trajectory_id);
  }
  Finish(group_id);
  return true;
}

void ReferenceTable::Take(int64_t take_id, const std::vector<int64_t>& groups, TimePoint expires) {
  takes_[take_id] = {groups, expires};
}

StatusCode ReferenceTable::AcknowledgeTake(int64_t take_id) {
  const auto it = takes_.find(take_id);
  if (it == takes_.end()) return StatusCode::kNotFound;
  const std::vector<int64_t> groups = it->second.groups;
  takes_.erase(it);
  for (const int64_t group_id : groups) Consume(group_id);
  return StatusCode::kOk;
}

StatusCode ReferenceTable::GiveBackTake(int64_t take_id) {
  return takes_.erase(take_id) > 0 ? StatusCode::kOk : StatusCode::kNotFound;
}

std::vector<int64_t> ReferenceTable::ExpireTakes(TimePoint now) {
  std::vector<std::pair<TimePoint, int64_t>> due;
  for (const auto& [take_id, take] : takes_) {
    if (take.expires <= now) due.emplace_back(take.expires, take_id);
  }
  std::ranges::sort(due);
  std::vector<int64_t> expired;
  for (const auto& [expires, take_id] : due) {
    takes_.erase(take_id);
    expired.push_back(take_id);
  }
  return expired;
}

}  // namespace forebay::buffer
