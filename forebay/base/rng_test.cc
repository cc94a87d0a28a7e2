// Goal: the stream is fixed by its seed, uniform, and derived seeds do not collide.
#include "forebay/base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace forebay {
namespace {

TEST(RngTest, ACopyRepeatsTheStream) {
  Rng a(42);
  a.Next();
  Rng b = a;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.Next(), b.Next());
}

TEST(RngTest, BelowIsUniform) {  // chi-square, 9 degrees of freedom: p = 1e-6 at 46.2
  constexpr int kDraws = 100000;
  std::array<int, 10> count{};
  Rng rng(7);
  for (int i = 0; i < kDraws; ++i) ++count[rng.Below(10)];
  double chi2 = 0;
  for (const int c : count) chi2 += (c - kDraws / 10.0) * (c - kDraws / 10.0) / (kDraws / 10.0);
  EXPECT_LT(chi2, 46.2);
}

TEST(RngTest, NormalHasItsMoments) {
  constexpr int kDraws = 200000;
  Rng rng(3);
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.Normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.02);
}

TEST(RngTest, DerivedSeedsDiffer) {
  std::set<uint64_t> seeds;
  for (uint64_t a = 0; a < 50; ++a) {
    for (uint64_t b = 0; b < 50; ++b) seeds.insert(DeriveSeed(1, a, b));
  }
  EXPECT_EQ(seeds.size(), 2500u);
  EXPECT_NE(DeriveSeed(1, 2, 3), DeriveSeed(1, 3, 2));
}

}  // namespace
}  // namespace forebay
