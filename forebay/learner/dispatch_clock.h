// DispatchClock: when a device had work, and when it had nothing to do.
//
// Pieces of work are handed over in order and computed one after the other; the device is idle from
// the moment when the newest piece is done until the next one has been handed over. Thread-safe:
// pieces are completed by the plugin's threads.
#pragma once

#include <cstdint>
#include <deque>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"

namespace forebay::learner {

class DispatchClock {
 public:
  // The device has been idle since `start`.
  explicit DispatchClock(TimePoint start) : busy_until_(start) {}

  // A piece was handed over, at `at`: after the call that did it. Its number.
  int64_t Enqueued(TimePoint at);
  // Once a piece; more often, or a piece that Take has counted already, changes nothing.
  void Completed(int64_t piece, TimePoint at);
  // All pieces so far are done.
  bool Idle() const;
  // How long no piece ended, while one was there to be computed. 0: idle.
  double StalledSeconds(TimePoint now) const;
  // Blocks until `piece` is done. False: for `stall_seconds` no piece ended.
  bool Await(int64_t piece, double stall_seconds) const;

  struct Spans {
    double busy_seconds = 0, idle_seconds = 0;
  };
  // What the pieces [those of the Take before, end) took, and how long the device was idle before
  // and between them. A piece that is not completed yet counts as completed at `now`.
  Spans Take(int64_t end, TimePoint now);
  // Idle time before `at` is nobody's: it is in no Take.
  void ForgetIdle(TimePoint at);

 private:
  struct Piece {
    TimePoint enqueued, completed;
    bool done = false;
  };
  double StalledLocked(TimePoint now) const FB_REQUIRES(mutex_);

  mutable Mutex mutex_;
  mutable CondVar completed_;
  std::deque<Piece> pieces_ FB_GUARDED_BY(mutex_);  // from first_ on
  int64_t first_ FB_GUARDED_BY(mutex_) = 0;
  int64_t running_ FB_GUARDED_BY(mutex_) = 0;  // of pieces_
  TimePoint busy_until_ FB_GUARDED_BY(mutex_);
  TimePoint progress_ FB_GUARDED_BY(mutex_);  // the last end, or the first start after idle time
};

}  // namespace forebay::learner
