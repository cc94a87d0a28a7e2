// Goal: the harness measures each side equally often, in turns, and reports the median.
#include "bench/harness.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/jax_step.h"
#include "forebay/base/status.h"

namespace forebay::bench {
namespace {

TEST(Harness, MedianMinAndMax) {
  const Spread odd = Summarize({5, 1, 3});
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 5);
  EXPECT_EQ(odd.repeats, 3);
  EXPECT_EQ(Summarize({4, 1, 3, 10}).median, 3.5);
}

TEST(Harness, SidesAlternateAndTheFirstRoundIsNotCounted) {
  std::string order;
  const auto side = [&order](const char* name, double first) {
    return Side{name, [&order, name, first, calls = 0]() mutable -> Result<double> {
                  order += name;
                  return calls++ == 0 ? 1000.0 : first + calls;
                }};
  };
  const std::vector<Side> sides = {side("a", 0), side("b", 10)};
  const auto times = Interleave(sides, 3);
  ASSERT_TRUE(times.ok());
  EXPECT_EQ(order, "abbaabba");
  EXPECT_EQ((*times)[0].seconds.median, 3);  // 2, 3, 4
  EXPECT_EQ((*times)[1].seconds.median, 13);
  EXPECT_EQ((*times)[0].seconds.repeats, 3);
  EXPECT_EQ((*times)[0].seconds.max, 4);
}

TEST(Harness, AnErrorEndsItAndNamesItsSide) {
  int after = 0;
  const std::vector<Side> sides = {
      {"broken", []() -> Result<double> { return Internal("no device"); }},
      {"other", [&]() -> Result<double> { return ++after; }}};
  const auto times = Interleave(sides, 5);
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.status().message(), "broken: no device");
  EXPECT_EQ(after, 0);
}

TEST(JaxStepTest, NoFolderHasNoVariants) { EXPECT_TRUE(JaxVariants("/no/such/folder").empty()); }

}  // namespace
}  // namespace forebay::bench
