// Every family equals its reference implementation: logits, log-probabilities, loss and every
// gradient, packed or apart, in both layouts, with and without recomputation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
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

struct Case {
  std::string family, name;
  ForwardOptions options;
  int64_t rows, length;
  std::vector<int64_t> row_of, start_of;  // of the three sequences
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.family << c.name; }

class ParityTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    golden_ = LoadGolden(FOREBAY_SOURCE_DIR, GetParam().family);
    for (int i = 0; i < 3; ++i) {
      const auto ids = golden_.reference.at("seq" + std::to_string(i) + ".input_ids").as<int32_t>();
      sequences_.emplace_back(ids.begin(), ids.end());
    }
  }
  void TearDown() override { EXPECT_EQ(TestClient().live_buffers(), 0); }

  PackedRows Rows() const {
    const Case& c = GetParam();
    PackedRows rows(c.rows, c.length);
    for (size_t i = 0; i < 3; ++i) {
      rows.Place(c.row_of[i], c.start_of[i], static_cast<int32_t>(i) + 1, sequences_[i]);
    }
    return rows;
  }
  // Where token t of sequence i lies among all rows' tokens.
  size_t At(size_t i, size_t t) const {
    const Case& c = GetParam();
    return static_cast<size_t>(c.row_of[i] * c.length + c.start_of[i]) + t;
  }
  std::span<const float> Reference(const std::string& name) const {
    return golden_.reference.at(name).as<float>();
  }

  Golden golden_;
  std::vector<std::vector<int32_t>> sequences_;
};

TEST_P(ParityTest, LogitsEqualTheReference) {
  const ForwardOptions& options = GetParam().options;
  TestProgram program("logits");
  const ParamValues params =
      program.Inputs(golden_.model->FromCheckpoint(golden_.checkpoint, options.layout).value());
  const Value hidden = golden_.model->Hidden(params, Rows().Inputs(&program), options);
  const std::vector<float> logits =
      program.Run({xla::Linear(hidden, golden_.model->Head(params))})[0];
  const auto vocab = static_cast<size_t>(golden_.model->config().vocab_size);
  for (size_t i = 0; i < 3; ++i) {
    const std::span<const float> ours(logits.data() + At(i, 0) * vocab,
                                      sequences_[i].size() * vocab);
    EXPECT_LT(MaxDifference(ours, Reference("seq" + std::to_string(i) + ".logits")), 2e-4) << i;
  }
}

// The loss of the reference: -sum of w_t * logprob_t / 107, w alternating 1 and -0.5.
TEST_P(ParityTest, LogprobsLossAndGradientsEqualTheReference) {
  const Case& c = GetParam();
  TestProgram program("gradients");
  const weights::TensorMap tensors =
      golden_.model->FromCheckpoint(golden_.checkpoint, c.options.layout).value();
  const ParamValues params = program.Inputs(tensors);
  std::vector<int32_t> targets(static_cast<size_t>(c.rows * c.length), -1);
  std::vector<float> weights(targets.size(), 0);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t t = 0; t + 1 < sequences_[i].size(); ++t) {
      targets[At(i, t)] = sequences_[i][t + 1];
      weights[At(i, t)] = t % 2 == 0 ? 1.0F : -0.5F;
    }
  }
  const int64_t count = c.rows * c.length;
  const Value hidden = golden_.model->Hidden(params, Rows().Inputs(&program), c.options);
  const Value logprobs =
      ChunkedLogprobs(xla::Reshape(hidden, {count, golden_.model->config().width}),
                      golden_.model->Head(params), program.Input(S32({count}, targets)), 1.0, 48);
  const Value loss =
      xla::ReduceSum(logprobs * program.Input(F32({count}, weights)), {0}) * (-1.0 / 107);
  std::vector<Value> results = {loss, logprobs}, wrt;
  for (const auto& [name, value] : params) wrt.push_back(value);
  for (const Value& gradient : xla::Gradients(loss, wrt)) results.push_back(gradient);
  const std::vector<std::vector<float>> values = program.Run(results);

  EXPECT_NEAR(values[0][0], Reference("loss")[0], 1e-5);
  for (size_t i = 0; i < 3; ++i) {
    const std::span<const float> ours(values[1].data() + At(i, 0), sequences_[i].size() - 1);
    EXPECT_LT(MaxDifference(ours, Reference("seq" + std::to_string(i) + ".logprobs")), 1e-4) << i;
  }
  weights::TensorMap gradients;
  size_t next = 2;
  for (const auto& [name, tensor] : tensors)
    gradients[name] = F32(tensor.shape().dims, values[next++]);
  gradients = golden_.model->ToCheckpoint(gradients, c.options.layout).value();
  EXPECT_EQ(gradients.size(), golden_.checkpoint.size());
  for (const auto& [name, gradient] : gradients) {
    const std::span<const float> expected = Reference("grad." + name);
    EXPECT_LT(MaxDifference(gradient.as<float>(), expected), 1e-4 * MaxMagnitude(expected)) << name;
  }
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return info.param.family + info.param.name;
}

const ForwardOptions kPlain{.layout = LayerLayout::kPerLayer, .remat = false};
const ForwardOptions kRemat{.layout = LayerLayout::kPerLayer, .remat = true};
const ForwardOptions kScan{.layout = LayerLayout::kStacked, .remat = true};
const ForwardOptions kBlocks{.attention = AttentionForm::kBlocks};
const ForwardOptions kScanBlocks{
    .layout = LayerLayout::kStacked, .remat = true, .attention = AttentionForm::kBlocks};
const ForwardOptions kHost{.attention = AttentionForm::kHost};
const ForwardOptions kScanHost{
    .layout = LayerLayout::kStacked, .remat = true, .attention = AttentionForm::kHost};

// Lengths 37, 23 and 50. A row of 257 needs blocks of unequal size in attention.
INSTANTIATE_TEST_SUITE_P(
    Llama, ParityTest,
    testing::Values(
        Case{"llama", "Apart", kPlain, 3, 50, {0, 1, 2}, {0, 0, 0}},
        Case{"llama", "ApartStacked", kScan, 3, 50, {0, 1, 2}, {0, 0, 0}},
        Case{"llama", "PackedTight", kPlain, 1, 110, {0, 0, 0}, {0, 37, 60}},
        Case{"llama", "PackedTightRemat", kRemat, 1, 110, {0, 0, 0}, {0, 37, 60}},
        Case{"llama", "PackedWithGaps", kPlain, 1, 128, {0, 0, 0}, {5, 43, 70}},
        Case{"llama", "PackedLongRow", kPlain, 1, 257, {0, 0, 0}, {200, 3, 100}},
        Case{"llama", "PackedLongRowStacked", kScan, 1, 257, {0, 0, 0}, {200, 3, 100}},
        Case{"llama", "PackedBlocks", kBlocks, 1, 257, {0, 0, 0}, {200, 3, 100}},
        Case{"llama", "PackedBlocksStacked", kScanBlocks, 1, 300, {0, 0, 0}, {240, 3, 110}},
        Case{"llama", "PackedHost", kHost, 1, 257, {0, 0, 0}, {200, 3, 100}},
        Case{"llama", "PackedHostStacked", kScanHost, 1, 300, {0, 0, 0}, {240, 3, 110}},
        Case{"llama", "TwoRows", kPlain, 2, 80, {0, 0, 1}, {0, 40, 11}},
        Case{"llama", "TwoRowsStacked", kScan, 2, 80, {0, 0, 1}, {0, 40, 11}}),
    CaseName);

std::vector<Case> OtherFamilies() {
  std::vector<Case> cases;
  for (const std::string family : {"llama3_rope", "qwen2", "qwen3", "qwen3_moe", "gemma3"}) {
    cases.push_back({family, "Apart", kPlain, 3, 50, {0, 1, 2}, {0, 0, 0}});
    cases.push_back({family, "PackedLongRowStacked", kScan, 1, 257, {0, 0, 0}, {200, 3, 100}});
    cases.push_back({family, "TwoRowsBlocksStacked", kScanBlocks, 2, 80, {0, 0, 1}, {0, 40, 11}});
    cases.push_back({family, "TwoRowsHostStacked", kScanHost, 2, 80, {0, 0, 1}, {0, 40, 11}});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Families, ParityTest, testing::ValuesIn(OtherFamilies()), CaseName);

}  // namespace
}  // namespace forebay::models
