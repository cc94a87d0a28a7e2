// A mutex for sections of well under a microsecond that many threads enter: it spins a little
// before it sleeps, because the holder is about to leave. Otherwise as base/mutex.h.
#pragma once

#include <atomic>
#include <cstdint>

#include "forebay/base/clock.h"
#include "forebay/base/futex.h"
#include "forebay/base/mutex.h"

namespace forebay {

class FB_THREAD_ANNOTATION(capability("mutex")) AdaptiveMutex {
 public:
  void Lock() FB_THREAD_ANNOTATION(acquire_capability()) {
    uint32_t free = kFree;
    if (!state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) LockSlowly();
  }
  bool TryLock() FB_THREAD_ANNOTATION(try_acquire_capability(true)) {
    uint32_t free = kFree;
    return state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire);
  }
  void Unlock() FB_THREAD_ANNOTATION(release_capability()) {
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) FutexWakeOne(state_);
  }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kWaitedFor = 2;
  void LockSlowly();

  std::atomic<uint32_t> state_{kFree};
};

class FB_THREAD_ANNOTATION(scoped_lockable) AdaptiveLock {
 public:
  explicit AdaptiveLock(AdaptiveMutex& mutex) FB_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~AdaptiveLock() FB_THREAD_ANNOTATION(release_capability()) { mutex_.Unlock(); }
  AdaptiveLock(const AdaptiveLock&) = delete;
  AdaptiveLock& operator=(const AdaptiveLock&) = delete;

 private:
  AdaptiveMutex& mutex_;
};

// As CondVar.
class AdaptiveCondVar {
 public:
  // False when the deadline has passed.
  bool WaitUntil(AdaptiveMutex& mutex, TimePoint deadline) FB_REQUIRES(mutex) {
    const uint32_t seen = events_.load(std::memory_order_relaxed);
    waiters_.fetch_add(1);
    mutex.Unlock();
    const bool in_time = FutexWait(events_, seen, deadline);
    waiters_.fetch_sub(1);
    mutex.Lock();
    return in_time;
  }
  // With the mutex held, or after a change that was made with it held.
  void NotifyOne() {
    events_.fetch_add(1);
    if (waiters_.load() > 0) FutexWakeOne(events_);
  }
  void NotifyAll() {
    events_.fetch_add(1);
    if (waiters_.load() > 0) FutexWakeAll(events_);
  }

 private:
  std::atomic<uint32_t> events_{0}, waiters_{0};
};

}  // namespace forebay
