// GGUF files of the families beside llama become the Hugging Face checkpoints that they were made
// from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/gguf_model.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/weights_testing.h"

namespace forebay::weights {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string ParityFile(const std::string& family, const std::string& name) {
  return std::string(FOREBAY_SOURCE_DIR) + "/tests/goldens/parity/" + family + "/" + name;
}

// As llama.cpp's converter names a part of a layer.
std::string GgufPart(const std::string& part, bool gemma) {
  static const std::map<std::string, std::string> kNames = {
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"self_attn.o_proj", "attn_output"},
      {"pre_feedforward_layernorm", "ffn_norm"},
      {"post_feedforward_layernorm", "post_ffw_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.gate", "ffn_gate_inp"}};
  if (part == "post_attention_layernorm") return gemma ? "post_attention_norm" : "ffn_norm";
  return kNames.at(part);
}

struct Family {
  std::string architecture, folder;
};

GgufBuilder Build(const Family& family) {
  const Json config = Json::parse(*ReadFile(ParityFile(family.folder, "config.json")));
  const TensorMap checkpoint =
      ReadSafetensors(ParityFile(family.folder, "model.safetensors")).value();
  const bool gemma = family.architecture == "gemma3";
  GgufBuilder builder;
  builder.String("general.architecture", family.architecture);
  const auto size = [&](const char* key, const char* from) {
    builder.Uint(family.architecture + "." + key, config.at(from).get<uint32_t>());
  };
  size("block_count", "num_hidden_layers");
  size("context_length", "max_position_embeddings");
  size("embedding_length", "hidden_size");
  size("feed_forward_length", "intermediate_size");
  size("attention.head_count", "num_attention_heads");
  size("attention.head_count_kv", "num_key_value_heads");
  if (config.contains("head_dim")) size("attention.key_length", "head_dim");
  builder.Float(family.architecture + ".rope.freq_base", config.at("rope_theta").get<float>());
  builder.Float(family.architecture + ".attention.layer_norm_rms_epsilon",
                config.at("rms_norm_eps").get<float>());
  if (gemma) {
    size("attention.sliding_window", "sliding_window");
    size("attention.sliding_window_pattern", "sliding_window_pattern");
  }
  if (family.architecture == "qwen3moe") {
    size("expert_count", "num_experts");
    size("expert_used_count", "num_experts_per_tok");
    size("expert_feed_forward_length", "moe_intermediate_size");
  }
  struct Stack {
    std::vector<int64_t> dims;
    std::vector<float> values;
  };
  std::map<std::string, Stack> experts;  // in the order of their numbers: eight of them
  for (const auto& [name, tensor] : checkpoint) {
    std::vector<float> values(tensor.as<float>().begin(), tensor.as<float>().end());
    if (gemma && name.find("norm") != std::string::npos) {
      for (float& value : values) value += 1;
    }
    const std::string prefix = "model.layers.";
    std::string gguf;
    if (name == "model.embed_tokens.weight") gguf = "token_embd.weight";
    if (name == "model.norm.weight") gguf = "output_norm.weight";
    if (name == "lm_head.weight") gguf = "output.weight";
    if (gguf.empty()) {
      const size_t dot = name.find('.', prefix.size()), last = name.rfind('.');
      const std::string layer = name.substr(prefix.size(), dot - prefix.size());
      const std::string part = name.substr(dot + 1, last - dot - 1);
      if (part.find("experts") != std::string::npos) {
        const std::string kind = part.substr(part.rfind('.') + 1);  // "gate_proj"
        Stack& stack =
            experts["blk." + layer + ".ffn_" + kind.substr(0, kind.find('_')) + "_exps.weight"];
        stack.dims = tensor.shape().dims;
        stack.values.insert(stack.values.end(), values.begin(), values.end());
        continue;
      }
      gguf = "blk." + layer + "." + GgufPart(part, gemma) + name.substr(last);
    }
    builder.FloatTensor(gguf, tensor.shape().dims, values);
  }
  for (auto& [name, stack] : experts) {
    stack.dims.insert(stack.dims.begin(), 8);
    builder.FloatTensor(name, stack.dims, stack.values);
  }
  return builder;
}

class GgufFamiliesTest : public testing::TestWithParam<Family> {};

TEST_P(GgufFamiliesTest, TensorsAndConfigAreThoseOfTheCheckpoint) {
  const Family& family = GetParam();
  const std::string bytes = Build(family).Build();
  const auto file = GgufFile::Parse(BytesOf(bytes));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto tensors = GgufTensors(*file);
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  const TensorMap expected =
      ReadSafetensors(ParityFile(family.folder, "model.safetensors")).value();
  ASSERT_EQ(tensors->size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(tensors->contains(name)) << name;
    ASSERT_EQ(tensors->at(name).shape(), tensor.shape()) << name;
    const auto a = tensors->at(name).as<float>(), b = tensor.as<float>();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-7) << name;
  }
  const Json config = Json::parse(GgufConfigJson(*file).value());
  const Json reference = Json::parse(*ReadFile(ParityFile(family.folder, "config.json")));
  for (const auto& [key, value] : config.items()) {
    if (key == "tie_word_embeddings" && !reference.contains(key)) continue;  // Gemma's default
    if (key == "head_dim" && !reference.contains(key)) continue;
    EXPECT_EQ(value, reference[key]) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamiliesTest,
                         testing::Values(Family{"qwen2", "qwen2"}, Family{"qwen3", "qwen3"},
                                         Family{"qwen3moe", "qwen3_moe"},
                                         Family{"gemma3", "gemma3"}),
                         [](const testing::TestParamInfo<Family>& info) {
                           return info.param.architecture;
                         });

Status Convert(const GgufBuilder& builder) {
  const std::string bytes = builder.Build();
  const auto file = GgufFile::Parse(BytesOf(bytes));
  if (!file.ok()) return file.status();
  FB_RETURN_IF_ERROR(GgufConfigJson(*file).status());
  return GgufTensors(*file).status();
}

TEST(GgufFamiliesErrors, AreSaidByName) {
  GgufBuilder unknown;
  unknown.String("general.architecture", "mamba");
  EXPECT_THAT(Convert(unknown).message(),
              HasSubstr("mamba is not supported (llama, qwen2, qwen3, qwen3moe, gemma3 are)"));
  GgufBuilder qwen = Build({"qwen3", "qwen3"});
  qwen.String("qwen3.rope.scaling.type", "yarn");
  EXPECT_THAT(Convert(qwen).message(), HasSubstr("qwen3.rope.scaling.type yarn"));
  GgufBuilder experts = Build({"qwen3", "qwen3"});
  experts.Uint("qwen3.expert_count", 4);
  EXPECT_THAT(Convert(experts).message(), HasSubstr("qwen3.expert_count"));
  GgufBuilder odd = Build({"qwen3moe", "qwen3_moe"});
  odd.FloatTensor("blk.7.ffn_up_exps.weight", {8, 2}, std::vector<float>(16));
  EXPECT_THAT(Convert(odd).message(), HasSubstr("blk.7.ffn_up_exps.weight"));
  GgufBuilder few = Build({"qwen3moe", "qwen3_moe"});
  few.FloatTensor("blk.0.ffn_up_exps.bias", {7, 2}, std::vector<float>(14));
  EXPECT_EQ(Convert(few).code(), StatusCode::kDataLoss);
  EXPECT_THAT(Convert(few).message(), HasSubstr("the model has 8 experts"));
}

TEST(GgufFamiliesErrors, Gemma3StretchesItsGlobalRotations) {
  GgufBuilder builder = Build({"gemma3", "gemma3"});
  builder.String("gemma3.rope.scaling.type", "linear");
  builder.Float("gemma3.rope.scaling.factor", 8);
  const std::string bytes = builder.Build();
  const Json config = Json::parse(GgufConfigJson(GgufFile::Parse(BytesOf(bytes)).value()).value());
  EXPECT_EQ(config["rope_scaling"], Json({{"rope_type", "linear"}, {"factor", 8.0}}));
}

}  // namespace
}  // namespace forebay::weights
