// A llama in GGUF becomes the Hugging Face checkpoint that it was converted from.
#include "forebay/weights/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/weights_testing.h"

namespace forebay::weights {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string kParity = std::string(FOREBAY_SOURCE_DIR) + "/tests/goldens/parity/llama/";

class GgufModelTest : public testing::Test {
 protected:
  void SetUp() override {
    auto read = ReadSafetensors(kParity + "model.safetensors");
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    checkpoint_ = *std::move(read);
    builder_ = GgufBuilder::ParityLlama(checkpoint_);
  }

  // The status of the conversion of what is in builder_.
  Status Convert() {
    const std::string bytes = builder_.Build();
    const auto file = GgufFile::Parse(BytesOf(bytes));
    if (!file.ok()) return file.status();
    FB_RETURN_IF_ERROR(GgufConfigJson(*file).status());
    return GgufTensors(*file).status();
  }

  // "rope_scaling" of the config, or why it or the tensors cannot be had.
  static Json RopeScaling(const GgufBuilder& builder) {
    const std::string bytes = builder.Build();
    const auto file = GgufFile::Parse(BytesOf(bytes));
    if (!file.ok()) return file.status().message();
    const auto config = GgufConfigJson(*file);
    const Status tensors = GgufTensors(*file).status();
    EXPECT_EQ(config.ok(), tensors.ok());
    if (!config.ok()) return config.status().message();
    return Json::parse(*config)["rope_scaling"];
  }

  TensorMap checkpoint_;
  GgufBuilder builder_;
};

TEST_F(GgufModelTest, TensorsAreThoseOfTheCheckpoint) {
  const std::string bytes = builder_.Build();
  const auto file = GgufFile::Parse(BytesOf(bytes));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto tensors = GgufTensors(*file);
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  EXPECT_EQ(Digest(*tensors), Digest(checkpoint_));
}

TEST_F(GgufModelTest, ConfigIsThatOfTheCheckpoint) {
  const std::string bytes = builder_.Build();
  const auto file = GgufFile::Parse(BytesOf(bytes));
  ASSERT_TRUE(file.ok());
  const auto text = GgufConfigJson(*file);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const Json config = Json::parse(*text);
  const Json expected = Json::parse(*ReadFile(kParity + "config.json"));
  for (const auto& [key, value] : config.items()) EXPECT_EQ(value, expected[key]) << key;
  for (const auto& [key, value] : expected.items()) {
    const bool of_training = key == "pretraining_tp" || key == "transformers_version";
    EXPECT_NE(config.contains(key), of_training) << key;
  }
  EXPECT_EQ(Json::parse(*GgufGenerationConfigJson(*file)),
            Json({{"bos_token_id", 1}, {"eos_token_id", 2}}));
}

TEST_F(GgufModelTest, AnOwnOutputHeadIsNotTied) {
  builder_.FloatTensor("output.weight", {512, 64},
                       checkpoint_.at("model.embed_tokens.weight").as<float>());
  const std::string bytes = builder_.Build();
  const auto file = GgufFile::Parse(BytesOf(bytes));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(Json::parse(*GgufConfigJson(*file))["tie_word_embeddings"], false);
  const auto tensors = GgufTensors(*file);
  ASSERT_TRUE(tensors.ok());
  EXPECT_EQ(tensors->at("lm_head.weight").shape().dims, (std::vector<int64_t>{512, 64}));
}

TEST_F(GgufModelTest, TensorsWithoutAPlaceAreRefusedByName) {
  const std::vector<float> values(64);
  for (const std::string_view name :
       {"blk.3.attn_norm.weight", "blk.0.attn_norm.scale", "blk.0.ffn_gate_inp.weight",
        "blk.x.attn_norm.weight", "blk.-1.attn_norm.weight", "blk.0", "blk.", "blk.0.weight",
        "blk.99999999999999999999.attn_norm.weight", ""}) {
    builder_ = GgufBuilder::ParityLlama(checkpoint_);
    builder_.FloatTensor(name, {64}, values);
    const Status status = Convert();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), HasSubstr(std::string(name)));
  }
}

TEST_F(GgufModelTest, OneTensorUnderTwoNamesIsRefused) {
  const std::vector<float> values(64);
  builder_.FloatTensor("blk.00.attn_norm.weight", {64}, values);
  EXPECT_EQ(Convert().code(), StatusCode::kDataLoss);
}

TEST_F(GgufModelTest, RowsThatAreNoHeadsAreRefused) {
  GgufBuilder builder = builder_;
  builder.FloatTensor("blk.1.attn_q.bias", {60}, std::vector<float>(60));
  builder_ = builder;
  const Status status = Convert();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("blk.1.attn_q.bias"));
}

TEST_F(GgufModelTest, WhatTheArchitectureCannotDoIsRefusedByName) {
  builder_.Uint("llama.expert_count", 8);
  EXPECT_THAT(Convert().message(), HasSubstr("llama.expert_count"));
  builder_ = GgufBuilder::ParityLlama(checkpoint_);
  builder_.String("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(Convert().message(), HasSubstr("yarn"));
  builder_ = GgufBuilder::ParityLlama(checkpoint_);
  builder_.FloatTensor("rope_freqs.weight", {8}, std::vector<float>(8));
  EXPECT_THAT(Convert().message(), HasSubstr("rope_freqs.weight"));
  builder_ = GgufBuilder::ParityLlama(checkpoint_);
  builder_.Uint("llama.rope.dimension_count", 8);
  EXPECT_THAT(Convert().message(), HasSubstr("partial rotary"));
  builder_ = GgufBuilder::ParityLlama(checkpoint_);
  builder_.Uint("llama.expert_count", 0);
  builder_.String("llama.rope.scaling.type", "none");
  EXPECT_EQ(Convert(), OkStatus());
}

// As llama.cpp writes it for Llama 3.1 to 3.3: a divisor for each frequency.
TEST_F(GgufModelTest, Llama3DivisorsBecomeItsRopeScaling) {
  const auto divisors = [](double factor, double context) {
    std::vector<float> values;
    for (int i = 0; i < 8; ++i) {
      const double turns = context * std::pow(1e4, -i / 8.0) / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - 1) / 3, 0.0, 1.0);
      values.push_back(static_cast<float>(1 / ((1 - kept) / factor + kept)));
    }
    return values;
  };
  const auto config_of = [&](const std::vector<float>& values) {
    GgufBuilder builder = builder_;
    builder.FloatTensor("rope_freqs.weight", {static_cast<int64_t>(values.size())}, values);
    return RopeScaling(builder);
  };
  EXPECT_EQ(config_of(divisors(32, 8192)), Json({{"rope_type", "llama3"},
                                                 {"factor", 32.0},
                                                 {"low_freq_factor", 1.0},
                                                 {"high_freq_factor", 4.0},
                                                 {"original_max_position_embeddings", 8192}}));
  EXPECT_TRUE(config_of(std::vector<float>(8, 1.0F)).is_null());
  EXPECT_THAT(config_of(divisors(8, 100)).get<std::string>(),
              HasSubstr("another way than Llama 3"));
  EXPECT_THAT(config_of(std::vector<float>(7, 1.0F)).get<std::string>(),
              HasSubstr("8 f32 numbers"));
}

TEST_F(GgufModelTest, LinearAndYarnRotationsAreReadAndOthersRefused) {
  GgufBuilder builder = builder_;
  builder.String("llama.rope.scaling.type", "linear");
  EXPECT_THAT(RopeScaling(builder).get<std::string>(),
              HasSubstr("needs llama.rope.scaling.factor"));
  builder.Float("llama.rope.scaling.factor", 4);
  EXPECT_EQ(RopeScaling(builder), Json({{"rope_type", "linear"}, {"factor", 4.0}}));
  builder = builder_;
  builder.String("llama.rope.scaling.type", "yarn");
  builder.Float("llama.rope.scaling.factor", 4);
  EXPECT_THAT(RopeScaling(builder).get<std::string>(), HasSubstr("original_context_length"));
  builder.Uint("llama.rope.scaling.original_context_length", 512);
  EXPECT_EQ(
      RopeScaling(builder),
      Json({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}));
  builder.Float("llama.rope.scaling.yarn_beta_fast", 16);
  EXPECT_THAT(RopeScaling(builder).get<std::string>(), HasSubstr("yarn_beta_fast"));
  builder = builder_;
  builder.String("llama.rope.scaling.type", "longrope");
  EXPECT_THAT(RopeScaling(builder).get<std::string>(), HasSubstr("longrope is not supported"));
}

TEST(GgufModelMetadataTest, SizesThatCannotBeAreRefused) {
  struct Bad {
    std::string_view key;
    uint32_t value;
  };
  for (const Bad bad :
       {Bad{"llama.block_count", 0}, Bad{"llama.attention.head_count", 0},
        Bad{"llama.attention.head_count", 0xffffffff}, Bad{"llama.attention.head_count", 5},
        Bad{"llama.attention.key_length", 15}, Bad{"tokenizer.ggml.eos_token_id", 8}}) {
    GgufBuilder builder;
    for (const std::string_view key :
         {"llama.block_count", "llama.context_length", "llama.embedding_length",
          "llama.feed_forward_length", "llama.attention.head_count",
          "llama.attention.head_count_kv", "tokenizer.ggml.eos_token_id"}) {
      if (key != bad.key) builder.Uint(key, 2);
    }
    builder.Uint(bad.key, bad.value);
    builder.String("general.architecture", "llama");
    builder.FloatTensor("token_embd.weight", {8, 2}, std::vector<float>(16));
    const std::string bytes = builder.Build();
    const auto file = GgufFile::Parse(BytesOf(bytes));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ(GgufConfigJson(*file).status().code(), StatusCode::kDataLoss) << bad.key << bad.value;
  }
}

}  // namespace
}  // namespace forebay::weights
