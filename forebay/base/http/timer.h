// ScopedTimer: a timer of a Loop that goes with its owner, for instance a coroutine's frame.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"

namespace forebay::http {

class ScopedTimer {
 public:
  // TimePoint::max(): never.
  ScopedTimer(Loop& loop, TimePoint when, std::function<void()> fn)
      : loop_(loop), id_(when == TimePoint::max() ? 0 : loop.RunAt(when, std::move(fn))) {}
  ~ScopedTimer() {
    if (id_ != 0) loop_.Cancel(id_);
  }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  Loop& loop_;
  const uint64_t id_;
};

}  // namespace forebay::http
