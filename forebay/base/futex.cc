#include "forebay/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "forebay/base/clock.h"

namespace forebay {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

bool FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, TimePoint deadline) {
  if (word.load(std::memory_order_acquire) != expected) return true;
  const TimePoint now = Now();
  if (deadline <= now) return false;
  const auto wait = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - now).count();
  timespec timeout{.tv_sec = wait / 1'000'000'000, .tv_nsec = wait % 1'000'000'000};
  const auto* address = reinterpret_cast<const uint32_t*>(&word);
  const long result = ::syscall(SYS_futex, address, FUTEX_WAIT_PRIVATE, expected, &timeout);
  return result == 0 || errno != ETIMEDOUT;
}

namespace {

void Wake(const std::atomic<uint32_t>& word, int waiters) {
  const auto* address = reinterpret_cast<const uint32_t*>(&word);
  ::syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, waiters);
}

}  // namespace

void FutexWakeOne(const std::atomic<uint32_t>& word) { Wake(word, 1); }
void FutexWakeAll(const std::atomic<uint32_t>& word) { Wake(word, INT_MAX); }

}  // namespace forebay
