// HostTensor keeps its memory alive, ConvertFloat rounds, and Digest sees every difference.
#include "forebay/weights/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/weights_testing.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using xla::DType;

TEST(HostTensorTest, CopiesShareBytesThatOutliveTheFirst) {
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4});
  const std::weak_ptr<std::vector<float>> watch = owner;
  auto first = std::make_unique<HostTensor>(xla::Shape{.dtype = DType::kF32, .dims = {2, 2}},
                                            std::as_bytes(std::span(*owner)), owner);
  owner.reset();
  const auto copy = std::make_unique<HostTensor>(*first);
  first.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_THAT(copy->as<float>(), ElementsAre(1, 2, 3, 4));
}

TEST(HostTensorTest, AllocatedMemoryIsAlignedAndFits) {
  std::span<std::byte> bytes;
  const HostTensor tensor = HostTensor::Allocate({.dtype = DType::kBF16, .dims = {3, 5}}, &bytes);
  EXPECT_THAT(bytes, SizeIs(30));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 64, 0U);
  EXPECT_EQ(tensor.bytes().data(), bytes.data());
  const HostTensor empty = HostTensor::Allocate({.dtype = DType::kF32, .dims = {0, 7}}, &bytes);
  EXPECT_THAT(empty.as<float>(), SizeIs(0));
}

TEST(HostTensorDeathTest, AShapeThatTheBytesDoNotFillIsABug) {
  const std::vector<float> values = {1, 2, 3};
  EXPECT_DEATH(
      HostTensor({.dtype = DType::kF32, .dims = {2}}, std::as_bytes(std::span(values)), nullptr),
      "fill its shape");
}

TEST(ConvertFloatTest, RoundsToNearestEven) {
  // 1 + 2^-8 lies between two bf16 values, 1 + 2^-11 between two halves.
  const HostTensor floats =
      FloatTensor({5}, {1.0F, 1.00390625F, 1.01171875F, 1.00048828125F, -3.5F});
  const auto bf16 = ConvertFloat(floats, DType::kBF16);
  ASSERT_TRUE(bf16.ok());
  EXPECT_EQ(bf16->shape(), (xla::Shape{.dtype = DType::kBF16, .dims = {5}}));
  EXPECT_THAT(ConvertFloat(*bf16, DType::kF32)->as<float>(),
              ElementsAre(1.0F, 1.0F, 1.015625F, 1.0F, -3.5F));
  const auto f16 = ConvertFloat(floats, DType::kF16);
  ASSERT_TRUE(f16.ok());
  EXPECT_THAT(ConvertFloat(*f16, DType::kF32)->as<float>(),
              ElementsAre(1.0F, 1.00390625F, 1.01171875F, 1.0F, -3.5F));
  EXPECT_THAT(ConvertFloat(*ConvertFloat(*f16, DType::kBF16), DType::kF32)->as<float>(),
              ElementsAre(1.0F, 1.0F, 1.015625F, 1.0F, -3.5F));
}

TEST(ConvertFloatTest, TheSameTypeSharesTheBytes) {
  const HostTensor floats = FloatTensor({2}, {1, 2});
  EXPECT_EQ(ConvertFloat(floats, DType::kF32)->bytes().data(), floats.bytes().data());
}

TEST(ConvertFloatTest, IntegersAreRefused) {
  std::span<std::byte> bytes;
  const HostTensor integers = HostTensor::Allocate({.dtype = DType::kS32, .dims = {2}}, &bytes);
  const auto converted = ConvertFloat(integers, DType::kF32);
  EXPECT_EQ(converted.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(converted.status().message(), HasSubstr("32[2]"));
  EXPECT_FALSE(ConvertFloat(FloatTensor({1}, {1}), DType::kS32).ok());
}

TEST(DigestTest, EqualWeightsHaveEqualDigestsAndAnyDifferenceShows) {
  const auto pair = [](const HostTensor& a, const HostTensor& b) {
    return TensorMap{{"a", a}, {"b", b}};
  };
  const HostTensor x = FloatTensor({2, 2}, {1, 2, 3, 4});
  const HostTensor y = FloatTensor({1}, {5});
  EXPECT_EQ(Digest(pair(x, y)), Digest(pair(FloatTensor({2, 2}, {1, 2, 3, 4}), y)));
  EXPECT_THAT(Digest(pair(x, y)), SizeIs(32));
  std::span<std::byte> bytes;
  const HostTensor same_bits_as_y({.dtype = DType::kS32, .dims = {1}}, y.bytes(), nullptr);
  const std::set<std::string> digests = {
      Digest({}),
      Digest(pair(x, y)),
      Digest(pair(y, x)),
      Digest({{"a", x}}),
      Digest({{"a", x}, {"c", y}}),
      Digest({{"a", x}, {"b", y}, {"c", HostTensor::Allocate({.dims = {0}}, &bytes)}}),
      Digest(pair(FloatTensor({4}, {1, 2, 3, 4}), y)),
      Digest(pair(FloatTensor({2, 2}, {1, 2, 3, 4.0000005F}), y)),
      Digest(pair(x, same_bits_as_y)),
  };
  EXPECT_THAT(digests, SizeIs(9));
}

}  // namespace
}  // namespace forebay::weights
