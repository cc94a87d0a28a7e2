#include "forebay/base/adaptive_mutex.h"

#include <atomic>
#include <chrono>
#include <cstdint>

#include "forebay/base/clock.h"
#include "forebay/base/futex.h"

namespace forebay {
namespace {

// About a microsecond: longer, and the holder has lost its processor.
constexpr int kSpins = 400;
constexpr auto kIdle = std::chrono::hours(1);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void AdaptiveMutex::LockSlowly() {
  for (int i = 0; i < kSpins; ++i) {
    uint32_t free = kFree;
    if (state_.load(std::memory_order_relaxed) == kFree &&
        state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) {
      return;
    }
    Pause();
  }
  while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
    FutexWait(state_, kWaitedFor, Now() + kIdle);
  }
}

}  // namespace forebay
