// Waiting on a word of memory with a deadline: std::atomic::wait has none, and a condition variable
// per waiter costs a lock. For this process only. May wake up without a reason: loop.
#pragma once

#include <atomic>
#include <cstdint>

#include "forebay/base/clock.h"

namespace forebay {

// Returns when the word is not `expected`, at a wake-up, or after the deadline (false then).
bool FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, TimePoint deadline);
void FutexWakeOne(const std::atomic<uint32_t>& word);
void FutexWakeAll(const std::atomic<uint32_t>& word);

}  // namespace forebay
