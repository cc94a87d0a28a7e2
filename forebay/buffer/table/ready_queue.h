// ReadyQueue: ready groups, oldest first.
#pragma once

#include <cstdint>

#include "forebay/buffer/table/chunked_array.h"

namespace forebay::buffer {

// A heap by (min_version, group_id) from which nothing is removed but its top: the owner tells
// entries that are still right from others, and filters when others are too many. Not thread-safe.
class ReadyQueue {
 public:
  struct Entry {
    uint32_t version;
    uint32_t group;  // index
    int64_t group_id;
  };

  void Push(const Entry& entry) {
    entries_.PushBack(entry);
    SiftUp(entries_.size() - 1);
  }
  bool empty() const { return entries_.empty(); }
  uint32_t size() const { return entries_.size(); }
  Entry Pop() {
    const Entry top = entries_[0];
    const Entry last = entries_.Back();
    entries_.PopBack();
    if (!entries_.empty()) {
      entries_[0] = last;
      SiftDown(0);
    }
    return top;
  }
  // Keeps the entries for which `keep` is true (asked once for each).
  template <typename Keep>
  void Filter(const Keep& keep) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      if (keep(entries_[i])) entries_[kept++] = entries_[i];
    }
    entries_.Resize(kept);
    for (uint32_t i = kept / kWays + 1; i-- > 0;) {
      if (i < kept) SiftDown(i);
    }
  }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t i = 0; i < entries_.size(); ++i) visit(entries_[i]);
  }
  template <typename Visit>
  void ForFirst(int64_t count, const Visit& visit) const {
    for (uint32_t i = 0; i < entries_.size() && i < count; ++i) visit(entries_[i]);
  }
  int64_t memory_bytes() const { return entries_.memory_bytes(); }

 private:
  static constexpr uint32_t kWays = 4;

  static bool Before(const Entry& a, const Entry& b) {
    return a.version != b.version ? a.version < b.version : a.group_id < b.group_id;
  }
  void SiftUp(uint32_t at) {
    const Entry entry = entries_[at];
    while (at > 0) {
      const uint32_t parent = (at - 1) / kWays;
      if (!Before(entry, entries_[parent])) break;
      entries_[at] = entries_[parent];
      at = parent;
    }
    entries_[at] = entry;
  }
  void SiftDown(uint32_t at) {
    const Entry entry = entries_[at];
    const uint32_t size = entries_.size();
    while (true) {
      const uint64_t first = uint64_t{at} * kWays + 1;
      if (first >= size) break;
      const uint64_t end = first + kWays < size ? first + kWays : size;
      auto best = static_cast<uint32_t>(first);
      for (auto i = best + 1; i < end; ++i) {
        if (Before(entries_[i], entries_[best])) best = i;
      }
      if (!Before(entries_[best], entry)) break;
      entries_[at] = entries_[best];
      at = best;
    }
    entries_[at] = entry;
  }

  ChunkedArray<Entry> entries_;
};

}  // namespace forebay::buffer
