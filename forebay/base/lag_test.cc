// Goal: percentiles are never too small, and at most an eighth too large.
#include "forebay/base/lag.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/rng.h"

namespace forebay {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;

TEST(LagTest, PercentilesBoundWhatWasRecorded) {
  Rng rng(7);
  LagHistogram lag;
  std::vector<int64_t> all;
  for (int i = 0; i < 10000; ++i) {
    all.push_back(static_cast<int64_t>(rng.Below(uint64_t{1} << rng.Below(34))));
    lag.Record(microseconds(all.back()));
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(lag.count(), 10000);
  EXPECT_EQ(lag.max(), microseconds(all.back()));
  for (const double q : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const Duration exact = microseconds(all[static_cast<size_t>(q * 10000) - 1]);
    EXPECT_GE(lag.Percentile(q), exact) << q;
    EXPECT_LE(lag.Percentile(q), exact + exact / 8 + microseconds(1)) << q;
  }
}

TEST(LagTest, NothingNegativeAndHugeValuesCount) {
  LagHistogram lag;
  EXPECT_EQ(lag.Percentile(0.99), Duration::zero());
  lag.Record(microseconds(-5));
  EXPECT_EQ(lag.Percentile(1), Duration::zero());
  lag.Record(hours(24 * 365));
  EXPECT_EQ(lag.Percentile(1), hours(24 * 365));
  lag.Clear();
  EXPECT_EQ(lag.count(), 0);
  EXPECT_EQ(lag.max(), Duration::zero());
}

}  // namespace
}  // namespace forebay
