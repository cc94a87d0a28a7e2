// bf16 compute over f32 parameters: near the reference for every family, with sums and gradients in
// f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/models/layers.h"
#include "forebay/models/model.h"
#include "forebay/models/program_testing.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::DType;
using xla::Value;
using xla::Values;

// 4096 ones add up to 4096; sums in bf16 would stop at 256. 257 has no bf16.
TEST(Bf16, ProductsAndGradientsOfWeightsAccumulateInF32) {
  constexpr int64_t kIn = 4096, kTokens = 257;
  TestProgram program("project");
  const Value x = program.Input(F32({kTokens, kIn}, std::vector<float>(kTokens * kIn, 1)));
  const Value weight = program.Input(F32({1, kIn}, std::vector<float>(kIn, 1)));
  const Value out = Project(As(x, DType::kBF16), weight);
  EXPECT_EQ(out.dtype(), DType::kBF16);
  const Value loss = xla::ReduceSum(As(out, DType::kF32), {0, 1});
  const Value wrt[] = {weight};
  const auto values = program.Run({As(out, DType::kF32), xla::Gradients(loss, wrt)[0]});
  for (const float value : values[0]) ASSERT_EQ(value, 4096);
  for (const float value : values[1]) ASSERT_EQ(value, 257);
}

// An f32 weight between two bf16 numbers is rounded for the product, not in what it is trained by.
TEST(Bf16, NormsAreComputedInF32) {
  TestProgram program("norm");
  const std::vector<float> x = {300, 400, 0, 0};  // squares beyond bf16's eight bits
  const Value normed = RmsNorm(As(program.Input(F32({1, 4}, x)), DType::kBF16),
                               program.Input(F32({4}, {1, 1, 1, 1})), 0);
  const auto values = program.Run({As(normed, DType::kF32)});
  EXPECT_NEAR(values[0][0], 1.2, 1.2 / 256);
  EXPECT_NEAR(values[0][1], 1.6, 1.6 / 256);
}

struct Case {
  std::string family;
  ForwardOptions options;
};

class Bf16ModelTest : public testing::TestWithParam<Case> {};

// |a - b| / |b|, over all entries.
double RelativeError(std::span<const float> a, std::span<const float> b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / (size + 1e-30));
}

TEST_P(Bf16ModelTest, LogprobsAndGradientsAreNearTheReference) {
  const Golden golden = LoadGolden(FOREBAY_SOURCE_DIR, GetParam().family);
  ForwardOptions options = GetParam().options;
  options.compute = DType::kBF16;
  PackedRows rows(1, 128);
  std::vector<int32_t> targets(128, -1);
  std::vector<float> weights(128, 0);
  const int64_t starts[] = {3, 43, 70};
  for (size_t i = 0; i < 3; ++i) {
    const auto ids = golden.reference.at("seq" + std::to_string(i) + ".input_ids").as<int32_t>();
    rows.Place(0, starts[i], static_cast<int32_t>(i) + 1, ids);
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      targets[static_cast<size_t>(starts[i]) + t] = ids[t + 1];
      weights[static_cast<size_t>(starts[i]) + t] = t % 2 == 0 ? 1.0F : -0.5F;
    }
  }
  TestProgram program("bf16");
  const weights::TensorMap tensors =
      golden.model->FromCheckpoint(golden.checkpoint, options.layout).value();
  const ParamValues params = program.Inputs(tensors);
  const Value hidden = golden.model->Hidden(params, rows.Inputs(&program), options);
  EXPECT_EQ(hidden.dtype(), DType::kF32);
  const Value logprobs =
      ChunkedLogprobs(As(xla::Reshape(hidden, {128, golden.model->config().width}), DType::kBF16),
                      golden.model->Head(params), program.Input(S32({128}, targets)), 1.0, 50);
  const Value loss =
      xla::ReduceSum(logprobs * program.Input(F32({128}, weights)), {0}) * (-1.0 / 107);
  Values results = {loss, logprobs}, wrt;
  for (const auto& [name, value] : params) wrt.push_back(value);
  for (const Value& gradient : xla::Gradients(loss, wrt)) {
    EXPECT_EQ(gradient.dtype(), DType::kF32);
    results.push_back(gradient);
  }
  const auto values = program.Run(results);

  EXPECT_NEAR(values[0][0], golden.reference.at("loss").as<float>()[0], 0.02);
  for (size_t i = 0; i < 3; ++i) {
    const auto expected = golden.reference.at("seq" + std::to_string(i) + ".logprobs").as<float>();
    const std::span<const float> ours(values[1].data() + starts[i], expected.size());
    EXPECT_LT(MaxDifference(ours, expected), 0.1) << "sequence " << i;
  }
  weights::TensorMap gradients;
  size_t next = 2;
  for (const auto& [name, tensor] : tensors) {
    gradients[name] = F32(tensor.shape().dims, values[next++]);
  }
  gradients = golden.model->ToCheckpoint(gradients, options.layout).value();
  // Rounding sends a few tokens to other experts, which then learn from others.
  const double tolerance = GetParam().family == "qwen3_moe" ? 0.35 : 0.08;
  double worst = 0;
  for (const auto& [name, gradient] : gradients) {
    const auto expected = golden.reference.at("grad." + name).as<float>();
    const double error = RelativeError(gradient.as<float>(), expected);
    worst = std::max(worst, error);
    EXPECT_LT(error, tolerance) << name;
  }
  EXPECT_GT(worst, 1e-4);  // it did round
}

const ForwardOptions kPlain{.layout = LayerLayout::kPerLayer};
const ForwardOptions kScanBlocks{
    .layout = LayerLayout::kStacked, .remat = true, .attention = AttentionForm::kBlocks};
const ForwardOptions kHost{.attention = AttentionForm::kHost};

INSTANTIATE_TEST_SUITE_P(
    Families, Bf16ModelTest,
    testing::Values(Case{"llama", kPlain}, Case{"llama", kScanBlocks}, Case{"qwen2", kScanBlocks},
                    Case{"qwen3", kScanBlocks}, Case{"qwen3_moe", kScanBlocks},
                    Case{"gemma3", kScanBlocks}, Case{"gemma3", kHost}, Case{"qwen3", kHost}),
    [](const testing::TestParamInfo<Case>& info) {
      const ForwardOptions& options = info.param.options;
      return info.param.family + (options.attention == AttentionForm::kHost ? "Host"
                                  : options.layout == LayerLayout::kStacked ? "Stacked"
                                                                            : "Plain");
    });

}  // namespace
}  // namespace forebay::models
