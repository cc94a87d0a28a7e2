// The numbers are those of the `gguf` Python package (quants.dequantize) for the same bytes.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "forebay/weights/dequantize.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/half.h"
#include "forebay/weights/weights_testing.h"

namespace forebay::weights {
namespace {

struct Case {
  GgmlType type;
  std::vector<std::pair<size_t, float>> halves;  // the block's scales, at their places
  std::vector<float> want;                       // at kPlaces, as far as the block goes
  double sum;                                    // of (i + 1) value i
};

constexpr size_t kPlaces[] = {0, 1, 15, 16, 31, 32, 63, 64, 100, 127, 128, 170, 200, 255};

TEST(KQuants, EachFormatGivesTheNumbersOfItsReference) {
  const std::vector<Case> cases = {
      {GgmlType::kQ5_0, {{0, 0.125F}}, {0.875, 1.375, -1.125, 0, -0.125}, -137.375},
      {GgmlType::kQ5_1, {{0, 0.125F}, {2, -1.5F}}, {0.75, -0.375, -0.875, 1.25, 1}, 272.625},
      {GgmlType::kQ4_K,
       {{0, 0.125F}, {2, 0.5F}},
       {32.875, 82.75, 54.25, -9.875, 11.5, 35.5, -0.5, -14.375, 32.75, 10.625, 53.5, 10.75, -16.25,
        16},
       509837},
      {GgmlType::kQ5_K,
       {{0, 0.125F}, {2, 0.5F}},
       {175.375, 89.875, 61.375, 111.25, 18.625, 103.5, 7.5, 0.5, 47.5, 18, 59.25, 60.625, 6.25,
        24},
       1495246.375},
      {GgmlType::kQ6_K,
       {{208, 0.125F}},
       {-246.5, -34, 0, -111.375, -272.25, -18.75, 49.375, -391.375, 182.875, 292.5, 2.25, 59.25,
        -96.75, 218.25},
       7224.75}};
  for (const Case& c : cases) {
    const GgmlBlock block = BlockOf(c.type);
    std::string one;
    for (int64_t i = 0; i < block.bytes; ++i) {
      one += static_cast<char>((i * 167 + 13 * (i / 7) + 29) % 256);
    }
    for (const auto& [at, value] : c.halves) one.replace(at, 2, Raw(FloatToHalf(value)));
    // The second block is another one: blocks do not look at each other.
    const std::string two = one + std::string(one.size(), '\0');
    std::vector<float> values(static_cast<size_t>(2 * block.elements), 7);
    Dequantize(c.type, BytesOf(two), values);
    const auto n = static_cast<size_t>(block.elements);
    double sum = 0;
    for (size_t i = 0; i < n; ++i)
      sum += static_cast<double>(i + 1) * static_cast<double>(values[i]);
    EXPECT_EQ(sum, c.sum) << static_cast<int>(c.type);
    for (size_t i = 0; i < c.want.size(); ++i) {
      EXPECT_EQ(values[kPlaces[i]], c.want[i]) << static_cast<int>(c.type) << " " << kPlaces[i];
    }
    EXPECT_EQ(values[n], 0) << static_cast<int>(c.type);
    EXPECT_EQ(values[2 * n - 1], 0) << static_cast<int>(c.type);
  }
}

}  // namespace
}  // namespace forebay::weights
