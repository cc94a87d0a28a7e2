#include "forebay/buffer/table/table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/group_store.h"
#include "forebay/buffer/table/id_set.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

Table::Table(int32_t group_size, int64_t listed_pending_max)
    : store_(group_size), listed_pending_max_(listed_pending_max) {
  FB_CHECK(group_size > 0 && group_size - 1 <= kMemberMax, "a group_size outside of its limits");
}

bool Table::IsOpen(uint32_t s, const TrajectoryId& id) const {
  const uint32_t g = store_.GroupOfSlot(s);
  const Slot& slot = store_.slot(s);
  // All of it: what is appended or rejected is logged under the caller's id.
  return store_.group(g).group_id == id.group_id &&
         static_cast<int64_t>(s - store_.FirstSlot(g)) == id.member && slot.attempt == id.attempt &&
         slot.task_id == id.task_id && slot.state != SlotState::kRetained;
}

uint32_t Table::FindOpen(const TrajectoryId& id) const {
  const uint32_t s = store_.FindSlot(id.trajectory_id);
  return s != kNoIndex && IsOpen(s, id) ? s : kNoIndex;
}

TrajectoryId Table::IdOf(uint32_t s) const {
  const Slot& slot = store_.slot(s);
  const uint32_t g = store_.GroupOfSlot(s);
  return {.trajectory_id = slot.trajectory_id,
          .group_id = store_.group(g).group_id,
          .member = static_cast<int32_t>(s - store_.FirstSlot(g)),
          .attempt = slot.attempt,
          .task_id = slot.task_id};
}

Status Table::Dispatch(const TrajectoryId& id, uint32_t* place) {
  if (id.trajectory_id < 0 || id.group_id < 0 || id.member < 0 || id.member >= group_size() ||
      id.attempt < 0 || id.attempt > kAttemptMax) {
    return InvalidArgument(fmt::format(
        "trajectory {} of group {}: member {}, attempt {}; groups have members 0 to {}, attempts "
        "are 0 to {}",
        id.trajectory_id, id.group_id, id.member, id.attempt, group_size() - 1, kAttemptMax));
  }
  // A group that is new is looked for nowhere else.
  const bool known = known_.Contains(id.group_id);
  uint32_t g = known ? store_.FindGroup(id.group_id) : kNoIndex;
  if (known && finished_.Contains(id.group_id)) {
    return FailedPrecondition(fmt::format(
        "group {} is finished (trained on or closed): it takes no attempt", id.group_id));
  }
  if (g != kNoIndex) {
    const Slot& slot = store_.slot(store_.FirstSlot(g) + static_cast<uint32_t>(id.member));
    if (slot.state != SlotState::kVacant) {
      return FailedPrecondition(fmt::format(
          "member {} of group {} has attempt {} {}", id.member, id.group_id, slot.trajectory_id,
          slot.state == SlotState::kInFlight ? "in flight" : "pending"));
    }
  } else if (!store_.HasRoom()) {
    return ResourceExhausted("2^32 members are in the buffer: it takes no new group");
  }
  if (!dispatched_.Insert(id.trajectory_id)) {
    return FailedPrecondition(fmt::format(
        "trajectory {} was dispatched before: ids are never used twice", id.trajectory_id));
  }
  if (g == kNoIndex) {
    if (!known) known_.Insert(id.group_id);
    g = store_.AddGroup(id.group_id);
  }
  const uint32_t s = store_.FirstSlot(g) + static_cast<uint32_t>(id.member);
  Slot& slot = store_.slot(s);
  slot.state = SlotState::kInFlight;
  slot.attempt = static_cast<uint16_t>(id.attempt);
  slot.trajectory_id = id.trajectory_id;
  slot.task_id = id.task_id;
  slot.flags |= Slot::kTried;
  store_.IndexSlot(s);
  if (place != nullptr) *place = s;
  ++ledger_.dispatched;
  ++ledger_.in_flight;
  return OkStatus();
}

bool Table::InFlight(const TrajectoryId& id) const {
  const uint32_t s = FindOpen(id);
  return s != kNoIndex && store_.slot(s).state == SlotState::kInFlight;
}

Table::Begun Table::BeginAppend(const TrajectoryId& id, uint32_t* place) {
  const uint32_t s = FindOpen(id);
  if (s == kNoIndex || store_.slot(s).state != SlotState::kInFlight) return Begun::kNotInFlight;
  *place = s;
  Slot& slot = store_.slot(s);
  const bool before = (slot.flags & Slot::kAppending) != 0;
  slot.flags |= Slot::kAppending;
  return before ? Begun::kBefore : Begun::kNow;
}

void Table::BeginFirstAppend(uint32_t place) { store_.slot(place).flags |= Slot::kAppending; }

std::optional<TrajectoryId> Table::InFlightAs(int64_t trajectory_id) const {
  const uint32_t s = store_.FindSlot(trajectory_id);
  if (s == kNoIndex || store_.slot(s).state != SlotState::kInFlight) return std::nullopt;
  return IdOf(s);
}

void Table::EndAppend(const TrajectoryId& id) {
  const uint32_t s = FindOpen(id);
  if (s != kNoIndex) store_.slot(s).flags &= static_cast<uint8_t>(~Slot::kAppending);
}

bool Table::Pending(const TrajectoryId& id) const {
  const uint32_t s = FindOpen(id);
  return s != kNoIndex && store_.slot(s).state == SlotState::kPending;
}

Status Table::Pend(const TrajectoryId& id, const PendingInfo& info, uint32_t place) {
  const bool there = store_.IsSlot(place) && store_.slot(place).trajectory_id == id.trajectory_id &&
                     IsOpen(place, id);
  const uint32_t s = there ? place : FindOpen(id);
  if (s == kNoIndex || store_.slot(s).state != SlotState::kInFlight) {
    return NotFound(fmt::format("attempt {} of member {} of group {} is not in flight",
                                id.trajectory_id, id.member, id.group_id));
  }
  if (info.min_version < 0 || info.min_version > kVersionMax || !std::isfinite(info.priority) ||
      info.priority < 0) {
    return InvalidArgument(fmt::format(
        "trajectory {}: version {}, priority {}; versions are 0 to {}, priorities finite and not "
        "negative",
        id.trajectory_id, info.min_version, info.priority, kVersionMax));
  }
  --ledger_.in_flight;
  ++ledger_.pending;
  Place(s, info);
  return OkStatus();
}

void Table::Place(uint32_t s, const PendingInfo& info) {
  const uint32_t g = store_.GroupOfSlot(s);
  const Group& group = store_.group(g);
  const bool retained = (group.flags & Group::kRetained) != 0;
  Slot& slot = store_.slot(s);
  slot.state = retained ? SlotState::kRetained : SlotState::kPending;
  slot.flags &= static_cast<uint8_t>(~Slot::kAppending);
  slot.min_version = static_cast<uint32_t>(info.min_version);
  slot.priority = info.priority;
  slot.segment = info.segment;
  slot.offset_64 = info.offset_64;
  slot.payload_bytes = info.payload_bytes;
  if (!retained && group.holder == 0) versions_.Link(store_, s);
  segments_.Enter(slot.segment, slot.payload_bytes);
  pending_bytes_ += slot.payload_bytes;
  ++present_count_;
  if (present_) {
    present_->Insert(slot.trajectory_id);
  } else if (present_count_ > listed_pending_max_ / 2) {
    TrackPresent();
  }
  AddMember(g);
}

void Table::Unplace(uint32_t s) {
  const Slot& slot = store_.slot(s);
  segments_.Leave(slot.segment, slot.payload_bytes);
  pending_bytes_ -= slot.payload_bytes;
  --present_count_;
  if (present_) present_->Erase(slot.trajectory_id);
}

// From here on each change costs a little; counting from the start would cost that on small tables.
void Table::TrackPresent() {
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(present_count_));
  const uint64_t end = uint64_t{store_.end()} * store_.group_size();
  for (uint32_t s = 0; s < end; ++s) {
    const Slot& slot = store_.slot(s);
    if (slot.state == SlotState::kPending || slot.state == SlotState::kRetained) {
      ids.push_back(slot.trajectory_id);
    }
  }
  std::ranges::sort(ids);
  present_.emplace();
  for (const int64_t id : ids) present_->Insert(id);
}

void Table::AddMember(uint32_t g) {
  Group& group = store_.group(g);
  const uint32_t size = store_.group_size();
  group.pending = group.pending + 1;
  if (group.pending < size) {
    if (group.pending == 1) ++partial_groups_;
    return;
  }
  if (size > 1) --partial_groups_;
  store_.UnlinkOpen(g);
  const uint32_t first = store_.FirstSlot(g);
  group.min_version = store_.slot(first).min_version;
  for (uint32_t i = 1; i < size; ++i) {
    group.min_version = std::min(group.min_version, store_.slot(first + i).min_version);
  }
  if ((group.flags & Group::kOverdue) != 0) overdue_.erase(group.group_id);
  if (IsReady(group)) EnterReady(g);
}

void Table::RemoveMember(uint32_t g) {
  Group& group = store_.group(g);
  const bool was_whole = store_.IsWhole(g);
  if (was_whole && IsReady(group)) LeaveReady(g);
  group.pending = group.pending - 1;
  if (was_whole) {
    store_.LinkOpen(g);
    if (store_.group_size() > 1) ++partial_groups_;
    if ((group.flags & Group::kOverdue) != 0) overdue_.insert(group.group_id);
  }
  if (group.pending == 0 && store_.group_size() > 1) --partial_groups_;
}

void Table::Vacate(uint32_t s) {
  Slot& slot = store_.slot(s);
  if (slot.state == SlotState::kInFlight) {
    --ledger_.in_flight;
  } else {
    --ledger_.pending;
    versions_.Unlink(store_, s);
    Unplace(s);
    RemoveMember(store_.GroupOfSlot(s));
  }
  store_.UnindexSlot(s);
  slot.state = SlotState::kVacant;
  slot.flags &= static_cast<uint8_t>(~Slot::kAppending);
}

Status Table::Reject(const TrajectoryId& id, RejectReason reason) {
  const uint32_t s = FindOpen(id);
  if (s == kNoIndex) {
    return NotFound(
        fmt::format("attempt {} of member {} of group {} is neither in flight nor pending",
                    id.trajectory_id, id.member, id.group_id));
  }
  const int64_t holder = store_.group(store_.GroupOfSlot(s)).holder;
  if (holder != 0) {
    return FailedPrecondition(fmt::format("trajectory {} is {} {}", id.trajectory_id,
                                          holder > 0 ? "leased in batch" : "held by take",
                                          holder > 0 ? holder : -holder));
  }
  Vacate(s);
  ++ledger_.rejected[static_cast<size_t>(reason)];
  return OkStatus();
}

Status Table::CloseGroup(int64_t group_id, std::vector<TrajectoryId>* closed) {
  const uint32_t g = store_.FindGroup(group_id);
  if (g == kNoIndex || (store_.group(g).flags & Group::kRetained) != 0) {
    // A group that vanished is not missing any more.
    if (known_.Contains(group_id)) finished_.Insert(group_id);
    return NotFound(fmt::format("group {} is not in the buffer", group_id));
  }
  const int64_t holder = store_.group(g).holder;
  if (holder != 0) {
    return FailedPrecondition(fmt::format("group {} is {} {}", group_id,
                                          holder > 0 ? "leased in batch" : "held by take",
                                          holder > 0 ? holder : -holder));
  }
  const size_t before = closed->size();
  for (uint32_t i = 0; i < store_.group_size(); ++i) {
    const uint32_t s = store_.FirstSlot(g) + i;
    if (store_.slot(s).state == SlotState::kVacant) continue;
    closed->push_back(IdOf(s));
    Vacate(s);
    ++ledger_.rejected[static_cast<size_t>(RejectReason::kClosed)];
  }
  const bool had_none = closed->size() == before;
  FinishGroup(g);
  // Its vacant members are not missing any more, so the group was closed all the same.
  if (had_none) {
    return NotFound(fmt::format("group {} has no attempt in flight or pending", group_id));
  }
  return OkStatus();
}

Status Table::Undispatch(const TrajectoryId& id) {
  if (!InFlight(id)) {
    return NotFound(fmt::format("attempt {} of member {} of group {} is not in flight",
                                id.trajectory_id, id.member, id.group_id));
  }
  Vacate(FindOpen(id));
  dispatched_.Erase(id.trajectory_id);
  --ledger_.dispatched;
  return OkStatus();
}

// Its slots are vacant, or let go.
void Table::FinishGroup(uint32_t g) {
  const Group& group = store_.group(g);
  finished_.Insert(group.group_id);
  if ((group.flags & Group::kOverdue) != 0) overdue_.erase(group.group_id);
  store_.RemoveGroup(g);
}

std::vector<TrajectoryId> Table::RejectStale(int64_t learner_version, int64_t max_staleness) {
  const std::vector<uint32_t> slots = versions_.OlderThan(store_, learner_version - max_staleness);
  std::vector<TrajectoryId> stale;
  stale.reserve(slots.size());
  for (const uint32_t s : slots) {
    stale.push_back(IdOf(s));
    Vacate(s);
    ++ledger_.rejected[static_cast<size_t>(RejectReason::kStale)];
    Slot& slot = store_.slot(s);
    if (slot.flags < kStaleAttemptsMax * Slot::kStaleStep) slot.flags += Slot::kStaleStep;
    if (slot.flags < kStaleAttemptsMax * Slot::kStaleStep) continue;
    Group& group = store_.group(store_.GroupOfSlot(s));
    group.flags = group.flags | Group::kOverdue;
    overdue_.insert(group.group_id);
  }
  return stale;
}

}  // namespace forebay::buffer
