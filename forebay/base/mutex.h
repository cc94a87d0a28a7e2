// An annotated mutex, so that clang's -Wthread-safety checks who may touch what.
//
//   Mutex mutex_;
//   int fill_ FB_GUARDED_BY(mutex_);
#pragma once

#include <condition_variable>
#include <mutex>

#include "forebay/base/clock.h"

#if defined(__clang__)
#define FB_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define FB_THREAD_ANNOTATION(x)
#endif
#define FB_GUARDED_BY(x) FB_THREAD_ANNOTATION(guarded_by(x))
#define FB_REQUIRES(...) FB_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define FB_EXCLUDES(...) FB_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace forebay {

class FB_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void Lock() FB_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void Unlock() FB_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class FB_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FB_THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() FB_THREAD_ANNOTATION(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits are on a held Mutex and always have a deadline. Wake-ups may be spurious: loop on the
// condition.
class CondVar {
 public:
  // False when the deadline has passed.
  bool WaitUntil(Mutex& mutex, TimePoint deadline) FB_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace forebay
