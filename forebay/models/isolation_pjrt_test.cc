// What must not matter does not matter: neighbours in a row, and the content of padding.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/models/program_testing.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/ops.h"

namespace forebay::models {
namespace {

using xla::Value;

constexpr int64_t kLength = 96;
constexpr int64_t kStart = 20, kCount = 40;  // the segment that is watched

class IsolationTest : public testing::TestWithParam<ForwardOptions> {
 protected:
  void SetUp() override { golden_ = LoadGolden(FOREBAY_SOURCE_DIR); }

  // A row of [segment 1: 20 tokens][segment 2: 40][segment 3: 16][padding: 20].
  static PackedRows Row(int32_t first_neighbour, int32_t second_neighbour) {
    PackedRows rows(1, kLength);
    std::vector<int32_t> watched(kCount);
    for (size_t i = 0; i < watched.size(); ++i) watched[i] = static_cast<int32_t>(i * 37 % 500);
    rows.Place(0, 0, 1, std::vector<int32_t>(20, first_neighbour));
    rows.Place(0, kStart, 2, watched);
    rows.Place(0, kStart + kCount, 3, std::vector<int32_t>(16, second_neighbour));
    return rows;
  }

  // Loss, hidden states and gradients; `cotangents` weigh the log-probabilities.
  std::vector<std::vector<float>> Run(const PackedRows& rows, const weights::TensorMap& checkpoint,
                                      const std::vector<float>& weights,
                                      const std::vector<int32_t>& targets,
                                      bool nan_safe_loss = true) {
    const ForwardOptions& options = GetParam();
    TestProgram program("isolation");
    const ParamValues params =
        program.Inputs(golden_.model->FromCheckpoint(checkpoint, options.layout).value());
    const Value hidden = golden_.model->Hidden(params, rows.Inputs(&program), options);
    const Value logprobs = ChunkedLogprobs(
        xla::Reshape(hidden, {kLength, golden_.model->config().width}), golden_.model->Head(params),
        program.Input(S32({kLength}, targets)), 0.7, 40);
    const Value terms = logprobs * program.Input(F32({kLength}, weights));
    // A loss whose masked terms are NaN sends NaN cotangents back to padding unless it selects.
    const Value real =
        xla::Compare(program.Input(S32({kLength}, targets)),
                     xla::Constant(program.graph(), 0, xla::DType::kS32), xla::Comparison::kGe);
    const Value zero = xla::Constant(program.graph(), 0, xla::DType::kF32);
    const Value loss = xla::ReduceSum(nan_safe_loss ? xla::Select(real, terms, zero) : terms, {0});
    std::vector<Value> results = {loss, hidden}, wrt;
    for (const auto& [name, value] : params) wrt.push_back(value);
    for (const Value& gradient : xla::Gradients(loss, wrt)) results.push_back(gradient);
    return program.Run(results);
  }

  static std::vector<float> Ones(float padding) {
    std::vector<float> weights(kLength, padding);
    for (int64_t t = kStart; t < kStart + kCount - 1; ++t) weights[static_cast<size_t>(t)] = 1;
    return weights;
  }
  static std::vector<int32_t> Targets(const PackedRows& rows, int32_t padding) {
    std::vector<int32_t> targets(kLength, padding);
    for (int64_t t = kStart; t < kStart + kCount - 1; ++t) {
      targets[static_cast<size_t>(t)] = rows.tokens[static_cast<size_t>(t) + 1];
    }
    return targets;
  }

  Golden golden_;
};

TEST_P(IsolationTest, T6_ANeighbourDoesNotLeakIntoASegment) {
  const PackedRows a = Row(3, 5), b = Row(411, 77);
  const auto before = Run(a, golden_.checkpoint, Ones(0), Targets(a, -1));
  const auto after = Run(b, golden_.checkpoint, Ones(0), Targets(b, -1));
  EXPECT_EQ(before[0], after[0]);
  const auto width = static_cast<size_t>(golden_.model->config().width);
  const auto watched = [&](const std::vector<float>& hidden) {
    return std::vector<float>(hidden.begin() + kStart * static_cast<int64_t>(width),
                              hidden.begin() + (kStart + kCount) * static_cast<int64_t>(width));
  };
  EXPECT_EQ(watched(before[1]), watched(after[1]));
  EXPECT_NE(before[1], after[1]);  // the neighbours themselves did change
  for (size_t i = 2; i < before.size(); ++i) EXPECT_EQ(before[i], after[i]) << "gradient " << i - 2;
}

TEST_P(IsolationTest, T6_LaterTokensDoNotLeakIntoEarlierOnes) {
  const PackedRows a = Row(3, 5);
  PackedRows b = a;
  for (int64_t t = kStart + 30; t < kStart + kCount; ++t) b.tokens[static_cast<size_t>(t)] = 9;
  const auto before = Run(a, golden_.checkpoint, Ones(0), Targets(a, -1));
  const auto after = Run(b, golden_.checkpoint, Ones(0), Targets(b, -1));
  const auto width = static_cast<int64_t>(golden_.model->config().width);
  const auto early = [&](const std::vector<float>& hidden) {
    return std::vector<float>(hidden.begin() + kStart * width,
                              hidden.begin() + (kStart + 30) * width);
  };
  EXPECT_EQ(early(before[1]), early(after[1]));
}

// Tokens out of range, wild positions, targets, and NaN in the loss weights of padding.
TEST_P(IsolationTest, N3_PaddingMayHoldAnything) {
  const PackedRows clean = Row(3, 5);
  PackedRows dirty = clean;
  std::vector<int32_t> targets = Targets(clean, -1);
  std::vector<float> weights = Ones(0);
  const auto expected = Run(clean, golden_.checkpoint, weights, targets, false);
  for (size_t t = kStart + kCount + 16; t < kLength; ++t) {
    dirty.tokens[t] = t % 2 == 0 ? -7 : std::numeric_limits<int32_t>::max();
    dirty.positions[t] = t % 3 == 0 ? std::numeric_limits<int32_t>::min() : 1 << 30;
    weights[t] = std::numeric_limits<float>::quiet_NaN();
    targets[t] = t % 2 == 0 ? -1 : std::numeric_limits<int32_t>::min();
  }
  const auto values = Run(dirty, golden_.checkpoint, weights, targets);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(expected[i], values[i]) << "result " << i;
  // Even a loss that does not select: its value is NaN, the gradients are not.
  const auto careless = Run(dirty, golden_.checkpoint, weights, targets, false);
  EXPECT_TRUE(std::isnan(careless[0][0]));
  for (size_t i = 1; i < expected.size(); ++i)
    EXPECT_EQ(expected[i], careless[i]) << "result " << i;
}

// A row of the embedding that only padding uses is NaN (an untied head, or the logits would be NaN
// themselves).
TEST_P(IsolationTest, N3_NanEmbeddingOfAPaddingTokenIsNotRead) {
  std::string config = golden_.config_json;
  const std::string tied = "\"tie_word_embeddings\": true";
  config.replace(config.find(tied), tied.size(), "\"tie_word_embeddings\": false");
  golden_.model = Model::Create(config).value();
  weights::TensorMap checkpoint = golden_.checkpoint;
  const weights::HostTensor embed = checkpoint.at("model.embed_tokens.weight");
  checkpoint["lm_head.weight"] = embed;
  PackedRows rows = Row(3, 5);
  for (size_t t = kStart + kCount + 16; t < kLength; ++t) rows.tokens[t] = 511;
  const auto clean = Run(rows, checkpoint, Ones(0), Targets(rows, -1));
  std::vector<float> poisoned(embed.as<float>().begin(), embed.as<float>().end());
  for (size_t i = 511 * 64; i < poisoned.size(); ++i) {
    poisoned[i] = std::numeric_limits<float>::quiet_NaN();
  }
  checkpoint["model.embed_tokens.weight"] = F32({512, 64}, poisoned);
  const auto values = Run(rows, checkpoint, Ones(0), Targets(rows, -1));
  for (size_t i = 0; i < clean.size(); ++i) EXPECT_EQ(clean[i], values[i]) << "result " << i;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, IsolationTest,
    testing::Values(ForwardOptions{LayerLayout::kPerLayer, false},
                    ForwardOptions{LayerLayout::kPerLayer, true},
                    ForwardOptions{LayerLayout::kStacked, true},
                    ForwardOptions{LayerLayout::kStacked, true, AttentionForm::kBlocks},
                    ForwardOptions{LayerLayout::kStacked, true, AttentionForm::kHost}),
    [](const testing::TestParamInfo<ForwardOptions>& info) {
      if (info.param.attention == AttentionForm::kBlocks) {
        return std::string("Blocks");
      }
      if (info.param.attention == AttentionForm::kHost) {
        return std::string("Host");
      }
      if (info.param.layout == LayerLayout::kStacked) return std::string("Stacked");
      return std::string(info.param.remat ? "Remat" : "Plain");
    });

}  // namespace
}  // namespace forebay::models
