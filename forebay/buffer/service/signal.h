// Signals: what threads that wait are told, each its own, on futexes. Where dozens wait, one system
// call wakes any number of them: with one for each, a thread that wakes others is put aside after
// the first, and the last waits for milliseconds.
#pragma once

#include <array>
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

  // Call Bells::Ring after each, once the lock that was held for it is released.
  void Set(Value value) { value_.store(value, std::memory_order_release); }
  // Never says less than was said.
  void Look() {
    uint32_t nothing = kNothing;
    value_.compare_exchange_strong(nothing, kLook, std::memory_order_release);
  }

 private:
  friend class Bells;
  std::atomic<uint32_t> value_{kNothing};
};

// What the threads that wait for signals sleep on. A waiter has a number; two that share a bell are
// woken together, and the other one sleeps again.
class Bells {
 public:
  static constexpr uint32_t kWords = 8;
  static constexpr uint32_t kBits = 32;
  // Whom to wake.
  class Chosen {
   public:
    void Add(uint32_t number) {
      bits_[number / kBits % kWords] |= uint32_t{1} << number % kBits;
      any_ = true;
    }
    bool any() const { return any_; }

   private:
    friend class Bells;
    std::array<uint32_t, kWords> bits_{};
    bool any_ = false;
  };

  // Blocks until the signal says something, or the deadline; a kLook is taken away by it.
  Signal::Value Wait(Signal& signal, uint32_t number, TimePoint deadline);
  // After their signals were set. The waiters may be gone by now.
  void Ring(const Chosen& chosen);

 private:
  std::array<std::atomic<uint32_t>, kWords> rung_{};  // times
};

}  // namespace forebay::buffer
