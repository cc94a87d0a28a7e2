// WaitingQueue: requests that have no slot yet, smallest priority first, then in the order of
// arrival.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"

namespace forebay::rollout {

// Pure; not thread-safe. T is movable.
template <typename T>
class WaitingQueue {
 public:
  void Push(int64_t priority, TimePoint deadline, T item) {
    const uint64_t order = next_order_++;
    items_.emplace(std::make_pair(priority, order), Entry{deadline, std::move(item)});
    if (deadline < earliest_) earliest_ = deadline;
  }

  bool empty() const { return items_.empty(); }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

  // The first item. The queue must not be empty.
  T Pop() {
    auto first = items_.begin();
    T item = std::move(first->second.item);
    items_.erase(first);
    return item;
  }

  // Removes and returns what has a deadline at or before `now`.
  std::vector<T> TakeExpired(TimePoint now) {
    std::vector<T> expired;
    if (now < earliest_) return expired;
    earliest_ = TimePoint::max();
    for (auto it = items_.begin(); it != items_.end();) {
      if (it->second.deadline <= now) {
        expired.push_back(std::move(it->second.item));
        it = items_.erase(it);
      } else {
        if (it->second.deadline < earliest_) earliest_ = it->second.deadline;
        ++it;
      }
    }
    return expired;
  }

  // Removes and returns the items for which `chosen` holds.
  template <typename Chosen>
  std::vector<T> TakeIf(const Chosen& chosen) {
    std::vector<T> taken;
    for (auto it = items_.begin(); it != items_.end();) {
      if (chosen(it->second.item)) {
        taken.push_back(std::move(it->second.item));
        it = items_.erase(it);
      } else {
        ++it;
      }
    }
    return taken;
  }

 private:
  struct Entry {
    TimePoint deadline;
    T item;
  };
  std::map<std::pair<int64_t, uint64_t>, Entry> items_;
  TimePoint earliest_ = TimePoint::max();  // no deadline is before it
  uint64_t next_order_ = 0;
};

}  // namespace forebay::rollout
