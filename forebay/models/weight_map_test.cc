// Checkpoints go in and out whole, or not at all.
#include "forebay/models/weight_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/models/program_testing.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class WeightMapTest : public testing::Test {
 protected:
  void SetUp() override {
    golden_ = LoadGolden(FOREBAY_SOURCE_DIR);
    std::string config = golden_.config_json;
    const std::string tied = "\"tie_word_embeddings\": true";
    config.replace(config.find(tied), tied.size(), "\"tie_word_embeddings\": false");
    untied_ = Model::Create(config).value();
  }
  std::string Refusal(const weights::TensorMap& tensors) const {
    const auto result = golden_.model->FromCheckpoint(tensors, LayerLayout::kStacked);
    if (result.ok()) return "accepted";
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    return result.status().message();
  }

  Golden golden_;
  std::unique_ptr<Model> untied_;
};

TEST_F(WeightMapTest, RoundTripInBothLayouts) {
  const std::string digest = weights::Digest(golden_.checkpoint);
  for (const LayerLayout layout : {LayerLayout::kPerLayer, LayerLayout::kStacked}) {
    const auto params = golden_.model->FromCheckpoint(golden_.checkpoint, layout).value();
    const auto specs = golden_.model->Params(layout);
    ASSERT_EQ(params.size(), specs.size());
    for (const ParamSpec& spec : specs)
      EXPECT_EQ(params.at(spec.name).shape(), spec.shape) << spec.name;
    EXPECT_EQ(weights::Digest(golden_.model->ToCheckpoint(params, layout).value()), digest);
  }
  EXPECT_EQ(golden_.model->Params(LayerLayout::kStacked).size(), 11u);
  EXPECT_EQ(golden_.model->Params(LayerLayout::kPerLayer).size(), 29u);
}

TEST_F(WeightMapTest, StackedLayersAreInOrder) {
  const auto stacked =
      golden_.model->FromCheckpoint(golden_.checkpoint, LayerLayout::kStacked).value();
  const auto all = stacked.at("model.layers.*.mlp.up_proj.weight").as<float>();
  const auto last = golden_.checkpoint.at("model.layers.2.mlp.up_proj.weight").as<float>();
  EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - static_cast<int64_t>(last.size())));
}

TEST_F(WeightMapTest, HalfPrecisionIsConverted) {
  weights::TensorMap half = golden_.checkpoint;
  for (auto& [name, tensor] : half)
    tensor = weights::ConvertFloat(tensor, xla::DType::kBF16).value();
  const auto params = golden_.model->FromCheckpoint(half, LayerLayout::kPerLayer).value();
  EXPECT_EQ(params.at("model.norm.weight").shape().dtype, xla::DType::kF32);
  const auto expected = golden_.checkpoint.at("model.embed_tokens.weight").as<float>();
  EXPECT_LT(MaxDifference(params.at("model.embed_tokens.weight").as<float>(), expected),
            MaxMagnitude(expected) / 250);
}

TEST_F(WeightMapTest, W1_RefusesMissingExtraAndMisshapenTensorsTogether) {
  weights::TensorMap bad = golden_.checkpoint;
  bad.erase("model.layers.1.self_attn.q_proj.weight");
  bad.erase("model.norm.weight");
  bad["model.layers.3.mlp.up_proj.weight"] = F32({1}, {0});
  bad["model.layers.0.self_attn.q_proj.bias"] = F32({1}, {0});
  bad["model.layers.0.mlp.down_proj.weight"] = F32({160, 64}, std::vector<float>(160 * 64));
  bad["model.layers.2.input_layernorm.weight"] = S32({64}, std::vector<int32_t>(64));
  EXPECT_THAT(
      Refusal(bad),
      AllOf(HasSubstr("2 missing: model.layers.1.self_attn.q_proj.weight, model.norm.weight"),
            HasSubstr("model.layers.3.mlp.up_proj.weight"),
            HasSubstr("model.layers.0.self_attn.q_proj.bias"),
            HasSubstr("model.layers.0.mlp.down_proj.weight (f32[160,64], expected f32[64,160])"),
            HasSubstr("model.layers.2.input_layernorm.weight (s32[64], expected a float type)")));
  EXPECT_THAT(Refusal({}), HasSubstr("29 missing"));
}

TEST_F(WeightMapTest, W1_ALongListIsCutAndCounted) {
  weights::TensorMap bad = golden_.checkpoint;
  for (int i = 0; i < 1000; ++i) bad[std::string(500, 'x') + std::to_string(i)] = F32({1}, {0});
  const std::string message = Refusal(bad);
  EXPECT_THAT(message, HasSubstr("1000 not of this model"));
  EXPECT_THAT(message, HasSubstr("and 988 more"));
  EXPECT_LT(message.size(), 4000u);
}

TEST_F(WeightMapTest, W1_ATiedHeadMustEqualTheEmbedding) {
  weights::TensorMap tensors = golden_.checkpoint;
  const weights::HostTensor embed = tensors.at("model.embed_tokens.weight");
  tensors["lm_head.weight"] = embed;
  EXPECT_EQ(Refusal(tensors), "accepted");
  std::vector<float> other(embed.as<float>().begin(), embed.as<float>().end());
  other[100] += 1;
  tensors["lm_head.weight"] = F32(embed.shape().dims, other);
  EXPECT_THAT(Refusal(tensors), HasSubstr("lm_head.weight (config.json ties it"));
}

TEST_F(WeightMapTest, W1_AnUntiedHeadIsNeeded) {
  EXPECT_THAT(
      untied_->FromCheckpoint(golden_.checkpoint, LayerLayout::kPerLayer).status().message(),
      HasSubstr("1 missing: lm_head.weight"));
  weights::TensorMap tensors = golden_.checkpoint;
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  const auto params = untied_->FromCheckpoint(tensors, LayerLayout::kStacked).value();
  EXPECT_EQ(params.size(), 12u);
  EXPECT_EQ(untied_->ToCheckpoint(params, LayerLayout::kStacked).value().size(), 30u);
}

TEST_F(WeightMapTest, W1_ToCheckpointNeedsEveryParameter) {
  auto params = golden_.model->FromCheckpoint(golden_.checkpoint, LayerLayout::kStacked).value();
  params.erase("model.layers.*.self_attn.o_proj.weight");
  EXPECT_THAT(golden_.model->ToCheckpoint(params, LayerLayout::kStacked).status().message(),
              HasSubstr("1 missing: model.layers.*.self_attn.o_proj.weight"));
  EXPECT_FALSE(golden_.model->ToCheckpoint(params, LayerLayout::kPerLayer).ok());
}

TEST_F(WeightMapTest, NormsDoNotDecay) {
  for (const ParamSpec& spec : golden_.model->Params(LayerLayout::kStacked)) {
    EXPECT_EQ(spec.decay, spec.name.find("norm") == std::string::npos) << spec.name;
  }
}

TEST_F(WeightMapTest, RandomWeightsAreAWholeModelAndFollowTheSeed) {
  const auto a = RandomWeights(*golden_.model, 7), b = RandomWeights(*golden_.model, 7);
  EXPECT_EQ(weights::Digest(a), weights::Digest(b));
  EXPECT_NE(weights::Digest(a), weights::Digest(RandomWeights(*golden_.model, 8)));
  EXPECT_EQ(Refusal(a), "accepted");
  double sum = 0, squares = 0;
  const auto values = a.at("model.embed_tokens.weight").as<float>();
  for (const float x : values) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.001);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.0005);
  for (const float x : a.at("model.norm.weight").as<float>()) ASSERT_EQ(x, 1);
}

}  // namespace
}  // namespace forebay::models
