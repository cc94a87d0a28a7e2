// Goal: targets choose the linears that a user means, merging adds exactly what the formula says,
// and the export is what PEFT reads.
#include "forebay/learner/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/learner/layer_layout.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/models/model.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weights::HostTensor;
using weights::TensorMap;
using xla::DType;
using Strings = std::vector<std::string>;

HostTensor Tensor(const std::vector<int64_t>& dims, const std::vector<float>& values) {
  std::span<std::byte> bytes;
  HostTensor tensor = HostTensor::Allocate({DType::kF32, dims}, &bytes);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return tensor;
}

std::vector<models::ParamSpec> Specs() {
  std::vector<models::ParamSpec> out = {
      {.name = "model.embed_tokens.weight", .shape = {DType::kF32, {32, 4}}},
      {.name = "lm_head.weight", .shape = {DType::kF32, {32, 4}}},
      {.name = "model.norm.weight", .shape = {DType::kF32, {4}}, .decay = false}};
  for (const char* layer : {"1", "12"}) {
    const std::string prefix = std::string("model.layers.") + layer;
    out.push_back({.name = prefix + ".self_attn.q_proj.weight", .shape = {DType::kF32, {6, 4}}});
    out.push_back({.name = prefix + ".mlp.up_proj.weight", .shape = {DType::kF32, {8, 4}}});
  }
  return out;
}

Strings Names(const LoraOptions& options) {
  const auto specs = LoraSpecs(Specs(), options);
  if (!specs.ok()) return {specs.status().message()};
  Strings names;
  for (const auto& spec : *specs) names.push_back(spec.name);
  return names;
}

TEST(Lora, TargetsChooseLinears) {
  EXPECT_THAT(Names({.rank = 2, .targets = {"model.layers.12.mlp.up_proj"}}),
              ElementsAre("model.layers.12.mlp.up_proj.lora_A.weight",
                          "model.layers.12.mlp.up_proj.lora_B.weight"));
  EXPECT_EQ(Names({.rank = 2, .targets = {"q_proj"}}).size(), 4U);
  EXPECT_EQ(Names({.rank = 2, .targets = {"self_attn.q_proj", "mlp.up_proj"}}).size(), 8U);
  EXPECT_EQ(Names({.rank = 2, .targets = {"model.layers.1*.q_proj"}}).size(), 4U);
  EXPECT_EQ(Names({.rank = 2, .targets = {"*.1.*"}}).size(), 4U);
  EXPECT_EQ(Names({.rank = 2, .targets = {"all-linear"}}).size(), 8U);  // no embedding, no head
  EXPECT_EQ(Names({.rank = 2, .targets = {"lm_head"}}).size(), 2U);     // unless it is asked for
  const auto specs = LoraSpecs(Specs(), {.rank = 2, .targets = {"q_proj"}});
  EXPECT_EQ((*specs)[0].shape, (xla::Shape{DType::kF32, {2, 4}}));
  EXPECT_EQ((*specs)[1].shape, (xla::Shape{DType::kF32, {6, 2}}));
}

TEST(Lora, ATargetThatMatchesNothingIsRefusedWithWhatThereIs) {
  const auto specs = LoraSpecs(Specs(), {.rank = 2, .targets = {"q_proj", "query"}});
  ASSERT_FALSE(specs.ok());
  EXPECT_THAT(specs.status().message(), HasSubstr("\"query\" matches no linear"));
  EXPECT_THAT(specs.status().message(), HasSubstr("q_proj, up_proj"));
  EXPECT_FALSE(LoraSpecs(Specs(), {.rank = 2, .targets = {"norm"}}).ok());  // no matrix
}

TEST(Lora, BadOptionsAreNamed) {
  EXPECT_TRUE(ValidateLora({}).ok());
  EXPECT_THAT(ValidateLora({.rank = -1}).message(), HasSubstr("lora_rank is -1"));
  EXPECT_THAT(ValidateLora({.rank = 5000}).message(), HasSubstr("lora_rank"));
  EXPECT_THAT(ValidateLora({.rank = 1, .alpha = 0}).message(), HasSubstr("lora_alpha"));
  EXPECT_THAT(ValidateLora({.rank = 1, .targets = {}}).message(), HasSubstr("lora_targets"));
}

TEST(Lora, Scale) {
  EXPECT_EQ(LoraScale({.rank = 16, .alpha = 32}), 2);
  EXPECT_EQ(LoraScale({.rank = 16, .alpha = 32, .rslora = true}), 8);
}

TEST(Lora, MergingAddsTheScaledProduct) {
  const TensorMap base = {{"a.weight", Tensor({2, 3}, {1, 2, 3, 4, 5, 6})},
                          {"b.weight", Tensor({1}, {7})}};
  const TensorMap adapters = {{"a.lora_A.weight", Tensor({1, 3}, {1, 0, -1})},
                              {"a.lora_B.weight", Tensor({2, 1}, {2, 3})}};
  const auto merged = MergeAdapters(base, adapters, 0.5);
  ASSERT_TRUE(merged.ok());
  const auto got = merged->at("a.weight").as<float>();
  EXPECT_THAT(std::vector<float>(got.begin(), got.end()), ElementsAre(2, 2, 2, 5.5, 5, 4.5));
  EXPECT_EQ(merged->at("b.weight").as<float>()[0], 7);

  EXPECT_FALSE(MergeAdapters({}, adapters, 1).ok());
  TensorMap half = adapters;
  half.erase("a.lora_B.weight");
  EXPECT_THAT(MergeAdapters(base, half, 1).status().message(), HasSubstr("no lora_B"));
  TensorMap wrong = adapters;
  wrong["a.lora_B.weight"] = Tensor({3, 1}, {1, 2, 3});
  EXPECT_THAT(MergeAdapters(base, wrong, 1).status().message(), HasSubstr("f32[3,1]"));
}

TEST(Lora, NewAdaptersAddNothingAndDependOnTheSeed) {
  const auto specs = LoraSpecs(Specs(), {.rank = 3, .targets = {"q_proj"}});
  const TensorMap first = InitialAdapters(*specs, 5);
  EXPECT_EQ(weights::Digest(first), weights::Digest(InitialAdapters(*specs, 5)));
  EXPECT_NE(weights::Digest(first), weights::Digest(InitialAdapters(*specs, 6)));
  for (const auto& [name, tensor] : first) {
    float largest = 0;
    for (const float x : tensor.as<float>()) largest = std::max(largest, std::abs(x));
    if (name.ends_with("lora_B.weight")) {
      EXPECT_EQ(largest, 0);
    } else {
      EXPECT_GT(largest, 0.1F);
      EXPECT_LE(largest, 0.5F);  // 1 / sqrt(4)
    }
  }
}

TEST(Lora, TheExportIsWhatPeftReads) {
  const std::string folder = MakeTestFolder();
  const auto specs = LoraSpecs(Specs(), {.rank = 2, .targets = {"q_proj"}});
  const TensorMap adapters = InitialAdapters(*specs, 1);
  ASSERT_TRUE(ExportPeft(folder, {.rank = 2, .alpha = 8, .rslora = true}, adapters, "base").ok());
  const auto read = weights::ReadSafetensors(folder + "/adapter_model.safetensors");
  ASSERT_TRUE(read.ok());
  Strings names;
  for (const auto& [name, tensor] : *read) names.push_back(name);
  EXPECT_THAT(names,
              ElementsAre("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight",
                          "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight",
                          "base_model.model.model.layers.12.self_attn.q_proj.lora_A.weight",
                          "base_model.model.model.layers.12.self_attn.q_proj.lora_B.weight"));
  const auto config = nlohmann::json::parse(*ReadFile(folder + "/adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["use_rslora"], true);
  EXPECT_EQ(config["base_model_name_or_path"], "base");
  EXPECT_EQ(config["target_modules"],
            (Strings{"model.layers.1.self_attn.q_proj", "model.layers.12.self_attn.q_proj"}));
  std::filesystem::remove_all(folder);
}

TEST(LayerLayout, ALayersNameIsTheStackedOneAndANumber) {
  const auto layer = [](const std::string& name) {
    const LayerOfName of = LayerOf(name);
    return std::pair(of.stacked_name, of.layer);
  };
  EXPECT_EQ(layer("model.layers.12.mlp.experts.*.w"),
            std::pair(std::string("model.layers.*.mlp.experts.*.w"), int64_t{12}));
  for (const char* none : {"model.layers.*.mlp.w", "model.norm.weight", "x", "a..b", "lm_head.7"}) {
    EXPECT_EQ(layer(none), std::pair(std::string(none), int64_t{0}));
  }
}

TEST(LayerLayout, StackedAxesAreSplitAndJoined) {
  const TensorMap stacked = {{"m.layers.*.e.*.w", Tensor({2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7})},
                             {"n", Tensor({1}, {9})}};
  EXPECT_EQ(StackedAxes("m.layers.*.e.*.w"), 2);
  const TensorMap split = SplitLayers(stacked);
  ASSERT_EQ(split.size(), 5U);
  EXPECT_EQ(split.at("m.layers.1.e.0.w").as<float>()[1], 5);
  const std::vector<models::ParamSpec> wanted = {
      {.name = "m.layers.*.e.*.w", .shape = {DType::kF32, {2, 2, 2}}},
      {.name = "n", .shape = {DType::kF32, {1}}}};
  const auto joined = JoinLayers(split, wanted, "it");
  ASSERT_TRUE(joined.ok()) << joined.status().ToString();
  EXPECT_EQ(weights::Digest(*joined), weights::Digest(stacked));

  TensorMap bad = split;
  bad.erase("m.layers.1.e.0.w");
  EXPECT_THAT(JoinLayers(bad, wanted, "it").status().message(),
              HasSubstr("it has no \"m.layers.1.e.0.w\""));
  bad = split;
  bad["x"] = Tensor({1}, {1});
  EXPECT_THAT(JoinLayers(bad, wanted, "it").status().message(), HasSubstr("\"x\""));
  bad = split;
  bad["n"] = Tensor({2}, {1, 2});
  EXPECT_THAT(JoinLayers(bad, wanted, "it").status().message(), HasSubstr("expected f32[1]"));
}

}  // namespace
}  // namespace forebay::learner
