// config.json of Llama models: what is read, and what is refused by name.
#include "forebay/models/llama/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/models/rope.h"

namespace forebay::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Good() {
  return json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
    "rms_norm_eps": 1e-05, "rope_theta": 100000, "max_position_embeddings": 8192, "tie_word_embeddings": true,
    "bos_token_id": 1, "eos_token_id": [2, 7], "hidden_act": "silu", "rope_scaling": null, "mlp_bias": false})");
}

TEST(LlamaConfigTest, ReadsSmolLm2) {
  const LlamaConfig config = ParseLlamaConfig(Good().dump()).value();
  EXPECT_EQ(config.base.vocab_size, 49152);
  EXPECT_EQ(config.base.head_dim, 64);
  EXPECT_EQ(config.base.kv_heads, 3);
  EXPECT_EQ(config.base.context_max, 8192);
  EXPECT_EQ(config.base.rope_theta, 100000);
  EXPECT_TRUE(config.base.tied_embedding);
  EXPECT_EQ(config.base.eos_token, 2);
  EXPECT_FALSE(config.rope_scaling.has_value());
}

TEST(LlamaConfigTest, DefaultsAreThoseOfTheFormat) {
  json object = Good();
  for (const char* key :
       {"num_key_value_heads", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "bos_token_id",
        "eos_token_id", "max_position_embeddings"}) {
    object.erase(key);
  }
  const LlamaConfig config = ParseLlamaConfig(object.dump()).value();
  EXPECT_EQ(config.base.kv_heads, 9);
  EXPECT_EQ(config.base.rope_theta, 10000);
  EXPECT_EQ(config.base.rms_eps, 1e-6);
  EXPECT_FALSE(config.base.tied_embedding);
  EXPECT_EQ(config.base.bos_token, -1);
}

TEST(LlamaConfigTest, RefusesWhatItCannotCompute) {
  struct Bad {
    const char* key;
    json value;
    const char* says;
  };
  const std::vector<Bad> cases = {
      {"attention_bias", true, "attention_bias"},
      {"mlp_bias", true, "mlp_bias"},
      {"mlp_bias", "no", "must be true or false"},
      {"hidden_act", "gelu", "\"gelu\""},
      {"quantization_config", {{"bits", 4}}, "quantization_config"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor"},
      {"rope_scaling", {{"type", "longrope"}, {"factor", 4}}, "\"longrope\"; supported are"},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, "low_freq_factor"},
      {"rope_scaling", "llama3", "null or an object"},
      {"rope_parameters", {{"rope_type", "dynamic"}}, "no \"factor\""},
      {"rope_scaling", {{"type", "yarn"}}, "no \"factor\""},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_fast", 1}}, "beta_slow"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"truncate", 1}}, "true or false"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"mscale", -1}}, "positive number"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0}}, "positive number"},
      {"vocab_size", nullptr, "no \"vocab_size\""},
      {"vocab_size", -4, "must be an integer from 1"},
      {"vocab_size", 1e300, "must be an integer from 1"},
      {"vocab_size", 18446744073709551615U, "must be an integer from 1"},
      {"hidden_size", "576", "must be an integer from 1"},
      {"hidden_size", 577, "not a multiple"},
      {"num_hidden_layers", 0, "must be an integer from 1"},
      {"num_hidden_layers", 100000, "at most 4096"},
      {"num_key_value_heads", 4, "not a multiple of \"num_key_value_heads\""},
      {"head_dim", 63, "even"},
      {"head_dim", 268435456, "too large"},
      {"rms_norm_eps", 0, "must be a positive number"},
      {"rope_theta", "big", "must be a positive number"},
      {"eos_token_id", 49152, "token id below"},
      {"bos_token_id", -2, "token id below"},
  };
  for (const Bad& bad : cases) {
    json object = Good();
    object[bad.key] = bad.value;
    const auto config = ParseLlamaConfig(object.dump());
    ASSERT_FALSE(config.ok()) << bad.key << " " << bad.value;
    EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(config.status().message(), HasSubstr(bad.says)) << bad.key;
  }
}

TEST(LlamaConfigTest, CreateNamesAnUnsupportedArchitecture) {
  json object = Good();
  object["architectures"] = {"MambaForCausalLM"};
  EXPECT_THAT(Model::Create(object.dump()).status().message(),
              HasSubstr("\"MambaForCausalLM\" is not supported"));
  object.erase("architectures");
  EXPECT_THAT(Model::Create(object.dump()).status().message(), HasSubstr("names no architecture"));
  object["model_type"] = "llama";
  EXPECT_TRUE(Model::Create(object.dump()).ok());
  object["architectures"] = {7};
  object["model_type"] = 7;
  EXPECT_FALSE(Model::Create(object.dump()).ok());
}

TEST(LlamaConfigTest, RefusesTextThatIsNoObject) {
  for (const char* text : {"", "{", "[1]", "null", "{\"vocab_size\": }", "\xff\xfe"}) {
    EXPECT_FALSE(ParseLlamaConfig(text).ok()) << text;
    EXPECT_FALSE(Model::Create(text).ok()) << text;
  }
  const std::string deep(100000, '[');
  EXPECT_FALSE(Model::Create(deep).ok());
}

Rotation RotationOf(const json& object) {
  const LlamaConfig config = ParseLlamaConfig(object.dump()).value();
  return MakeRotation(config.base.rope_theta, config.base.head_dim, config.rope_scaling);
}
std::vector<float> Frequencies(const json& object) { return RotationOf(object).frequencies; }

TEST(RopeFrequenciesTest, PlainOnesAreAGeometricSeries) {
  const std::vector<float> f = Frequencies(Good());
  ASSERT_EQ(f.size(), 32u);
  EXPECT_FLOAT_EQ(f[0], 1.0F);
  EXPECT_FLOAT_EQ(f[16], 0.0031622776F);  // 100000^-0.5
}

// Values of transformers' ROPE_INIT_FUNCTIONS["llama3"] for Llama 3.1 (theta 5e5, head size 128).
TEST(RopeFrequenciesTest, Llama3ScalesSlowOnesOnly) {
  json object = Good();
  object["head_dim"] = 128;
  object["rope_theta"] = 500000.0;
  object["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  const std::vector<float> f = Frequencies(object);
  ASSERT_EQ(f.size(), 64u);
  EXPECT_FLOAT_EQ(f[0], 1.0F);
  EXPECT_FLOAT_EQ(f[28], 0.0032114461F);               // turns 4.19 times in 8192 tokens: kept
  EXPECT_NEAR(f[30], 0.0013718936, 2e-9);              // 2.78 times: between
  EXPECT_FLOAT_EQ(f[63], 2.4551408e-06F / 8);          // stretched
  object["rope_parameters"] = object["rope_scaling"];  // as newer versions write it
  object["rope_parameters"]["rope_theta"] = 500000.0;
  object.erase("rope_scaling");
  object.erase("rope_theta");
  EXPECT_EQ(Frequencies(object), f);
}

// Values of transformers' _compute_yarn_parameters (5.24).
TEST(RopeFrequenciesTest, YarnKeepsFastOnesAndSharpensScores) {
  struct Case {
    double theta;
    json scaling;
    std::vector<float> frequencies;
    double amplitude;
  };
  const std::vector<Case> cases = {
      {1e6,
       {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}},
       {1, 0.177827939F, 0.0316227786F, 0.00421755994F, 0.000500000024F, 4.44569851e-05F,
        7.90569356e-06F, 1.40585337e-06F},
       1.13862944},
      {1e4,
       {{"type", "yarn"},
        {"factor", 16.0},
        {"original_max_position_embeddings", 256},
        {"beta_fast", 16.0},
        {"beta_slow", 2.0},
        {"attention_factor", 1.5},
        {"truncate", false}},
       {1, 0.285350084F, 0.0383304954F, 0.00197642366F, 0.000624999986F, 0.000197642366F,
        6.2500003e-05F, 1.97642366e-05F},
       1.5},
      {1e4,
       {{"type", "yarn"},
        {"factor", 16.0},
        {"original_max_position_embeddings", 256},
        {"mscale", 0.7},
        {"mscale_all_dim", 0.3}},
       {1, 0.242111877F, 0.0531250015F, 0.00938801281F, 0.000624999986F, 0.000197642366F,
        6.2500003e-05F, 1.97642366e-05F},
       1.10238722}};
  for (const Case& c : cases) {
    json object = Good();
    object["head_dim"] = 16;
    object["rope_theta"] = c.theta;
    object["rope_scaling"] = c.scaling;
    const Rotation rotation = RotationOf(object);
    ASSERT_EQ(rotation.frequencies.size(), c.frequencies.size());
    for (size_t i = 0; i < c.frequencies.size(); ++i) {
      EXPECT_NEAR(rotation.frequencies[i] / c.frequencies[i], 1, 1e-5) << i;
    }
    EXPECT_NEAR(rotation.amplitude, c.amplitude, 1e-6);
  }
  json object = Good();
  object["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};  // of max_position_embeddings
  const LlamaConfig config = ParseLlamaConfig(object.dump()).value();
  EXPECT_EQ(config.rope_scaling->original_context, 8192);
  EXPECT_EQ(config.base.context_max, 4 * 8192);
}

// Up to max_position_embeddings nothing is stretched, and the context ends there.
TEST(RopeFrequenciesTest, DynamicOnesArePlainWithinTheContext) {
  json object = Good();
  const std::vector<float> plain = Frequencies(object);
  object["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 8.0}};
  EXPECT_EQ(Frequencies(object), plain);
  EXPECT_EQ(ParseLlamaConfig(object.dump())->base.context_max, 8192);
}

}  // namespace
}  // namespace forebay::models
