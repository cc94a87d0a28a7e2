#include "forebay/base/lag.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "forebay/base/clock.h"

namespace forebay {
namespace {

// Values below 8 have a bucket each; from then on every power of two has eight.
size_t BucketOf(uint64_t us) {
  if (us < 8) return us;
  const auto octave = static_cast<size_t>(std::bit_width(us)) - 4;  // 0 for 8 to 15
  return 8 + octave * 8 + ((us >> octave) & 7);
}

// The largest value in the bucket.
uint64_t UpperBound(size_t bucket) {
  if (bucket < 8) return bucket;
  const size_t octave = (bucket - 8) / 8;
  return ((8 + (bucket & 7) + 1) << octave) - 1;
}

}  // namespace

void LagHistogram::Record(Duration lag) {
  const int64_t us =
      std::max<int64_t>(std::chrono::duration_cast<std::chrono::microseconds>(lag).count(), 0);
  const size_t bucket = std::min(BucketOf(static_cast<uint64_t>(us)), kBuckets - 1);
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  int64_t worst = max_us_.load(std::memory_order_relaxed);
  while (us > worst && !max_us_.compare_exchange_weak(worst, us, std::memory_order_relaxed)) {
  }
}

int64_t LagHistogram::count() const {
  int64_t count = 0;
  for (const auto& bucket : counts_) count += bucket.load(std::memory_order_relaxed);
  return count;
}

Duration LagHistogram::Percentile(double q) const {
  const auto wanted = static_cast<int64_t>(std::ceil(q * static_cast<double>(count())));
  if (wanted <= 0) return Duration::zero();
  int64_t seen = 0;
  for (size_t i = 0; i + 1 < kBuckets; ++i) {
    seen += counts_[i].load(std::memory_order_relaxed);
    if (seen >= wanted) return std::min<Duration>(std::chrono::microseconds(UpperBound(i)), max());
  }
  return max();  // the last bucket has no bound
}

void LagHistogram::Clear() {
  for (auto& bucket : counts_) bucket.store(0, std::memory_order_relaxed);
  max_us_.store(0, std::memory_order_relaxed);
}

}  // namespace forebay
