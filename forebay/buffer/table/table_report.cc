// What a Table says about itself: to recovery, to operators and in errors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/group_store.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// The ids beside the groups: to sort by what lies in the groups would take most of a snapshot's
// time.
std::vector<uint32_t> SortedById(std::vector<std::pair<int64_t, uint32_t>>& groups) {
  std::ranges::sort(groups);
  std::vector<uint32_t> sorted;
  sorted.reserve(groups.size());
  for (const auto& [group_id, g] : groups) sorted.push_back(g);
  return sorted;
}

}  // namespace

PendingInfo Table::InfoOf(uint32_t s) const {
  const Slot& slot = store_.slot(s);
  return {.min_version = slot.min_version,
          .priority = slot.priority,
          .segment = slot.segment,
          .offset_64 = slot.offset_64,
          .payload_bytes = slot.payload_bytes};
}

std::optional<PendingInfo> Table::Where(int64_t trajectory_id) const {
  const uint32_t s = store_.FindSlot(trajectory_id);
  if (s == kNoIndex || store_.slot(s).state == SlotState::kInFlight) return std::nullopt;
  return InfoOf(s);
}

bool Table::Relocate(int64_t trajectory_id, uint32_t segment, uint32_t offset_64) {
  const uint32_t s = store_.FindSlot(trajectory_id);
  if (s == kNoIndex || store_.slot(s).state == SlotState::kInFlight) return false;
  Slot& slot = store_.slot(s);
  segments_.Leave(slot.segment, slot.payload_bytes);
  slot.segment = segment;
  slot.offset_64 = offset_64;
  segments_.Enter(slot.segment, slot.payload_bytes);
  return true;
}

// Found together, they wait for their memory together: another processor had most of it last.
void Table::FindGroups(std::span<const int64_t> groups, std::vector<uint32_t>* found) const {
  found->clear();
  for (const int64_t group_id : groups) {
    const uint32_t g = store_.FindGroup(group_id);
    if (g == kNoIndex) continue;
    store_.PrefetchMember(g);
    found->push_back(g);
  }
}

std::vector<Placed> Table::Members(std::span<const int64_t> groups) const {
  std::vector<Placed> members;
  members.reserve(groups.size() * store_.group_size());
  std::vector<uint32_t> found;
  FindGroups(groups, &found);
  for (const uint32_t g : found) {
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      const uint32_t s = store_.FirstSlot(g) + i;
      const SlotState state = store_.slot(s).state;
      if (state != SlotState::kPending && state != SlotState::kRetained) continue;
      members.push_back({.id = IdOf(s), .info = InfoOf(s)});
    }
  }
  if (!std::ranges::is_sorted(groups)) {
    std::ranges::sort(members, [](const Placed& a, const Placed& b) {
      return std::tie(a.id.group_id, a.id.member) < std::tie(b.id.group_id, b.id.member);
    });
  }
  return members;
}

std::optional<int64_t> Table::OverdueGroup() const {
  if (overdue_.empty()) return std::nullopt;
  return *overdue_.begin();
}

std::vector<uint32_t> Table::OpenGroups() const {
  std::vector<std::pair<int64_t, uint32_t>> groups;
  for (uint32_t g = store_.first_open(); g != kNoIndex; g = store_.group(g).next) {
    groups.emplace_back(store_.group(g).group_id, g);
  }
  return SortedById(groups);
}

std::vector<uint32_t> Table::AllGroups() const {
  std::vector<std::pair<int64_t, uint32_t>> groups;
  groups.reserve(store_.live_groups());
  for (uint32_t g = 0; g < store_.end(); ++g) {
    if (store_.group(g).group_id >= 0) groups.emplace_back(store_.group(g).group_id, g);
  }
  return SortedById(groups);
}

std::optional<int64_t> Table::GroupOf(int64_t trajectory_id) const {
  const uint32_t s = store_.FindSlot(trajectory_id);
  if (s == kNoIndex || store_.slot(s).state == SlotState::kRetained) return std::nullopt;
  return store_.group(store_.GroupOfSlot(s)).group_id;
}

int64_t Table::BatchOf(const TrajectoryId& id) const {
  const uint32_t s = FindOpen(id);
  return s == kNoIndex ? 0 : std::max<int64_t>(0, store_.group(store_.GroupOfSlot(s)).holder);
}

std::vector<TrajectoryId> Table::InFlightIds() const {
  std::vector<TrajectoryId> ids;
  for (const uint32_t g : OpenGroups()) {
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      const uint32_t s = store_.FirstSlot(g) + i;
      if (store_.slot(s).state == SlotState::kInFlight) ids.push_back(IdOf(s));
    }
  }
  return ids;
}

std::vector<TrajectoryId> Table::PendingIds() const {
  std::vector<TrajectoryId> ids;
  for (const uint32_t g : AllGroups()) {
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      const uint32_t s = store_.FirstSlot(g) + i;
      if (store_.slot(s).state == SlotState::kPending) ids.push_back(IdOf(s));
    }
  }
  return ids;
}

std::optional<TrajectoryId> Table::Occupant(int64_t group_id, int32_t member) const {
  if (member < 0 || member >= group_size()) return std::nullopt;
  const uint32_t g = store_.FindGroup(group_id);
  if (g == kNoIndex) return std::nullopt;
  const uint32_t s = store_.FirstSlot(g) + static_cast<uint32_t>(member);
  const SlotState state = store_.slot(s).state;
  if (state != SlotState::kInFlight && state != SlotState::kPending) return std::nullopt;
  return IdOf(s);
}

std::vector<MissingMember> Table::Missing() const {
  std::vector<MissingMember> missing;
  for (const uint32_t g : OpenGroups()) {
    const uint32_t first = store_.FirstSlot(g);
    // A member that was never dispatched plays the task of its group.
    int64_t task_id = 0;
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      if ((store_.slot(first + i).flags & Slot::kTried) != 0)
        task_id = store_.slot(first + i).task_id;
    }
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      const Slot& slot = store_.slot(first + i);
      if (slot.state != SlotState::kVacant) continue;
      const bool tried = (slot.flags & Slot::kTried) != 0;
      missing.push_back({.group_id = store_.group(g).group_id,
                         .member = static_cast<int32_t>(i),
                         .next_attempt = tried ? slot.attempt + 1 : 0,
                         .task_id = tried ? slot.task_id : task_id});
    }
  }
  int64_t live = store_.live_groups();
  for (const BatchState& batch : batches_) live -= batch.retained ? std::ssize(batch.groups) : 0;
  int64_t vanished = std::min(known_.count() - finished_.count() - live,
                              std::max<int64_t>(1, kVanishedMembersMax / group_size()));
  if (vanished <= 0) return missing;
  const auto before = std::ssize(missing);
  known_.ForEachNotIn(finished_, [&](int64_t begin, int64_t end) {
    for (int64_t group_id = begin; group_id < end && vanished > 0; ++group_id) {
      if (store_.FindGroup(group_id) != kNoIndex) continue;
      --vanished;
      for (int32_t i = 0; i < group_size(); ++i) {
        missing.push_back(
            {.group_id = group_id, .member = i, .next_attempt = 1, .task_id = group_id});
      }
    }
    return vanished > 0;
  });
  std::inplace_merge(missing.begin(), missing.begin() + before, missing.end(),
                     [](const MissingMember& a, const MissingMember& b) {
                       return std::tie(a.group_id, a.member) < std::tie(b.group_id, b.member);
                     });
  return missing;
}

std::vector<GroupInfo> Table::Inspect(int64_t from_group_id, int64_t limit) const {
  // The `limit` first ones, the last of them at the top of a heap.
  std::vector<std::pair<int64_t, uint32_t>> first;
  for (uint32_t g = 0; g < store_.end() && limit > 0; ++g) {
    const Group& group = store_.group(g);
    if (group.group_id < std::max<int64_t>(0, from_group_id) ||
        (group.flags & Group::kRetained) != 0 ||
        (std::ssize(first) == limit && group.group_id >= first.front().first)) {
      continue;
    }
    if (std::ssize(first) == limit) {
      std::ranges::pop_heap(first);
      first.pop_back();
    }
    first.emplace_back(group.group_id, g);
    std::ranges::push_heap(first);
  }
  std::ranges::sort_heap(first);
  std::vector<GroupInfo> infos;
  infos.reserve(first.size());
  for (const auto& [group_id, g] : first) {
    const Group& group = store_.group(g);
    GroupInfo info{.group_id = group_id,
                   .batch = std::max<int64_t>(0, group.holder),
                   .take_id = std::max<int64_t>(0, -group.holder)};
    info.members.reserve(store_.group_size());
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      const Slot& slot = store_.slot(store_.FirstSlot(g) + i);
      const bool pending = slot.state == SlotState::kPending;
      info.members.push_back(pending                              ? MemberState::kPending
                             : slot.state == SlotState::kInFlight ? MemberState::kInFlight
                                                                  : MemberState::kVacant);
      if (pending && (info.min_version < 0 || slot.min_version < info.min_version)) {
        info.min_version = slot.min_version;
      }
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

std::string Table::Describe() const {
  constexpr size_t kGroupsNamed = 3;
  std::vector<std::pair<int64_t, uint32_t>> partial;
  for (uint32_t g = store_.first_open(); g != kNoIndex; g = store_.group(g).next) {
    if (store_.group(g).pending > 0) partial.emplace_back(store_.group(g).group_id, g);
  }
  const size_t shown = std::min(partial.size(), kGroupsNamed);
  std::ranges::partial_sort(partial, partial.begin() + static_cast<std::ptrdiff_t>(shown));
  std::string lacking;
  for (size_t n = 0; n < shown; ++n) {
    std::string members;
    for (uint32_t i = 0; i < store_.group_size(); ++i) {
      if (store_.slot(store_.FirstSlot(partial[n].second) + i).state == SlotState::kPending)
        continue;
      members += fmt::format("{}{}", members.empty() ? "" : ", ", i);
    }
    lacking += fmt::format("{}group {} lacks members {}", lacking.empty() ? "" : "; ",
                           partial[n].first, members);
  }
  if (partial.size() > shown) lacking += "; ...";
  return fmt::format("{} ready, {} partial{}, {} in flight", ready_groups_, partial_groups_,
                     lacking.empty() ? "" : " (" + lacking + ")", ledger_.in_flight);
}

int64_t Table::memory_bytes() const {
  int64_t bytes = static_cast<int64_t>(sizeof(Table)) + store_.memory_bytes() +
                  versions_.memory_bytes() + ready_.memory_bytes() + segments_.memory_bytes() +
                  takes_.memory_bytes() + dispatched_.memory_bytes() + known_.memory_bytes() +
                  finished_.memory_bytes();
  if (selector_) bytes += selector_->memory_bytes();
  if (present_) bytes += present_->memory_bytes();
  if (restoring_) bytes += restoring_->awaited.memory_bytes() + std::ssize(restoring_->held) * 64;
  for (const BatchState& batch : batches_) {
    bytes += static_cast<int64_t>(sizeof(BatchState) + batch.groups.capacity() * sizeof(int64_t));
  }
  return bytes + static_cast<int64_t>(spare_.capacity() * sizeof(int64_t)) +
         std::ssize(overdue_) * 64;
}

}  // namespace forebay::buffer
