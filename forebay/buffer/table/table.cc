#include "forebay/buffer/table/table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

Table::Member* Table::Find(const TrajectoryId& id) {
  const auto place = open_.find(id.trajectory_id);
  if (place == open_.end() || place->second.group_id != id.group_id ||
      place->second.member != id.member) {
    return nullptr;
  }
  return &groups_.at(id.group_id).members[static_cast<size_t>(id.member)];
}

const Table::Member* Table::Find(const TrajectoryId& id) const {
  return const_cast<Table*>(this)->Find(id);
}

TrajectoryId Table::IdOf(int64_t group_id, int32_t member, const Member& m) const {
  return {.trajectory_id = m.trajectory_id,
          .group_id = group_id,
          .member = member,
          .attempt = m.attempt,
          .task_id = m.task_id};
}

std::pair<int64_t, int64_t> Table::ReadyKey(int64_t group_id, const Group& group) const {
  int64_t oldest = group.members[0].info.min_version;
  for (const Member& m : group.members) oldest = std::min(oldest, m.info.min_version);
  return {oldest, group_id};
}

Status Table::Dispatch(const TrajectoryId& id) {
  if (id.trajectory_id < 0 || id.group_id < 0 || id.member < 0 || id.member >= group_size_ ||
      id.attempt < 0) {
    return InvalidArgument(
        fmt::format("trajectory {} of group {}: member {}, attempt {}; groups have members 0 to {}",
                    id.trajectory_id, id.group_id, id.member, id.attempt, group_size_ - 1));
  }
  if (dispatched_.Contains(id.trajectory_id)) {
    return FailedPrecondition(fmt::format(
        "trajectory {} was dispatched before: ids are never used twice", id.trajectory_id));
  }
  if (finished_.Contains(id.group_id)) {
    return FailedPrecondition(fmt::format(
        "group {} is finished (trained on or closed): it takes no attempt", id.group_id));
  }
  Group& group = groups_[id.group_id];
  if (group.members.empty()) group.members.resize(static_cast<size_t>(group_size_));
  Member& member = group.members[static_cast<size_t>(id.member)];
  if (member.state != State::kVacant) {
    return FailedPrecondition(fmt::format(
        "member {} of group {} has attempt {} {}", id.member, id.group_id, member.trajectory_id,
        member.state == State::kInFlight ? "in flight" : "pending"));
  }
  dispatched_.Insert(id.trajectory_id);
  member.state = State::kInFlight;
  member.attempt = id.attempt;
  member.trajectory_id = id.trajectory_id;
  member.task_id = id.task_id;
  open_[id.trajectory_id] = {id.group_id, id.member};
  ++group.in_flight;
  ++ledger_.dispatched;
  ++ledger_.in_flight;
  return OkStatus();
}

bool Table::InFlight(const TrajectoryId& id) const {
  const Member* member = Find(id);
  return member != nullptr && member->state == State::kInFlight;
}

Status Table::Pend(const TrajectoryId& id, PendingInfo info) {
  Member* member = Find(id);
  if (member == nullptr || member->state != State::kInFlight) {
    return NotFound(fmt::format("attempt {} of member {} of group {} is not in flight",
                                id.trajectory_id, id.member, id.group_id));
  }
  --groups_.at(id.group_id).in_flight;
  --ledger_.in_flight;
  member->state = State::kPending;
  member->info = std::move(info);
  EnterPending(id.group_id, id.member);
  return OkStatus();
}

void Table::EnterPending(int64_t group_id, int32_t member) {
  Group& group = groups_.at(group_id);
  const Member& m = group.members[static_cast<size_t>(member)];
  ++group.pending;
  ++ledger_.pending;
  ++segment_live_[m.info.segment];
  memory_bytes_ += m.info.memory_bytes;
  by_version_.emplace(m.info.min_version, m.trajectory_id);
  if (group.pending == group_size_) {
    partial_.erase(group_id);
    ready_.insert(ReadyKey(group_id, group));
  } else {
    partial_.insert(group_id);
  }
}

void Table::LeavePending(int64_t group_id, int32_t member) {
  Group& group = groups_.at(group_id);
  Member& m = group.members[static_cast<size_t>(member)];
  if (group.pending == group_size_) ready_.erase(ReadyKey(group_id, group));
  by_version_.erase({m.info.min_version, m.trajectory_id});
  --group.pending;
  --ledger_.pending;
  if (group.pending > 0) {
    partial_.insert(group_id);
  } else {
    partial_.erase(group_id);
  }
  ReleaseSegment(m.info.segment);
  ReleaseMemory(m);
}

void Table::ReleaseSegment(int64_t segment) {
  const auto live = segment_live_.find(segment);
  FB_CHECK(live != segment_live_.end(), "a segment gave up more trajectories than it holds");
  if (--live->second == 0) segment_live_.erase(live);
}

void Table::ReleaseMemory(Member& member) {
  memory_bytes_ -= member.info.memory_bytes;
  member.info.memory_bytes = 0;
  member.info.trajectory.reset();
}

Status Table::Reject(const TrajectoryId& id, RejectReason reason) {
  Member* member = Find(id);
  if (member == nullptr) {
    return NotFound(
        fmt::format("attempt {} of member {} of group {} is neither in flight nor pending",
                    id.trajectory_id, id.member, id.group_id));
  }
  Group& group = groups_.at(id.group_id);
  if (group.batch != 0) {
    return FailedPrecondition(
        fmt::format("trajectory {} is leased in batch {}", id.trajectory_id, group.batch));
  }
  if (member->state == State::kInFlight) {
    --group.in_flight;
    --ledger_.in_flight;
  } else {
    LeavePending(id.group_id, id.member);
  }
  member->state = State::kVacant;
  open_.erase(id.trajectory_id);
  ++ledger_.rejected[static_cast<size_t>(reason)];
  return OkStatus();
}

Status Table::CloseGroup(int64_t group_id, std::vector<TrajectoryId>* closed) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return NotFound(fmt::format("group {} is not in the buffer", group_id));
  if (it->second.batch != 0) {
    return FailedPrecondition(
        fmt::format("group {} is leased in batch {}", group_id, it->second.batch));
  }
  const size_t before = closed->size();
  for (int32_t i = 0; i < group_size_; ++i) {
    const Member& m = it->second.members[static_cast<size_t>(i)];
    if (m.state == State::kVacant) continue;
    closed->push_back(IdOf(group_id, i, m));
    const Status rejected = Reject(closed->back(), RejectReason::kClosed);
    FB_CHECK(rejected.ok(), rejected.message());
  }
  const bool had_none = closed->size() == before;
  FinishGroup(group_id);
  // Its vacant members are not missing any more, so the group was closed all the same.
  if (had_none)
    return NotFound(fmt::format("group {} has no attempt in flight or pending", group_id));
  return OkStatus();
}

void Table::FinishGroup(int64_t group_id) {
  finished_.Insert(group_id);
  partial_.erase(group_id);
  often_stale_.erase(group_id);
  groups_.erase(group_id);
}

std::vector<TrajectoryId> Table::RejectStale(int64_t learner_version, int64_t max_staleness) {
  std::vector<TrajectoryId> stale;
  while (!by_version_.empty() && by_version_.begin()->first < learner_version - max_staleness) {
    const Place place = open_.at(by_version_.begin()->second);
    Member& m = groups_.at(place.group_id).members[static_cast<size_t>(place.member)];
    stale.push_back(IdOf(place.group_id, place.member, m));
    const Status rejected = Reject(stale.back(), RejectReason::kStale);
    FB_CHECK(rejected.ok(), rejected.message());
    if (++m.stale_attempts >= kStaleAttemptsMax) often_stale_.insert(place.group_id);
  }
  return stale;
}

std::optional<int64_t> Table::OverdueGroup() const {
  for (const int64_t group_id : often_stale_) {
    if (groups_.at(group_id).pending < group_size_) return group_id;
  }
  return std::nullopt;
}

std::string Table::Describe() const {
  constexpr size_t kGroupsNamed = 3;
  std::string lacking;
  size_t named = 0;
  for (const int64_t group_id : partial_) {
    if (named++ == kGroupsNamed) {
      lacking += "; ...";
      break;
    }
    std::string members;
    for (size_t i = 0; i < static_cast<size_t>(group_size_); ++i) {
      if (groups_.at(group_id).members[i].state == State::kPending) continue;
      members += fmt::format("{}{}", members.empty() ? "" : ", ", i);
    }
    lacking +=
        fmt::format("{}group {} lacks members {}", lacking.empty() ? "" : "; ", group_id, members);
  }
  return fmt::format("{} ready, {} partial{}, {} in flight", ready_.size(), partial_.size(),
                     lacking.empty() ? "" : " (" + lacking + ")", ledger_.in_flight);
}

}  // namespace forebay::buffer
