// What is sent to name weights: it comes back as it was, and nothing else is taken for it.
#include "forebay/weights/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using ::testing::HasSubstr;

HostTensor Filled(xla::Shape shape, int value) {
  std::span<std::byte> bytes;
  HostTensor out = HostTensor::Allocate(std::move(shape), &bytes);
  std::ranges::fill(bytes, static_cast<std::byte>(value));
  return out;
}

Snapshot Sample() {
  return {.policy_version = 7,
          .tensors = {{"a", Filled({xla::DType::kF32, {2, 3}}, 1)},
                      {"b \"quoted\" \xC3\xA4", Filled({xla::DType::kBF16, {}}, 2)},
                      {"c", Filled({xla::DType::kF16, {0, 4}}, 3)}}};
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ManifestTest, ComesBackAsItWas) {
  const Manifest manifest = MakeManifest(Sample());
  const auto back = ParseManifest(FormatManifest(manifest));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->policy_version, 7);
  ASSERT_EQ(back->tensors.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(back->tensors[i].name, manifest.tensors[i].name);
    EXPECT_EQ(back->tensors[i].shape, manifest.tensors[i].shape);
    EXPECT_EQ(back->tensors[i].content, manifest.tensors[i].content);
  }
}

TEST(ManifestTest, AnyOtherByteIsAnotherContent) {
  const Snapshot before = Sample();
  Snapshot after = Sample();
  std::span<std::byte> bytes;
  HostTensor changed = HostTensor::Allocate({xla::DType::kF32, {2, 3}}, &bytes);
  std::ranges::copy(before.tensors.at("a").bytes(), bytes.begin());
  bytes[23] ^= std::byte{1};
  after.tensors["a"] = changed;
  const Manifest x = MakeManifest(before), y = MakeManifest(after);
  EXPECT_NE(x.tensors[0].content, y.tensors[0].content);
  EXPECT_EQ(x.tensors[1].content, y.tensors[1].content);
}

TEST(ManifestTest, EveryTruncationIsRefused) {
  const std::string text = FormatManifest(MakeManifest(Sample()));
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(ParseManifest(text.substr(0, size)).status().code(), StatusCode::kDataLoss) << size;
  }
}

TEST(ManifestTest, WhatWasChangedOnTheWayIsRefused) {
  const std::string text = FormatManifest(MakeManifest(Sample()));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"policy_version\":7", "\"policy_version\":8"},
           {"[2,3]", "[3,2]"},
           {"\"a\"", "\"A\""},
           {"\"bf16\"", "\"f16\""}}) {
    const Status status = ParseManifest(Replaced(text, from, to)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << from;
    EXPECT_THAT(status.message(), HasSubstr("root")) << from;
  }
}

TEST(ManifestTest, HostileOnesAreRefusedWithTheReason) {
  const auto with = [](const std::string& tensors, const std::string& version = "1") {
    return ParseManifest("{\"policy_version\":" + version + ",\"tensors\":" + tensors +
                         ",\"root\":\"00\"}")
        .status();
  };
  const std::string id = "\"0123456789abcdef0123456789abcdef\"";
  const struct {
    std::string tensors, version, reason;
  } cases[] = {
      {"[]", "-1", "policy_version"},
      {"[]", "1e3", "policy_version"},
      {"[]", "18446744073709551615", "policy_version"},
      {"{}", "1", "no list"},
      {"[7]", "1", "is not [name"},
      {"[[\"a\",\"f32\",[1]]]", "1", "is not [name"},
      {"[[\"a\",\"s8\",[1]," + id + "]]", "1", "f32, bf16, f16"},
      {"[[\"\",\"f32\",[1]," + id + "]]", "1", "1 to 1024"},
      {"[[\"" + std::string(2000, 'x') + "\",\"f32\",[1]," + id + "]]", "1", "2000 bytes"},
      {"[[\"a\",\"f32\",[-1]," + id + "]]", "1", "dimension"},
      {"[[\"a\",\"f32\",[0.5]," + id + "]]", "1", "dimension"},
      {"[[\"a\",\"f32\",[18446744073709551615]," + id + "]]", "1", "dimension"},
      {"[[\"a\",\"f32\",[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]," + id + "]]", "1", "too many"},
      {"[[\"a\",\"f32\",[1],\"0123\"]]", "1", "32 hexadecimal"},
      {"[[\"a\",\"f32\",[1],\"" + std::string(32, 'g') + "\"]]", "1", "32 hexadecimal"},
      {"[[\"a\",\"f32\",[1]," + id + "],[\"a\",\"f32\",[1]," + id + "]]", "1", "each once"},
      {"[[\"b\",\"f32\",[1]," + id + "],[\"a\",\"f32\",[1]," + id + "]]", "1", "each once"},
      {std::string(100, '[') + std::string(100, ']'), "1", "too deep"},
  };
  for (const auto& each : cases) {
    const Status status = with(each.tensors, each.version);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << each.tensors;
    EXPECT_THAT(status.message(), HasSubstr(each.reason)) << each.tensors;
  }
  EXPECT_EQ(ParseManifest("").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(ParseManifest("[]").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace forebay::weights
