// Time as every room sees it: monotonic for waits and spans; wall time only to label records.
#pragma once

#include <chrono>
#include <cstdint>

namespace forebay {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

inline TimePoint Now() { return std::chrono::steady_clock::now(); }
inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration FromSeconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}
// Microseconds since the Unix epoch; labels only, never compared for order.
inline int64_t WallMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace forebay
