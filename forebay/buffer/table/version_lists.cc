#include "forebay/buffer/table/version_lists.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/buffer/table/group_store.h"

namespace forebay::buffer {

void VersionLists::Link(GroupStore& store, uint32_t s) {
  Slot& slot = store.slot(s);
  uint32_t& head = heads_.try_emplace(slot.min_version, kNoIndex).first->second;
  slot.previous = kNoIndex;
  slot.next = head;
  if (head != kNoIndex) store.slot(head).previous = s;
  head = s;
}

void VersionLists::Unlink(GroupStore& store, uint32_t s) {
  Slot& slot = store.slot(s);
  if (slot.next != kNoIndex) store.slot(slot.next).previous = slot.previous;
  if (slot.previous != kNoIndex) {
    store.slot(slot.previous).next = slot.next;
  } else {
    const auto list = heads_.find(slot.min_version);
    FB_CHECK(list != heads_.end() && list->second == s, "a slot in no list");
    list->second = slot.next;
    if (slot.next == kNoIndex && heads_.size() > kListsKept) heads_.erase(list);
  }
  slot.previous = slot.next = kNoIndex;
}

std::vector<uint32_t> VersionLists::OlderThan(const GroupStore& store, int64_t version) {
  std::vector<uint32_t> slots;
  for (auto list = heads_.begin();
       list != heads_.end() && static_cast<int64_t>(list->first) < version;) {
    if (list->second == kNoIndex) {
      list = heads_.erase(list);
      continue;
    }
    const size_t first = slots.size();
    for (uint32_t s = list->second; s != kNoIndex; s = store.slot(s).next) slots.push_back(s);
    std::sort(slots.begin() + static_cast<std::ptrdiff_t>(first), slots.end(),
              [&](uint32_t a, uint32_t b) {
                return store.slot(a).trajectory_id < store.slot(b).trajectory_id;
              });
    ++list;
  }
  return slots;
}

}  // namespace forebay::buffer
