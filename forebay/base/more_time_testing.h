// For tests of what has to happen before a short deadline: on a slow machine it may not.
#pragma once

#include <chrono>
#include <functional>

#include "forebay/base/clock.h"

namespace forebay {

// Calls `attempt` with `within`, and while that says false with twice the time; false when minutes
// were not enough.
inline bool WithMoreTime(Duration within, const std::function<bool(Duration within)>& attempt) {
  for (; within < std::chrono::minutes(5); within *= 2) {
    if (attempt(within)) return true;
  }
  return false;
}

}  // namespace forebay
