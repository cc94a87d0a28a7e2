#include "forebay/learner/dispatch_clock.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"

namespace forebay::learner {

int64_t DispatchClock::Enqueued(TimePoint at) {
  MutexLock lock(mutex_);
  pieces_.push_back({.enqueued = at, .completed = at});
  if (running_ == 0) progress_ = at;
  ++running_;
  return first_ + static_cast<int64_t>(pieces_.size()) - 1;
}

void DispatchClock::Completed(int64_t piece, TimePoint at) {
  MutexLock lock(mutex_);
  if (piece < first_) return;
  Piece& found = pieces_[static_cast<size_t>(piece - first_)];
  if (found.done) return;
  found.done = true;
  found.completed = at;
  progress_ = at;
  --running_;
  completed_.NotifyAll();
}

bool DispatchClock::Idle() const {
  MutexLock lock(mutex_);
  return running_ == 0;
}

double DispatchClock::StalledLocked(TimePoint now) const {
  return running_ == 0 ? 0 : Seconds(now - progress_);
}

double DispatchClock::StalledSeconds(TimePoint now) const {
  MutexLock lock(mutex_);
  return StalledLocked(now);
}

bool DispatchClock::Await(int64_t piece, double stall_seconds) const {
  MutexLock lock(mutex_);
  while (piece >= first_ && !pieces_[static_cast<size_t>(piece - first_)].done) {
    if (StalledLocked(Now()) >= stall_seconds) return false;
    completed_.WaitUntil(mutex_, progress_ + FromSeconds(stall_seconds));
  }
  return true;
}

DispatchClock::Spans DispatchClock::Take(int64_t end, TimePoint now) {
  MutexLock lock(mutex_);
  Spans spans;
  for (; first_ < end && !pieces_.empty(); ++first_) {
    const Piece& piece = pieces_.front();
    const TimePoint completed = piece.done ? piece.completed : now;
    if (!piece.done) --running_;
    if (piece.enqueued > busy_until_) {
      spans.idle_seconds += Seconds(piece.enqueued - busy_until_);
      busy_until_ = piece.enqueued;
    }
    if (completed > busy_until_) {
      spans.busy_seconds += Seconds(completed - busy_until_);
      busy_until_ = completed;
    }
    pieces_.pop_front();
  }
  return spans;
}

void DispatchClock::ForgetIdle(TimePoint at) {
  MutexLock lock(mutex_);
  busy_until_ = std::max(busy_until_, at);
}

}  // namespace forebay::learner
