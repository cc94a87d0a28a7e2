// config.json of Llama models: what is read, and what is refused by name.
#include "forebay/models/llama/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "forebay/models/model.h"

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
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}}, "\"yarn\""},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, "low_freq_factor"},
      {"rope_scaling", "llama3", "null or an object"},
      {"rope_parameters", {{"rope_type", "dynamic"}}, "\"dynamic\""},
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

TEST(RopeFrequenciesTest, PlainOnesAreAGeometricSeries) {
  const std::vector<float> f = RopeFrequencies(ParseLlamaConfig(Good().dump()).value());
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
  const std::vector<float> f = RopeFrequencies(ParseLlamaConfig(object.dump()).value());
  ASSERT_EQ(f.size(), 64u);
  EXPECT_FLOAT_EQ(f[0], 1.0F);
  EXPECT_FLOAT_EQ(f[28], 0.0032114461F);               // turns 4.19 times in 8192 tokens: kept
  EXPECT_NEAR(f[30], 0.0013718936, 2e-9);              // 2.78 times: between
  EXPECT_FLOAT_EQ(f[63], 2.4551408e-06F / 8);          // stretched
  object["rope_parameters"] = object["rope_scaling"];  // as newer versions write it
  object["rope_parameters"]["rope_theta"] = 500000.0;
  object.erase("rope_scaling");
  object.erase("rope_theta");
  EXPECT_EQ(RopeFrequencies(ParseLlamaConfig(object.dump()).value()), f);
}

}  // namespace
}  // namespace forebay::models
