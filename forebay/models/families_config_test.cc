// config.json of the families beside Llama: what they add to it, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/models/active_parameters.h"
#include "forebay/models/gemma3/config.h"
#include "forebay/models/model.h"
#include "forebay/models/qwen2/config.h"
#include "forebay/models/qwen3/config.h"
#include "forebay/models/rope.h"
#include "forebay/weights/snapshot.h"

namespace forebay::models {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json Small(const char* architecture) {
  return {{"architectures", {architecture}}, {"vocab_size", 100},        {"hidden_size", 64},
          {"num_hidden_layers", 4},          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 96}};
}

std::string Error(const json& object) { return Model::Create(object.dump()).status().message(); }

TEST(FamilyConfigTest, EachFamilyHasItsParameters) {
  const auto names = [](const char* architecture) {
    std::vector<std::string> found;
    const auto model = Model::Create(Small(architecture).dump()).value();
    for (const ParamSpec& spec : model->Params(LayerLayout::kStacked)) {
      if (!spec.decay) found.push_back(spec.name);
    }
    return found;
  };
  EXPECT_THAT(
      names("Qwen2ForCausalLM"),
      ElementsAre("model.layers.*.input_layernorm.weight", "model.layers.*.self_attn.q_proj.bias",
                  "model.layers.*.self_attn.k_proj.bias", "model.layers.*.self_attn.v_proj.bias",
                  "model.layers.*.post_attention_layernorm.weight", "model.norm.weight"));
  EXPECT_THAT(
      names("Qwen3ForCausalLM"),
      ElementsAre("model.layers.*.input_layernorm.weight", "model.layers.*.self_attn.q_norm.weight",
                  "model.layers.*.self_attn.k_norm.weight",
                  "model.layers.*.post_attention_layernorm.weight", "model.norm.weight"));
  EXPECT_THAT(
      names("Gemma3ForCausalLM"),
      ElementsAre("model.layers.*.input_layernorm.weight", "model.layers.*.self_attn.q_norm.weight",
                  "model.layers.*.self_attn.k_norm.weight",
                  "model.layers.*.post_attention_layernorm.weight",
                  "model.layers.*.pre_feedforward_layernorm.weight",
                  "model.layers.*.post_feedforward_layernorm.weight", "model.norm.weight"));
}

// A new model's norms do nothing: 1, or 0 where the norm multiplies by 1 + weight; biases are 0.
TEST(FamilyConfigTest, NewModelsHaveNeutralNormsAndBiases) {
  for (const auto& [architecture, norm] :
       {std::pair{"Qwen2ForCausalLM", 1.0F}, std::pair{"Gemma3ForCausalLM", 0.0F}}) {
    const auto model = Model::Create(Small(architecture).dump()).value();
    for (const auto& [name, tensor] : RandomWeights(*model, 3)) {
      if (tensor.shape().rank() != 1) continue;
      const float expected = name.ends_with("bias") ? 0 : norm;
      for (const float x : tensor.as<float>()) ASSERT_EQ(x, expected) << name;
    }
  }
}

TEST(FamilyConfigTest, QwenWindows) {
  json object = Small("Qwen2ForCausalLM");
  object["sliding_window"] = 32;
  EXPECT_THAT(ParseQwen2Config(object.dump())->windows, ElementsAre(0, 0, 0, 0));
  object["use_sliding_window"] = true;
  object["max_window_layers"] = 3;
  EXPECT_THAT(ParseQwen2Config(object.dump())->windows, ElementsAre(0, 0, 0, 32));
  object["layer_types"] = {"full_attention", "sliding_attention", "full_attention",
                           "full_attention"};
  EXPECT_THAT(ParseQwen3Config(object.dump())->windows, ElementsAre(0, 32, 0, 0));
  object["layer_types"] = {"full_attention"};
  EXPECT_THAT(Error(object), HasSubstr("\"layer_types\" has 1 entries"));
  object["layer_types"] = {"full_attention", "chunked_attention", "full_attention",
                           "full_attention"};
  EXPECT_THAT(Error(object), HasSubstr("\"chunked_attention\"; supported are"));
  object["layer_types"] = "full_attention";
  EXPECT_THAT(Error(object), HasSubstr("must be a list of strings"));
}

TEST(FamilyConfigTest, Gemma3Defaults) {
  json object = Small("Gemma3ForCausalLM");
  const Gemma3Config config = ParseGemma3Config(object.dump()).value();
  EXPECT_TRUE(config.base.tied_embedding);
  EXPECT_EQ(config.base.rope_theta, 1e6);
  EXPECT_EQ(config.local_theta, 1e4);
  EXPECT_EQ(config.window, 4096);
  EXPECT_THAT(config.sliding, ElementsAre(true, true, true, true));  // the sixth would be global
  object["sliding_window_pattern"] = 2;
  EXPECT_THAT(ParseGemma3Config(object.dump())->sliding, ElementsAre(true, false, true, false));
}

// As transformers 5 writes them: each type of layer has its own.
TEST(FamilyConfigTest, Gemma3RopeParametersByLayerType) {
  json object = Small("Gemma3ForCausalLM");
  object["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 2e4}}}};
  const Gemma3Config config = ParseGemma3Config(object.dump()).value();
  EXPECT_EQ(config.base.rope_theta, 5e5);
  EXPECT_EQ(config.local_theta, 2e4);
  ASSERT_TRUE(config.rope_scaling.has_value());
  EXPECT_EQ(config.rope_scaling->kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(config.rope_scaling->factor, 8);
  const auto plain = MakeRotation(5e5, 16, {}).frequencies;
  EXPECT_FLOAT_EQ(MakeRotation(5e5, 16, config.rope_scaling).frequencies[3], plain[3] / 8);
  ASSERT_TRUE(config.local_scaling.has_value());
  EXPECT_EQ(config.local_scaling->factor, 2);
  object["rope_parameters"]["sliding_attention"] = {{"rope_type", "su"}};
  EXPECT_THAT(Error(object), HasSubstr("\"su\"; supported are"));
  // "rope_scaling" is of the global layers alone.
  object.erase("rope_parameters");
  object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_TRUE(ParseGemma3Config(object.dump())->rope_scaling.has_value());
  EXPECT_FALSE(ParseGemma3Config(object.dump())->local_scaling.has_value());
}

TEST(FamilyConfigTest, RefusesWhatItCannotCompute) {
  struct Bad {
    const char *architecture, *key;
    json value;
    const char* says;
  };
  const std::vector<Bad> cases = {
      {"Qwen2ForCausalLM", "hidden_act", "gelu", "\"gelu\"; supported for Qwen2 models: \"silu\""},
      {"Qwen2ForCausalLM",
       "rope_scaling",
       {{"type", "su"}, {"factor", 4}},
       "\"su\"; supported are"},
      {"Qwen2ForCausalLM", "vocab_size", nullptr, "a Qwen2 model needs it"},
      {"Qwen3ForCausalLM", "attention_bias", true, "attention_bias"},
      {"Qwen3ForCausalLM", "use_sliding_window", 3, "must be true or false"},
      {"Gemma3ForCausalLM", "final_logit_softcapping", 30.0, "final_logit_softcapping"},
      {"Gemma3ForCausalLM", "use_bidirectional_attention", true, "use_bidirectional_attention"},
      {"Gemma3ForCausalLM", "hidden_activation", "gelu", "gelu_pytorch_tanh"},
      {"Gemma3ForCausalLM", "query_pre_attn_scalar", 0, "must be a positive number"},
      {"Gemma3ForCausalLM", "sliding_window", -1, "must be an integer from 1"},
  };
  for (const Bad& bad : cases) {
    json object = Small(bad.architecture);
    object[bad.key] = bad.value;
    EXPECT_THAT(Error(object), HasSubstr(bad.says)) << bad.architecture << " " << bad.key;
  }
}

json SmallMoe() {
  json object = Small("Qwen3MoeForCausalLM");
  object["num_experts"] = 4;
  object["num_experts_per_tok"] = 2;
  object["moe_intermediate_size"] = 24;
  return object;
}

// A parameter holds all experts; the checkpoint has a tensor for each, in their order.
TEST(FamilyConfigTest, ExpertsAreStackedInParametersAndApartInCheckpoints) {
  const auto model = Model::Create(SmallMoe().dump()).value();
  const weights::TensorMap random = RandomWeights(*model, 5);
  const auto checkpoint = model->ToCheckpoint(random, LayerLayout::kPerLayer).value();
  const std::string name = "model.layers.1.mlp.experts.*.down_proj.weight";
  const auto all = random.at(name).as<float>();
  EXPECT_EQ(random.at(name).shape().dims, (std::vector<int64_t>{4, 64, 24}));
  const auto third = checkpoint.at("model.layers.1.mlp.experts.2.down_proj.weight").as<float>();
  EXPECT_TRUE(std::ranges::equal(third, all.subspan(size_t{2 * 64 * 24}, size_t{64 * 24})));
  EXPECT_EQ(checkpoint.size(), 3u + 4 * (9 + 3 * 4));
  for (const LayerLayout layout : {LayerLayout::kPerLayer, LayerLayout::kStacked}) {
    const auto params = model->FromCheckpoint(checkpoint, layout).value();
    for (const ParamSpec& spec : model->Params(layout)) {
      EXPECT_EQ(params.at(spec.name).shape(), spec.shape) << spec.name;
    }
    EXPECT_EQ(weights::Digest(model->ToCheckpoint(params, layout).value()),
              weights::Digest(checkpoint));
  }
  weights::TensorMap missing = checkpoint;
  missing.erase("model.layers.1.mlp.experts.2.down_proj.weight");
  EXPECT_THAT(model->FromCheckpoint(missing, LayerLayout::kStacked).status().message(),
              HasSubstr("1 missing: model.layers.1.mlp.experts.2.down_proj.weight"));
}

TEST(FamilyConfigTest, ActiveParametersAreThoseThatMultiplyEachToken) {
  const auto count = [](const json& object) {
    return CountActiveParameters(*Model::Create(object.dump()).value());
  };
  const auto all = [](const json& object) {
    double sum = 0;
    for (const ParamSpec& spec :
         Model::Create(object.dump()).value()->Params(LayerLayout::kPerLayer)) {
      sum += static_cast<double>(spec.shape.elements());
    }
    return sum;
  };
  json dense = Small("Qwen3ForCausalLM");
  dense["tie_word_embeddings"] = true;  // the embedding is the head
  EXPECT_EQ(count(dense).all, all(dense));
  dense["tie_word_embeddings"] = false;  // it is only looked up
  EXPECT_EQ(count(dense).all, all(dense) - 100 * 64);
  EXPECT_EQ(count(dense).experts, 0);
  // Of four experts in each of four layers a token goes to two.
  const double experts = 4 * 4 * 3 * 24 * 64;
  EXPECT_EQ(count(SmallMoe()).experts, experts / 2);
  EXPECT_EQ(count(SmallMoe()).all, all(SmallMoe()) - 100 * 64 - experts / 2);
}

TEST(FamilyConfigTest, RefusesExpertsThatItCannotCompute) {
  struct Bad {
    const char* key;
    json value;
    const char* says;
  };
  const std::vector<Bad> cases = {
      {"num_experts", nullptr, "a Qwen3-MoE model needs it"},
      {"num_experts_per_tok", 5, "cannot have more than there are"},
      {"num_experts", 100000, "at most 4096 experts"},
      {"decoder_sparse_step", 2, "all layers have experts"},
      {"mlp_only_layers", {0}, "all layers have experts"},
      {"norm_topk_prob", 1, "must be true or false"},
  };
  for (const Bad& bad : cases) {
    json object = SmallMoe();
    object[bad.key] = bad.value;
    EXPECT_THAT(Error(object), HasSubstr(bad.says)) << bad.key;
  }
}

TEST(FamilyConfigTest, ModelTypeAloneIsEnough) {
  json object = Small("");
  object.erase("architectures");
  for (const char* type : {"llama", "qwen2", "qwen3", "gemma3_text"}) {
    object["model_type"] = type;
    EXPECT_TRUE(Model::Create(object.dump()).ok()) << type << Error(object);
  }
}

}  // namespace
}  // namespace forebay::models
