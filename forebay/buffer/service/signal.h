// Signal: what one thread that waits is told, on a futex. Cheaper than a condition variable where
// dozens of threads wait, each for its own answer.
#pragma once

#include <atomic>
#include <cstdint>

#include "forebay/base/clock.h"

namespace forebay::buffer {

class Signal {
 public:
  enum Value : uint32_t {
    kNothing = 0,
    kLook = 1,  // something has changed
    kDone = 2,  // the answer is there; whoever said so does not touch the waiter any more
  };

  // Blocks until there is something, or the deadline; a kLook is taken away by it.
  Value WaitUntil(TimePoint deadline);

  // Stores, then wakes with Wake(): in two steps, so that the storing can be done under a lock.
  void Set(Value value) { value_.store(value, std::memory_order_release); }
  // Never says less than was said.
  void Look() {
    uint32_t nothing = kNothing;
    value_.compare_exchange_strong(nothing, kLook, std::memory_order_release);
  }
  // The signal may be gone by now (its waiter saw the value and went on): the address is a name for
  // the kernel, nothing behind it is read.
  static void Wake(const void* address);
  const void* address() const { return &value_; }

 private:
  std::atomic<uint32_t> value_{kNothing};
};

}  // namespace forebay::buffer
