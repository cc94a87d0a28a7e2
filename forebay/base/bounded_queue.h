// BoundedQueue: how one thread hands work to the thread that owns a resource.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"

namespace forebay {

// Many producers, many consumers, first in first out, at most `capacity` items.
// After Close, pushes fail and pops drain what is left.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {
    FB_CHECK(capacity > 0, "a queue needs room for one item");
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Blocks while full. kDeadlineExceeded when still full at the deadline, kUnavailable when closed;
  // the item is dropped then.
  Status Push(T item, TimePoint deadline) {
    MutexLock lock(mutex_);
    while (items_.size() >= capacity_ && !closed_) {
      if (!not_full_.WaitUntil(mutex_, deadline) && items_.size() >= capacity_ && !closed_) {
        return DeadlineExceeded("the queue stayed full");
      }
    }
    if (closed_) return Unavailable("the queue is closed");
    items_.push_back(std::move(item));
    not_empty_.NotifyOne();
    return OkStatus();
  }

  // Never blocks. kResourceExhausted when full, kUnavailable when closed.
  Status TryPush(T item) {
    MutexLock lock(mutex_);
    if (closed_) return Unavailable("the queue is closed");
    if (items_.size() >= capacity_) return ResourceExhausted("the queue is full");
    items_.push_back(std::move(item));
    not_empty_.NotifyOne();
    return OkStatus();
  }

  // Blocks while empty. nullopt at the deadline, or when closed and drained.
  std::optional<T> Pop(TimePoint deadline) {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) {
      if (!not_empty_.WaitUntil(mutex_, deadline)) break;
    }
    return TakeFront();
  }

  std::optional<T> TryPop() {
    MutexLock lock(mutex_);
    return TakeFront();
  }

  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    not_full_.NotifyAll();
    not_empty_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> TakeFront() FB_REQUIRES(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    not_full_.NotifyOne();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_full_;
  CondVar not_empty_;
  std::deque<T> items_ FB_GUARDED_BY(mutex_);
  bool closed_ FB_GUARDED_BY(mutex_) = false;
};

}  // namespace forebay
