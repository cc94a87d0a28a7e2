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

Signal::Value Signal::WaitUntil(TimePoint deadline) {
  while (true) {
    uint32_t value = value_.load(std::memory_order_acquire);
    if (value == kLook && value_.compare_exchange_strong(value, kNothing)) return kLook;
    if (value == kDone) return kDone;
    const Duration left = deadline - Now();
    if (left <= Duration::zero()) return kNothing;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, uint32_t{kNothing}, &timeout, nullptr, 0);
  }
}

void Signal::Wake(const void* address) {
  syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace forebay::buffer
