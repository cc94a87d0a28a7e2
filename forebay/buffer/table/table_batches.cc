// Leases of a Table, from Lease to Commit, and how recovery puts them back.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// A leased group is neither ready nor can it become stale.
void Table::SetBatch(int64_t group_id, Group& group, int64_t batch) {
  FB_CHECK(group.pending == group_size_, "only whole groups are leased");
  if ((group.batch != 0) == (batch != 0)) {
    group.batch = batch;
    return;
  }
  group.batch = batch;
  if (batch != 0) {
    ready_.erase(ReadyKey(group_id, group));
  } else {
    ready_.insert(ReadyKey(group_id, group));
  }
  for (const Member& m : group.members) {
    const std::pair<int64_t, int64_t> key{m.info.min_version, m.trajectory_id};
    if (batch != 0) {
      by_version_.erase(key);
    } else {
      by_version_.insert(key);
    }
  }
}

const BatchState& Table::Lease(int64_t groups, int64_t learner_version) {
  FB_CHECK(groups > 0 && groups <= ready_groups(), "a lease of groups that are not there");
  BatchState batch{.sequence = next_batch_, .learner_version = learner_version};
  auto oldest = ready_.begin();
  for (int64_t i = 0; i < groups; ++i) batch.groups.push_back((oldest++)->second);
  std::ranges::sort(batch.groups);
  for (const int64_t group_id : batch.groups) {
    SetBatch(group_id, groups_.at(group_id), batch.sequence);
  }
  ++next_batch_;
  return batches_[batch.sequence] = std::move(batch);
}

void Table::UnleaseFrom(int64_t sequence) {
  for (auto it = batches_.lower_bound(sequence); it != batches_.end(); it = batches_.erase(it)) {
    FB_CHECK(!it->second.trained, "a trained batch is not given back");
    for (const int64_t group_id : it->second.groups) SetBatch(group_id, groups_.at(group_id), 0);
  }
  next_batch_ = std::min(next_batch_, sequence);
}

BatchState* Table::NextToHandOut() {
  for (auto& [sequence, batch] : batches_) {
    if (!batch.handed_out && !batch.trained) return &batch;
  }
  return nullptr;
}

const BatchState* Table::FindBatch(int64_t sequence) const {
  const auto it = batches_.find(sequence);
  return it == batches_.end() ? nullptr : &it->second;
}

std::vector<TrajectoryPtr> Table::Content(const BatchState& batch) const {
  std::vector<TrajectoryPtr> content;
  for (const int64_t group_id : batch.groups) {
    for (const Member& m : groups_.at(group_id).members) content.push_back(m.info.trajectory);
  }
  return content;
}

std::vector<TrajectoryId> Table::Ids(const BatchState& batch) const {
  std::vector<TrajectoryId> ids;
  for (const int64_t group_id : batch.groups) {
    const Group& group = groups_.at(group_id);
    for (int32_t i = 0; i < group_size_; ++i) {
      ids.push_back(IdOf(group_id, i, group.members[static_cast<size_t>(i)]));
    }
  }
  return ids;
}

Status Table::MarkTrained(int64_t sequence) {
  const auto it = batches_.find(sequence);
  if (it == batches_.end()) {
    if (sequence > 0 && sequence <= committed_batch_) return OkStatus();
    return NotFound(fmt::format("batch {} is not leased", sequence));
  }
  if (it->second.trained) return OkStatus();
  it->second.trained = true;
  for (const int64_t group_id : it->second.groups) {
    // The learner holds what it needs; a crash reads the log again.
    for (Member& m : groups_.at(group_id).members) ReleaseMemory(m);
    ledger_.pending -= group_size_;
    ledger_.trained += group_size_;
  }
  return OkStatus();
}

Status Table::Commit(int64_t sequence) {
  if (sequence >= next_batch_) {
    return FailedPrecondition(
        fmt::format("batch {} was never leased: the last one is {}", sequence, next_batch_ - 1));
  }
  while (!batches_.empty() && batches_.begin()->first <= sequence) {
    FB_RETURN_IF_ERROR(MarkTrained(batches_.begin()->first));
    for (const int64_t group_id : batches_.begin()->second.groups) {
      for (const Member& m : groups_.at(group_id).members) {
        ReleaseSegment(m.info.segment);
        open_.erase(m.trajectory_id);
      }
      FinishGroup(group_id);
    }
    batches_.erase(batches_.begin());
  }
  committed_batch_ = std::max(committed_batch_, sequence);
  return OkStatus();
}

Status Table::ReplayLease(int64_t sequence, int64_t learner_version,
                          const std::vector<int64_t>& ids) {
  UnleaseFrom(sequence);
  std::set<int64_t> groups;
  size_t found = 0;
  for (const int64_t id : ids) {
    const auto place = open_.find(id);
    if (place == open_.end()) continue;
    const Group& group = groups_.at(place->second.group_id);
    if (group.pending != group_size_ || group.batch != 0) continue;
    groups.insert(place->second.group_id);
    ++found;
  }
  if (sequence <= committed_batch_ || found != ids.size() || found == 0 ||
      found != groups.size() * static_cast<size_t>(group_size_)) {
    return FailedPrecondition(
        fmt::format("batch {} has {} trajectories of which {} are pending in whole groups",
                    sequence, ids.size(), found));
  }
  for (const int64_t group_id : groups) SetBatch(group_id, groups_.at(group_id), sequence);
  batches_[sequence] = {.sequence = sequence,
                        .learner_version = learner_version,
                        .groups = {groups.begin(), groups.end()},
                        .handed_out = true};
  next_batch_ = sequence + 1;
  return OkStatus();
}

bool Table::Uncommit(const std::vector<std::pair<TrajectoryId, PendingInfo>>& members) {
  std::set<int32_t> distinct;
  for (const auto& [id, info] : members) distinct.insert(id.member);
  if (members.size() != static_cast<size_t>(group_size_) || distinct.size() != members.size() ||
      *distinct.begin() != 0 || *distinct.rbegin() != group_size_ - 1 ||
      ledger_.trained < group_size_) {
    return false;
  }
  const int64_t group_id = members[0].first.group_id;
  if (!finished_.Contains(group_id)) return false;
  finished_.Erase(group_id);
  Group& group = groups_[group_id];
  group.members.resize(members.size());
  for (const auto& [id, info] : members) {
    group.members[static_cast<size_t>(id.member)] = {.state = State::kPending,
                                                     .attempt = id.attempt,
                                                     .trajectory_id = id.trajectory_id,
                                                     .task_id = id.task_id,
                                                     .info = info};
    open_[id.trajectory_id] = {group_id, id.member};
    --ledger_.trained;
    EnterPending(group_id, id.member);
  }
  return true;
}

bool Table::Consume(int64_t group_id) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end() || it->second.batch != 0) return false;
  for (int32_t i = 0; i < group_size_; ++i) {
    Member& m = it->second.members[static_cast<size_t>(i)];
    if (m.state == State::kVacant) continue;
    if (m.state == State::kPending) {
      LeavePending(group_id, i);
    } else {
      --ledger_.in_flight;
    }
    m.state = State::kVacant;
    open_.erase(m.trajectory_id);
    ++ledger_.trained;
  }
  FinishGroup(group_id);
  return true;
}

std::optional<int64_t> Table::GroupOf(int64_t trajectory_id) const {
  const auto place = open_.find(trajectory_id);
  if (place == open_.end()) return std::nullopt;
  return place->second.group_id;
}

bool Table::Fill(int64_t trajectory_id, PendingInfo info) {
  const auto place = open_.find(trajectory_id);
  if (place == open_.end()) return false;
  Group& group = groups_.at(place->second.group_id);
  Member& m = group.members[static_cast<size_t>(place->second.member)];
  // The version orders sets that this must not disturb.
  if (m.state != State::kPending || m.info.min_version != info.min_version) return false;
  memory_bytes_ += info.memory_bytes - m.info.memory_bytes;
  m.info.memory_bytes = info.memory_bytes;
  m.info.trajectory = std::move(info.trajectory);
  return true;
}

void Table::MarkReplays() {
  for (auto& [sequence, batch] : batches_) {
    batch.replay = true;
    batch.handed_out = false;
  }
}

void Table::DropTrajectories() {
  for (auto& [group_id, group] : groups_) {
    for (Member& m : group.members) ReleaseMemory(m);
  }
}

std::vector<TrajectoryId> Table::InFlightIds() const {
  std::vector<TrajectoryId> ids;
  for (const auto& [group_id, group] : groups_) {
    for (int32_t i = 0; i < group_size_; ++i) {
      const Member& m = group.members[static_cast<size_t>(i)];
      if (m.state == State::kInFlight) ids.push_back(IdOf(group_id, i, m));
    }
  }
  return ids;
}

std::optional<TrajectoryId> Table::Occupant(int64_t group_id, int32_t member) const {
  const auto group = groups_.find(group_id);
  if (group == groups_.end() || member < 0 || member >= group_size_) return std::nullopt;
  const Member& m = group->second.members[static_cast<size_t>(member)];
  if (m.state == State::kVacant) return std::nullopt;
  return IdOf(group_id, member, m);
}

std::vector<TrajectoryId> Table::PendingIds() const {
  std::vector<TrajectoryId> ids;
  for (const auto& [group_id, group] : groups_) {
    for (int32_t i = 0; i < group_size_; ++i) {
      const Member& m = group.members[static_cast<size_t>(i)];
      if (m.state == State::kPending) ids.push_back(IdOf(group_id, i, m));
    }
  }
  return ids;
}

std::vector<MissingMember> Table::Missing() const {
  std::vector<MissingMember> missing;
  for (const auto& [group_id, group] : groups_) {
    // A member that was never dispatched plays the task of its group.
    int64_t task_id = 0;
    for (const Member& m : group.members) {
      if (m.attempt >= 0) task_id = m.task_id;
    }
    for (int32_t i = 0; i < group_size_; ++i) {
      const Member& m = group.members[static_cast<size_t>(i)];
      if (m.state != State::kVacant) continue;
      missing.push_back({.group_id = group_id,
                         .member = i,
                         .next_attempt = m.attempt + 1,
                         .task_id = m.attempt >= 0 ? m.task_id : task_id});
    }
  }
  return missing;
}

int64_t Table::next_group_id() const {
  const int64_t open = groups_.empty() ? -1 : std::prev(groups_.end())->first;
  return std::max(open, finished_.Max()) + 1;
}

int64_t Table::BatchOf(const TrajectoryId& id) const {
  return Find(id) == nullptr ? 0 : groups_.at(id.group_id).batch;
}

}  // namespace forebay::buffer
