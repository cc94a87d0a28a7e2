#include "forebay/buffer/service/signal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "forebay/base/clock.h"

namespace forebay::buffer {

Signal::Value Bells::Wait(Signal& signal, uint32_t number, TimePoint deadline) {
  std::atomic<uint32_t>& word = rung_[number / kBits % kWords];
  const auto since = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  const timespec until{.tv_sec = seconds.count(), .tv_nsec = (since - seconds).count()};
  while (true) {
    // Before the look at the signal: what is said after it rings once more.
    const uint32_t rung = word.load(std::memory_order_acquire);
    uint32_t value = signal.value_.load(std::memory_order_acquire);
    if (value == Signal::kLook && signal.value_.compare_exchange_strong(value, Signal::kNothing)) {
      return Signal::kLook;
    }
    if (value == Signal::kDone) return Signal::kDone;
    if (Now() >= deadline) return Signal::kNothing;
    syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, rung, &until, nullptr,
            uint32_t{1} << number % kBits);
  }
}

void Bells::Ring(const Chosen& chosen) {
  for (uint32_t i = 0; i < kWords; ++i) {
    if (chosen.bits_[i] == 0) continue;
    rung_[i].fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &rung_[i], FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, nullptr, nullptr,
            chosen.bits_[i]);
  }
}

}  // namespace forebay::buffer
