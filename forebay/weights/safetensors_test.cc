// Safetensors: what is written is read back, and nothing that a file says is believed unchecked.
#include "forebay/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/weights_testing.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using xla::DType;

const std::string kParity = std::string(FOREBAY_SOURCE_DIR) + "/tests/goldens/parity/llama/";

// A file with this header and as many zero bytes of data.
std::string File(std::string_view header, size_t data_bytes) {
  return RawString(header) + std::string(data_bytes, '\0');
}

Result<TensorMap> Parse(std::string file) {
  const auto owner = std::make_shared<const std::string>(std::move(file));
  return ParseSafetensors(BytesOf(*owner), owner);
}

TEST(SafetensorsTest, ReadsACheckpointOfTheReferenceImplementation) {
  const auto tensors = ReadSafetensors(kParity + "model.safetensors");
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  EXPECT_THAT(*tensors, SizeIs(29));  // 3 layers of 9, embedding, last norm
  EXPECT_EQ(tensors->at("model.layers.2.self_attn.k_proj.weight").shape().ToString(), "f32[32,64]");
  const auto reference = ReadSafetensors(kParity + "reference.safetensors");
  ASSERT_TRUE(reference.ok()) << reference.status().ToString();
  EXPECT_EQ(reference->at("seq0.input_ids").shape(),
            (xla::Shape{.dtype = DType::kS32, .dims = {37}}));
}

TEST(SafetensorsTest, WhatIsWrittenIsReadBack) {
  const TestFolder folder;
  TensorMap tensors = {{"z \"quoted\" é", FloatTensor({2, 3}, {1, 2, 3, 4, 5, 6})},
                       {"scalar", FloatTensor({}, {7})},
                       {"empty", FloatTensor({0, 4}, {})}};
  std::span<std::byte> bytes;
  tensors["a_flag"] = HostTensor::Allocate({.dtype = DType::kPred, .dims = {3}}, &bytes);
  std::memset(bytes.data(), 1, bytes.size());
  for (const DType dtype : {DType::kS8, DType::kU8, DType::kS32, DType::kU32, DType::kS64,
                            DType::kU64, DType::kF16, DType::kBF16}) {
    tensors["of_" + std::string(xla::Name(dtype))] =
        HostTensor::Allocate({.dtype = dtype, .dims = {5}}, &bytes);
    std::memset(bytes.data(), 0x5a, bytes.size());
  }
  const std::string path = folder.File("w.safetensors");
  ASSERT_EQ(WriteSafetensors(path, tensors), OkStatus());
  const auto read = ReadSafetensors(path);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(Digest(*read), Digest(tensors));
  EXPECT_FALSE(ReadFile(path + ".tmp").ok());
  // transformers refuses a file without it.
  EXPECT_THAT(*ReadFile(path), HasSubstr(R"("__metadata__":{"format":"pt"})"));
}

TEST(SafetensorsTest, WritingReplacesTheFileAndLeavesMappedTensorsAlone) {
  const TestFolder folder;
  const std::string path = folder.File("w.safetensors");
  ASSERT_EQ(WriteSafetensors(path, {{"x", FloatTensor({2}, {1, 2})}}), OkStatus());
  const auto first = ReadSafetensors(path);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(WriteSafetensors(path, {{"x", FloatTensor({2}, {3, 4})}}), OkStatus());
  EXPECT_THAT(first->at("x").as<float>(), ElementsAre(1, 2));
  EXPECT_THAT(ReadSafetensors(path)->at("x").as<float>(), ElementsAre(3, 4));
}

TEST(SafetensorsTest, WritingSaysWhatFailed) {
  const TestFolder folder;
  const auto nowhere = WriteSafetensors(folder.File("no/such/folder.safetensors"), {});
  EXPECT_EQ(nowhere.code(), StatusCode::kNotFound);
  EXPECT_THAT(nowhere.message(), HasSubstr("no/such/folder"));
  EXPECT_EQ(WriteSafetensors(folder.File("w"), {{"\xff", FloatTensor({1}, {1})}}).code(),
            StatusCode::kInvalidArgument);
}

// A header of odd length leaves every tensor misaligned: they are copied, so that as<T>() stays
// valid.
TEST(SafetensorsTest, MisalignedTensorsAreCopied) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )";
  for (size_t cut = 0; cut < 3; ++cut) {
    const auto tensors = Parse(File(std::string_view(header).substr(0, header.size() - cut), 8));
    ASSERT_TRUE(tensors.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors->at("x").bytes().data()) % 4, 0U);
    EXPECT_THAT(tensors->at("x").as<float>(), ElementsAre(0, 0));
  }
}

struct BadFile {
  std::string file;
  StatusCode code;
  std::string_view reason;
};

TEST(SafetensorsTest, FilesThatContradictThemselvesAreRefused) {
  const auto one = [](std::string_view entry, size_t data) {
    return File(R"({"x":)" + std::string(entry) + "}", data);
  };
  const std::string deep = R"({"x":)" + std::string(1'000'000, '[');
  const std::vector<BadFile> files = {
      {"", StatusCode::kDataLoss, "too few"},
      {"1234567", StatusCode::kDataLoss, "too few"},
      {Raw(~uint64_t{0}) + "{}", StatusCode::kDataLoss, "truncated"},
      {Raw(uint64_t{3}) + "{}", StatusCode::kDataLoss, "truncated"},
      {File("", 0), StatusCode::kDataLoss, "not a JSON object"},
      {File("[]", 0), StatusCode::kDataLoss, "not a JSON object"},
      {File("{\"x\":\xff}", 0), StatusCode::kDataLoss, "not a JSON object"},
      {File(deep, 0), StatusCode::kDataLoss, "not a JSON object"},
      {one("{}", 0), StatusCode::kDataLoss, "no dtype"},
      {one("3", 0), StatusCode::kDataLoss, "no dtype"},
      {one(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})", 8), StatusCode::kInvalidArgument,
       "F64"},
      {one(R"({"dtype":"F32","shape":[1]})", 4), StatusCode::kDataLoss, "data_offsets"},
      {one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4), StatusCode::kDataLoss,
       "data_offsets"},
      {one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", 4), StatusCode::kDataLoss,
       "data_offsets"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", 8), StatusCode::kDataLoss,
       "data_offsets"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4), StatusCode::kDataLoss,
       "truncated"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4), StatusCode::kDataLoss,
       "truncated"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4), StatusCode::kDataLoss,
       "does not fill"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
       StatusCode::kDataLoss, "does not fill"},
      {one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", 4),
       StatusCode::kDataLoss, "does not fill"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8), StatusCode::kDataLoss,
       "starts at 4"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 8), StatusCode::kDataLoss,
       "end at 4"},
      // Overlapping, and one name twice.
      {File(
           R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           8),
       StatusCode::kDataLoss, "starts at 4"},
      {File(
           R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           4),
       StatusCode::kDataLoss, "not a JSON object"},
  };
  for (const BadFile& bad : files) {
    const auto tensors = Parse(bad.file);
    ASSERT_FALSE(tensors.ok()) << bad.file.substr(0, 200);
    EXPECT_EQ(tensors.status().code(), bad.code) << tensors.status().ToString();
    EXPECT_THAT(tensors.status().message(), HasSubstr(bad.reason));
  }
}

TEST(SafetensorsTest, CutAnywhereIsNoticedAndFlippedBitsDoNotCrash) {
  const TestFolder folder;
  const std::string path = folder.File("w.safetensors");
  ASSERT_EQ(WriteSafetensors(path, {{"x", FloatTensor({2}, {1, 2})}, {"y", FloatTensor({1}, {3})}}),
            OkStatus());
  const std::string good = *ReadFile(path);
  for (size_t size = 0; size < good.size(); ++size) {
    const auto tensors = Parse(good.substr(0, size));
    ASSERT_FALSE(tensors.ok()) << size;
    EXPECT_EQ(tensors.status().code(), StatusCode::kDataLoss);
  }
  for (size_t bit = 0; bit < (good.size() - 12) * 8; ++bit) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(static_cast<uint8_t>(flipped[bit / 8]) ^ (1U << bit % 8));
    const auto tensors = Parse(flipped);
    if (!tensors.ok()) continue;  // else a name, the metadata or a type of the same size changed
    size_t bytes = 0;
    for (const auto& [name, tensor] : *tensors) bytes += tensor.bytes().size();
    EXPECT_EQ(bytes, 12U);
  }
}

TEST(SafetensorsTest, ReadsShardsThroughTheIndex) {
  const TestFolder folder;
  ASSERT_EQ(WriteSafetensors(folder.File("1.safetensors"), {{"a", FloatTensor({1}, {1})}}),
            OkStatus());
  ASSERT_EQ(WriteSafetensors(folder.File("2.safetensors"),
                             {{"b", FloatTensor({1}, {2})}, {"c", FloatTensor({1}, {3})}}),
            OkStatus());
  const std::string index = folder.File("model.safetensors.index.json");
  const auto read = [&](std::string_view map) {
    EXPECT_EQ(WriteFileAtomic(
                  index, R"({"metadata":{"total_size":12},"weight_map":)" + std::string(map) + "}"),
              OkStatus());
    return ReadShardedSafetensors(index);
  };
  const auto tensors = read(R"({"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"})");
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  EXPECT_THAT(*tensors, SizeIs(3));
  EXPECT_THAT(tensors->at("c").as<float>(), ElementsAre(3));

  const std::vector<std::pair<std::string_view, std::string_view>> wrong = {
      {R"({"a":"1.safetensors","b":"2.safetensors"})", "tensor c"},
      {R"({"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors","d":"1.safetensors"})",
       "tensor d"},
      {R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})", "tensor c"},
      {R"({"a":"../1.safetensors"})", "not a file name"},
      {R"({"a":1})", "not a file name"},
      {"[]", "weight_map"}};
  for (const auto& [map, reason] : wrong) {
    const auto bad = read(map);
    ASSERT_FALSE(bad.ok()) << map;
    EXPECT_EQ(bad.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(bad.status().message(), HasSubstr(reason));
  }
  EXPECT_EQ(read(R"({"a":"missing.safetensors"})").status().code(), StatusCode::kNotFound);
}

TEST(SafetensorsTest, LargeModelsAreWrittenInShardsAndReadBack) {
  const TestFolder folder;
  TensorMap tensors;
  for (const char* name : {"a", "b", "c", "e"}) tensors[name] = FloatTensor({5}, {1, 2, 3, 4, 5});
  tensors["d"] = FloatTensor({30}, std::vector<float>(30, 7));  // larger than a shard
  ASSERT_EQ(WriteModelTensors(folder.File(""), tensors, 50), OkStatus());
  EXPECT_FALSE(std::filesystem::exists(folder.File("model.safetensors")));
  // a and b, c, d, e.
  EXPECT_EQ(ReadSafetensors(folder.File("model-00001-of-00004.safetensors"))->size(), 2u);
  EXPECT_EQ(ReadSafetensors(folder.File("model-00003-of-00004.safetensors"))->size(), 1u);
  const std::string index = folder.File("model.safetensors.index.json");
  EXPECT_EQ(Digest(ReadShardedSafetensors(index).value()), Digest(tensors));
  EXPECT_THAT(ReadFile(index).value(), HasSubstr("\"total_size\": 200"));
}

TEST(SafetensorsTest, SmallModelsAreOneFile) {
  const TestFolder folder;
  const TensorMap tensors = {{"a", FloatTensor({5}, {1, 2, 3, 4, 5})}};
  ASSERT_EQ(WriteModelTensors(folder.File(""), tensors, 20), OkStatus());
  EXPECT_EQ(Digest(ReadSafetensors(folder.File("model.safetensors")).value()), Digest(tensors));
  EXPECT_FALSE(std::filesystem::exists(folder.File("model.safetensors.index.json")));
  ASSERT_EQ(WriteModelTensors(folder.File(""), {}, 20), OkStatus());
  EXPECT_EQ(ReadSafetensors(folder.File("model.safetensors"))->size(), 0u);
  EXPECT_EQ(WriteModelTensors(folder.File(""), tensors, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(WriteModelTensors(folder.File("none"), tensors, 20).ok());
}

TEST(SafetensorsTest, ErrorsNameTheFile) {
  const TestFolder folder;
  const std::string path = folder.File("w.safetensors");
  ASSERT_EQ(WriteFileAtomic(path, ""), OkStatus());
  EXPECT_THAT(ReadSafetensors(path).status().message(), HasSubstr(path));
  EXPECT_EQ(ReadSafetensors(folder.File("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadSafetensors(folder.File("")).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace forebay::weights
