// How a Table whose snapshot had only the ids of pending trajectories becomes complete again.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/group_store.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

bool Table::Awaits(int64_t trajectory_id) const {
  return restoring_ && restoring_->awaited.Contains(trajectory_id);
}

void Table::ReserveRestore(int64_t most) {
  if (!restoring_) return;
  const auto members = static_cast<size_t>(std::min(most, restoring_->awaited.count()));
  store_.ReserveIndexes(members / store_.group_size(), members);
}

bool Table::Restore(const TrajectoryId& id, const PendingInfo& info) {
  if (!Awaits(id.trajectory_id) || id.member < 0 || id.member >= group_size() || id.attempt < 0 ||
      id.attempt > kAttemptMax || info.min_version < 0 || info.min_version > kVersionMax ||
      !std::isfinite(info.priority) || info.priority < 0 || !known_.Contains(id.group_id)) {
    return false;
  }
  const auto held = restoring_->held.find(id.group_id);
  const int64_t batch = held == restoring_->held.end() ? 0 : held->second;
  const bool retained = batch != 0 && FindBatch(batch)->retained;
  if ((batch == 0 && finished_.Contains(id.group_id)) || (!retained && restoring_->pending == 0)) {
    return false;
  }
  uint32_t g = store_.FindGroup(id.group_id);
  if (g != kNoIndex) {
    const Slot& slot = store_.slot(store_.FirstSlot(g) + static_cast<uint32_t>(id.member));
    const bool unlisted = (store_.group(g).flags & Group::kUnlisted) != 0;
    if (unlisted ? slot.state != SlotState::kVacant
                 : slot.state != SlotState::kAwaited || slot.trajectory_id != id.trajectory_id) {
      return false;
    }
  } else if (!store_.HasRoom()) {
    return false;
  }
  restoring_->awaited.Erase(id.trajectory_id);
  if (!retained) --restoring_->pending;
  if (g == kNoIndex) {
    g = store_.AddGroup(id.group_id);
    Group& group = store_.group(g);
    group.holder = batch;
    group.flags = Group::kUnlisted | (retained ? Group::kRetained : 0);
  }
  const uint32_t s = store_.FirstSlot(g) + static_cast<uint32_t>(id.member);
  Slot& slot = store_.slot(s);
  slot.trajectory_id = id.trajectory_id;
  slot.task_id = id.task_id;
  slot.attempt = static_cast<uint16_t>(id.attempt);
  slot.flags |= Slot::kTried;
  store_.IndexSlot(s);
  Place(s, info);
  return true;
}

int64_t Table::FinishRestore() {
  if (!restoring_) return 0;
  const int64_t lost = restoring_->awaited.count();
  ledger_.pending -= restoring_->pending;
  ledger_.rejected[static_cast<size_t>(RejectReason::kQuarantined)] += restoring_->pending;
  restoring_.reset();

  const auto is_complete = [this](const BatchState& batch) {
    return std::ranges::all_of(batch.groups, [this](int64_t group_id) {
      const uint32_t g = store_.FindGroup(group_id);
      return g != kNoIndex && store_.IsWhole(g);
    });
  };
  int64_t first_broken = next_batch_;
  for (auto it = batches_.begin(); it != batches_.end();) {
    if (is_complete(*it)) {
      ++it;
    } else if (it->retained) {
      for (const int64_t group_id : it->groups) {
        const uint32_t g = store_.FindGroup(group_id);
        if (g != kNoIndex) LetGo(g);
      }
      it = batches_.erase(it);
    } else {
      first_broken = it->sequence;
      break;
    }
  }
  if (first_broken < next_batch_) UnleaseFrom(first_broken);

  // What was pending had an attempt; which one, only its record said.
  for (uint32_t g = store_.first_open(); g != kNoIndex; g = store_.group(g).next) {
    Group& group = store_.group(g);
    const bool unlisted = (group.flags & Group::kUnlisted) != 0;
    const uint32_t first = store_.FirstSlot(g);
    int64_t task_id = group.group_id;
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      if ((store_.slot(first + i).flags & Slot::kTried) != 0)
        task_id = store_.slot(first + i).task_id;
    }
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      Slot& slot = store_.slot(first + i);
      if (slot.state == SlotState::kAwaited) slot.state = SlotState::kVacant;
      if (!unlisted || slot.state != SlotState::kVacant) continue;
      slot.flags |= Slot::kTried;
      slot.attempt = 0;
      slot.task_id = task_id;
    }
  }
  return lost;
}

}  // namespace forebay::buffer
