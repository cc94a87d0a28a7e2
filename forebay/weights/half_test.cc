// Half and bfloat16: every value survives the way to float and back, and ties round to even.
#include "forebay/weights/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace forebay::weights {
namespace {

constexpr uint16_t kSign = 0x8000;

// Both formats at once: `infinity` is the pattern of +infinity; larger ones are NaN.
template <typename ToFloat, typename FromFloat>
void CheckEveryValue(uint16_t infinity, ToFloat to_float, FromFloat from_float) {
  for (uint32_t i = 0; i <= infinity; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    ASSERT_EQ(from_float(to_float(bits)), bits);
    ASSERT_EQ(from_float(to_float(bits | kSign)), bits | kSign);
    ASSERT_EQ(to_float(bits | kSign), -to_float(bits));
    if (bits + 1 >= infinity) continue;
    const float low = to_float(bits);
    const float high = to_float(static_cast<uint16_t>(bits + 1));
    ASSERT_LT(low, high);
    // The midpoint of two neighbours is a float, and rounds to the even one.
    const auto middle =
        static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    const auto even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(from_float(middle), even) << middle;
    ASSERT_EQ(from_float(-middle), even | kSign) << middle;
    ASSERT_EQ(from_float(std::nextafter(middle, 0.0F)), bits) << middle;
    ASSERT_EQ(from_float(std::nextafter(middle, std::numeric_limits<float>::infinity())), bits + 1)
        << middle;
  }
  for (uint32_t i = infinity + 1U; i < kSign; ++i) {
    const float value = to_float(static_cast<uint16_t>(i));
    ASSERT_TRUE(std::isnan(value));
    ASSERT_TRUE(std::isnan(to_float(from_float(value))));
  }
}

TEST(HalfTest, EveryHalf) { CheckEveryValue(0x7c00, HalfToFloat, FloatToHalf); }

TEST(HalfTest, EveryBFloat16) { CheckEveryValue(0x7f80, BFloat16ToFloat, FloatToBFloat16); }

TEST(HalfTest, KnownValues) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0F);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24F);
  EXPECT_EQ(FloatToHalf(65504.0F), 0x7bff);
  EXPECT_EQ(FloatToHalf(65519.9F), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0F), 0x7c00);
  EXPECT_EQ(FloatToHalf(1e30F), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e-30F), 0x8000);
  EXPECT_EQ(BFloat16ToFloat(0x3fc0), 1.5F);
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
  // A NaN whose kept bits are all zero must not become infinity.
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace forebay::weights
