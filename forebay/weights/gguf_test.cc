// GgufFile: finds what a file holds, and survives whatever a hostile one says.
#include "forebay/weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/dequantize.h"
#include "forebay/weights/weights_testing.h"

namespace forebay::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// The file's value types.
constexpr uint32_t kUint8 = 0, kInt8 = 1, kInt16 = 3, kBool = 7, kArray = 9, kUint64 = 10,
                   kFloat64 = 12;

GgufBuilder Small() {
  GgufBuilder builder;
  builder.Uint("a.uint", 7);
  builder.Float("a.float", 0.5F);
  builder.String("a.string", "text");
  builder.Strings("a.strings", {"x", "", "é"});
  builder.Ints("a.ints", {-1, 2});
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  builder.FloatTensor("t", {2, 3}, values);
  builder.Tensor("u", GgmlType::kQ8_0, {1, 32}, std::string(34, '\1'));
  return builder;
}

Result<GgufFile> Parse(const std::string& file) { return GgufFile::Parse(BytesOf(file)); }

TEST(GgufTest, FindsMetadataAndTensors) {
  for (const uint32_t version : {2U, 3U}) {
    const std::string bytes = Small().Build(version);
    const auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ(*file->Unsigned("a.uint"), 7U);
    EXPECT_EQ(*file->Float("a.float"), 0.5);
    EXPECT_EQ(*file->String("a.string"), "text");
    EXPECT_THAT(*file->Strings("a.strings"), ElementsAre("x", "", "é"));
    EXPECT_THAT(*file->Integers("a.ints"), ElementsAre(-1, 2));
    ASSERT_THAT(file->tensors(), SizeIs(2));
    const GgufTensor& tensor = file->tensors().at("t");
    EXPECT_EQ(tensor.type, GgmlType::kF32);
    EXPECT_THAT(tensor.dims, ElementsAre(2, 3));
    std::vector<float> values(6);
    Dequantize(tensor.type, tensor.bytes, values);
    EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST(GgufTest, IntegersOfAnyWidthAreOneKind) {
  GgufBuilder builder;
  builder.Raw("u8", kUint8, "\x05");
  builder.Raw("i16", kInt16, Raw(int16_t{300}));
  builder.Raw("u64", kUint64, Raw(std::numeric_limits<uint64_t>::max()));
  builder.Raw("i8", kInt8, "\xff");
  builder.Raw("flag", kBool, "\x01");
  builder.Raw("f64", kFloat64, Raw(0.25));
  builder.Raw("u8s", kArray, Raw(kUint8) + Raw(uint64_t{2}) + "\x01\xff");
  builder.Raw("u64s", kArray, Raw(kUint64) + Raw(uint64_t{1}) + Raw(~uint64_t{0}));
  const std::string bytes = builder.Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(*file->Unsigned("u8"), 5U);
  EXPECT_EQ(*file->Unsigned("i16"), 300U);
  EXPECT_EQ(*file->Unsigned("u64"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(*file->Float("f64"), 0.25);
  EXPECT_THAT(*file->Integers("u8s"), ElementsAre(1, 255));
  // Of another kind, negative, too large, not there.
  EXPECT_EQ(file->Unsigned("i8").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Unsigned("flag").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Unsigned("f64").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Float("u8").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->String("u8s").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Strings("u8s").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Integers("u8").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Integers("u64s").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Unsigned("none").status().code(), StatusCode::kNotFound);
}

// Against the formats' definitions, by hand: 1.0 is half 0x3c00, -2.0 is 0xc000.
TEST(GgufTest, DequantizesEachType) {
  std::vector<float> values(32);
  const std::string nibbles =
      std::string(1, '\xf0') + std::string(15, '\x88');  // elements 0 and 16: 0 and 15
  Dequantize(GgmlType::kQ4_0, BytesOf(std::string("\x00\xc0", 2) + nibbles),
             values);  // scale -2, no offset
  EXPECT_EQ(values[0], 16.0F);
  EXPECT_EQ(values[16], -14.0F);
  EXPECT_EQ(values[1], 0.0F);
  Dequantize(GgmlType::kQ4_0, BytesOf(std::string("\x00\x3c", 2) + nibbles), values);
  EXPECT_EQ(values[0], -8.0F);
  EXPECT_EQ(values[16], 7.0F);
  Dequantize(GgmlType::kQ4_1, BytesOf(std::string("\x00\x3c\x00\xc0", 4) + nibbles),
             values);  // scale 1, offset -2
  EXPECT_EQ(values[0], -2.0F);
  EXPECT_EQ(values[16], 13.0F);
  EXPECT_EQ(values[31], 6.0F);
  Dequantize(GgmlType::kQ8_0,
             BytesOf(std::string("\x00\x3c", 2) + "\x80\x7f" + std::string(30, '\1')), values);
  EXPECT_EQ(values[0], -128.0F);
  EXPECT_EQ(values[1], 127.0F);
  EXPECT_EQ(values[31], 1.0F);
  std::vector<float> two(2);
  Dequantize(GgmlType::kF16, BytesOf(std::string("\x00\x3c\x00\xc0", 4)), two);
  EXPECT_THAT(two, ElementsAre(1, -2));
  Dequantize(GgmlType::kBF16, BytesOf(std::string("\x80\x3f\xc0\xbf", 4)), two);
  EXPECT_THAT(two, ElementsAre(1, -1.5F));
  Dequantize(GgmlType::kF32, BytesOf(Raw(3.0F) + Raw(4.0F)), two);
  EXPECT_THAT(two, ElementsAre(3, 4));
}

struct BadFile {
  std::string_view reason;
  std::function<std::string()> make;
  StatusCode code = StatusCode::kDataLoss;
};

std::string WithTensor(uint32_t type, const std::vector<uint64_t>& dims, uint64_t offset,
                       size_t bytes) {
  GgufBuilder builder;
  builder.RawTensor("the_tensor", type, dims, offset, std::string(bytes, '\0'));
  return builder.Build();
}

std::string WithValue(uint32_t type, std::string_view value) {
  GgufBuilder builder;
  builder.Raw("the_key", type, value);
  return builder.Build();
}

std::string Header(uint64_t tensors, uint64_t keys) {
  return "GGUF" + Raw(uint32_t{3}) + Raw(tensors) + Raw(keys);
}

TEST(GgufTest, FilesThatContradictThemselvesAreRefused) {
  const uint64_t huge = uint64_t{1} << 62;
  const std::vector<BadFile> files = {
      {"does not start", [] { return std::string(); }},
      {"does not start", [] { return std::string("GGML") + std::string(100, '\0'); }},
      {"version 1 ", [] { return Small().Build(1); }, StatusCode::kInvalidArgument},
      {"version 50331648 ", [] { return Small().Build(0x03000000); }, StatusCode::kInvalidArgument},
      {"limit", [&] { return Header(huge, 0); }},
      {"limit", [&] { return Header(0, huge); }},
      {"truncated", [] { return Header(1000, 0); }},
      {"truncated", [] { return Header(0, 1000); }},
      {"truncated", [&] { return Header(0, 1) + Raw(huge) + "key"; }},
      {"type 13", [] { return WithValue(13, "12345678"); }},
      {"truncated", [&] { return WithValue(8, Raw(huge)); }},
      {"truncated", [&] { return WithValue(kArray, Raw(uint32_t{8}) + Raw(huge)); }},
      {"truncated", [&] { return WithValue(kArray, Raw(kUint64) + Raw(huge)); }},
      {"truncated", [] { return WithValue(kArray, Raw(kUint8) + Raw(~uint64_t{0})); }},
      {"elements of type 9", [] { return WithValue(kArray, Raw(kArray) + Raw(uint64_t{1})); }},
      {"elements of type 99",
       [] { return WithValue(kArray, Raw(uint32_t{99}) + Raw(uint64_t{1})); }},
      {"appears twice",
       [] {
         GgufBuilder builder;
         builder.Uint("k", 1);
         builder.Uint("k", 2);
         return builder.Build();
       }},
      {"not a power of two",
       [] {
         GgufBuilder builder;
         builder.Uint("general.alignment", 0);
         return builder.Build();
       }},
      {"not a power of two",
       [] {
         GgufBuilder builder;
         builder.Uint("general.alignment", 1U << 31);
         return builder.Build();
       }},
      {"Q3_K", [] { return WithTensor(11, {32}, 0, 64); }, StatusCode::kInvalidArgument},
      {"(unknown) (77)", [] { return WithTensor(77, {32}, 0, 64); }, StatusCode::kInvalidArgument},
      {"9 dimensions", [] { return WithTensor(0, std::vector<uint64_t>(9, 1), 0, 64); }},
      {"shape", [] { return WithTensor(0, {}, 0, 64); }},
      {"shape", [] { return WithTensor(0, {0}, 0, 64); }},
      {"shape", [] { return WithTensor(0, {~uint64_t{0}}, 0, 64); }},
      {"shape", [&] { return WithTensor(0, {huge, 4}, 0, 64); }},
      {"shape", [&] { return WithTensor(8, {huge}, 0, 64); }},
      {"shape", [] { return WithTensor(8, {31}, 0, 64); }},
      {"the_tensor", [] { return WithTensor(0, {17}, 0, 64); }},
      {"the_tensor", [&] { return WithTensor(0, {1}, huge, 64); }},
      {"the_tensor", [] { return WithTensor(0, {1}, ~uint64_t{0}, 64); }},
      {"not aligned", [] { return WithTensor(0, {1}, 4, 64); }},
      {"overlaps",
       [] {
         GgufBuilder builder;
         builder.RawTensor("a", 0, {16}, 0, std::string(64, '\0'));
         builder.RawTensor("b", 0, {1}, 32, std::string(64, '\0'));
         return builder.Build();
       }},
      {"appears twice",
       [] {
         GgufBuilder builder;
         builder.RawTensor("a", 0, {1}, 0, std::string(64, '\0'));
         builder.RawTensor("a", 0, {1}, 32, "");
         return builder.Build();
       }},
  };
  for (const BadFile& bad : files) {
    const std::string bytes = bad.make();
    const auto file = Parse(bytes);
    ASSERT_FALSE(file.ok()) << bad.reason;
    EXPECT_EQ(file.status().code(), bad.code) << file.status().ToString();
    EXPECT_THAT(file.status().message(), HasSubstr(bad.reason));
  }
}

TEST(GgufTest, CutAnywhereIsNoticed) {
  const std::string good = Small().Build();
  // The last tensor's padding (64 - 34 bytes) may be missing.
  for (size_t size = 0; size + 30 < good.size(); ++size) {
    const std::string cut = good.substr(0, size);
    const auto file = Parse(cut);
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
  }
}

TEST(GgufTest, FlippedBitsDoNotCrash) {
  const std::string good = Small().Build();
  size_t accepted = 0;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(static_cast<uint8_t>(flipped[bit / 8]) ^ (1U << bit % 8));
    const auto file = Parse(flipped);
    if (!file.ok()) continue;
    ++accepted;
    for (const std::string_view key : {"a.uint", "a.float", "a.string", "a.strings", "a.ints"}) {
      (void)file->Unsigned(key);
      (void)file->Strings(key);
      (void)file->Integers(key);
    }
    for (const auto& [name, tensor] : file->tensors()) {
      int64_t elements = 1;
      for (const int64_t dim : tensor.dims) elements *= dim;
      std::vector<float> values(static_cast<size_t>(elements));
      Dequantize(tensor.type, tensor.bytes, values);
    }
  }
  EXPECT_GT(accepted, 0U);  // flips in names, texts and numbers
}

}  // namespace
}  // namespace forebay::weights
