#include "forebay/buffer/table/group_store.h"

#include <cstddef>
#include <cstdint>

#include "forebay/base/check.h"

namespace forebay::buffer {

uint32_t GroupStore::AddGroup(int64_t group_id) {
  uint32_t g = free_;
  if (g != kNoIndex) {
    free_ = groups_[g].next;
    groups_[g] = Group{};
  } else {
    FB_CHECK(HasRoom(), "more groups than indexes");
    g = groups_.size();
    groups_.PushBack(Group{});
    slots_.Resize((g + 1) * size_);
  }
  groups_[g].group_id = group_id;
  by_group_.Insert(group_id, g, [this](uint32_t i) { return groups_[i].group_id; });
  LinkOpen(g);
  return g;
}

void GroupStore::ReserveIndexes(size_t groups, size_t attempts) {
  by_group_.Reserve(groups, [this](uint32_t g) { return groups_[g].group_id; });
  by_trajectory_.Reserve(attempts, [this](uint32_t s) { return slots_[s].trajectory_id; });
}

void GroupStore::RemoveGroup(uint32_t g) {
  if (!IsWhole(g)) UnlinkOpen(g);
  by_group_.Erase(groups_[g].group_id, [this](uint32_t i) { return groups_[i].group_id; });
  groups_[g] = Group{};
  groups_[g].next = free_;
  free_ = g;
  for (uint32_t i = 0; i < size_; ++i) slots_[FirstSlot(g) + i] = Slot{};
}

void GroupStore::LinkOpen(uint32_t g) {
  groups_[g].previous = kNoIndex;
  groups_[g].next = open_;
  if (open_ != kNoIndex) groups_[open_].previous = g;
  open_ = g;
}

void GroupStore::UnlinkOpen(uint32_t g) {
  Group& group = groups_[g];
  if (group.previous != kNoIndex) {
    groups_[group.previous].next = group.next;
  } else {
    open_ = group.next;
  }
  if (group.next != kNoIndex) groups_[group.next].previous = group.previous;
  group.queued = kNoVersion;
  group.place = kNoIndex;
}

}  // namespace forebay::buffer
