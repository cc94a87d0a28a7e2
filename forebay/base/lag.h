// LagHistogram: how late things ran.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "forebay/base/clock.h"

namespace forebay {

// Counts durations in buckets that are an eighth of their value wide, from a microsecond to hours.
// Record is wait-free; all calls are thread-safe (a Percentile beside a Record may miss it).
class LagHistogram {
 public:
  void Record(Duration lag);
  int64_t count() const;
  // The smallest bound that at least the fraction `q` (0 to 1) of what was recorded is within, at
  // most an eighth too large; zero when nothing was recorded.
  Duration Percentile(double q) const;
  Duration max() const { return Duration(std::chrono::microseconds(max_us_.load())); }
  void Clear();

 private:
  static constexpr size_t kBuckets = 8 * 36;
  std::array<std::atomic<int64_t>, kBuckets> counts_{};
  std::atomic<int64_t> max_us_ = 0;
};

}  // namespace forebay
