// Goal: each optimizer's program does what its formula says (plain C++, several steps, clipping and
// decay in use), in both layer layouts, and changes nothing when a gradient is not finite.
#include "forebay/learner/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/block_quantize.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/optimizer_program_testing.h"
#include "forebay/learner/optimizer_reference_testing.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/models/model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;
using xla::DType;

// A wide and a tall matrix, one that the quantized form takes (in blocks of 32), an embedding and a
// vector without decay.
const std::vector<models::ParamSpec> kSpecs = {
    {.name = "model.embed_tokens.weight", .shape = {DType::kF32, {11, 6}}},
    {.name = "model.layers.0.mlp.up_proj.weight", .shape = {DType::kF32, {12, 6}}},
    {.name = "model.layers.0.mlp.down_proj.weight", .shape = {DType::kF32, {6, 12}}},
    {.name = "model.layers.0.mlp.gate_proj.weight", .shape = {DType::kF32, {65, 96}}},
    {.name = "model.norm.weight", .shape = {DType::kF32, {6}}, .decay = false}};

class OptimizerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { client_ = MakeClient().release(); }
  static void TearDownTestSuite() {
    EXPECT_EQ(client_->live_buffers(), 0);
    delete client_;
  }

  // On one device.
  struct Device : OptimizerProgram {
    Device(const OptimizerOptions& options, std::vector<models::ParamSpec> specs,
           const FloatArrays& params)
        : OptimizerProgram(*OptimizerTest::client_, options, std::move(specs), params) {}
  };

  static OptimizerOptions Options(OptimizerKind kind) {
    return {.kind = kind,
            .beta1 = 0.9,
            .beta2 = 0.97,
            .epsilon = 1e-4,
            .weight_decay = 0.1,
            .grad_clip = 3};
  }

  static inline xla::Client* client_ = nullptr;
};

TEST_F(OptimizerTest, EachMatchesThePlainReferenceOverSixSteps) {
  for (const OptimizerKind kind : kAllOptimizers) {
    const OptimizerOptions options = Options(kind);
    const FloatArrays params = RandomArrays(kSpecs, 1, 0.5);
    Device device(options, kSpecs, params);
    ReferenceOptimizer reference(options, kSpecs, params);
    for (uint64_t step = 0; step < 6; ++step) {
      const FloatArrays gradients = RandomArrays(kSpecs, 10 + step, step % 2 == 0 ? 1 : 0.01);
      const double rate = 1e-2 / static_cast<double>(step + 1);
      const float norm = device.Step(gradients, rate);
      EXPECT_NEAR(norm, reference.Step(gradients, rate), 1e-4 * norm);
      EXPECT_EQ(norm > options.grad_clip, step % 2 == 0);  // with and without clipping
    }
    for (size_t i = 0; i < kSpecs.size(); ++i) {
      const std::vector<float> got = device.Param(i);
      const std::vector<double>& want = reference.params()[i];
      // Rounded states: within what a few codes of 9 % do to steps of at most 1e-2.
      const bool rounded = kind == OptimizerKind::kAdamW8bit && got.size() >= 4096;
      double worst = 0;
      for (size_t k = 0; k < got.size(); ++k) {
        worst = std::max(worst, std::abs(static_cast<double>(got[k]) - want[k]));
      }
      EXPECT_LT(worst, rounded ? 5e-3 : 2e-5) << OptimizerKindName(kind) << " " << kSpecs[i].name;
      if (rounded) {
        EXPECT_GT(worst, 0);
      }
    }
  }
}

TEST_F(OptimizerTest, ANonFiniteGradientChangesNoBit) {
  for (const OptimizerKind kind : kAllOptimizers) {
    Device device(Options(kind), kSpecs, RandomArrays(kSpecs, 1, 0.5));
    device.Step(RandomArrays(kSpecs, 2, 1), 1e-2);
    const auto before = device.Save();
    FloatArrays broken = RandomArrays(kSpecs, 3, 1);
    broken[3][17] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(device.Step(broken, 1e-2)));
    EXPECT_EQ(device.Save(), before) << OptimizerKindName(kind);
  }
}

TEST_F(OptimizerTest, T4_ZeroLearningRateKeepsTheWeightsBitForBit) {
  for (const OptimizerKind kind : kAllOptimizers) {
    const FloatArrays params = RandomArrays(kSpecs, 1, 0.5);
    Device device(Options(kind), kSpecs, params);
    for (uint64_t step = 0; step < 3; ++step) device.Step(RandomArrays(kSpecs, 2 + step, 1), 0);
    for (size_t i = 0; i < kSpecs.size(); ++i) {
      EXPECT_EQ(device.Param(i), params[i]) << OptimizerKindName(kind);
    }
  }
}

TEST_F(OptimizerTest, StackedLayersAreUpdatedLikeLayersApart) {
  const std::vector<models::ParamSpec> apart = {
      {.name = "model.layers.0.mlp.up_proj.weight", .shape = {DType::kF32, {9, 6}}},
      {.name = "model.layers.1.mlp.up_proj.weight", .shape = {DType::kF32, {9, 6}}},
      {.name = "model.layers.0.norm.weight", .shape = {DType::kF32, {6}}, .decay = false},
      {.name = "model.layers.1.norm.weight", .shape = {DType::kF32, {6}}, .decay = false}};
  const std::vector<models::ParamSpec> stacked = {
      {.name = "model.layers.*.mlp.up_proj.weight", .shape = {DType::kF32, {2, 9, 6}}},
      {.name = "model.layers.*.norm.weight", .shape = {DType::kF32, {2, 6}}, .decay = false}};
  const auto join = [](const FloatArrays& a) {
    FloatArrays out = {a[0], a[2]};
    out[0].insert(out[0].end(), a[1].begin(), a[1].end());
    out[1].insert(out[1].end(), a[3].begin(), a[3].end());
    return out;
  };
  for (const OptimizerKind kind : kAllOptimizers) {
    const FloatArrays params = RandomArrays(apart, 1, 0.5);
    Device one(Options(kind), apart, params), other(Options(kind), stacked, join(params));
    for (uint64_t step = 0; step < 4; ++step) {
      // Layers of different size, so that a statistic over both would show.
      FloatArrays gradients = RandomArrays(apart, 5 + step, 1);
      for (float& g : gradients[1]) g *= 100;
      one.Step(gradients, 1e-2);
      other.Step(join(gradients), 1e-2);
    }
    const FloatArrays want = join({one.Param(0), one.Param(1), one.Param(2), one.Param(3)});
    for (size_t i = 0; i < 2; ++i) {
      const auto got = other.Param(i);
      for (size_t k = 0; k < got.size(); ++k) {
        EXPECT_NEAR(got[k], want[i][k], 2e-6) << OptimizerKindName(kind) << " " << k;
      }
    }
  }
}

// The random numbers of a tensor are those of its name and layer, however layers are laid out.
TEST_F(OptimizerTest, EightBitCodesDoNotDependOnTheLayoutOfTheLayers) {
  const std::string before = "model.layers.", after = ".mlp.experts.*.up_proj.weight";
  const std::vector<models::ParamSpec> stacked = {
      {.name = "model.embed_tokens.weight", .shape = {DType::kF32, {64, 64}}},
      {.name = before + "*" + after, .shape = {DType::kF32, {3, 2, 64, 64}}}};
  std::vector<models::ParamSpec> apart = {
      {.name = before + "0" + after, .shape = {DType::kF32, {2, 64, 64}}},
      {.name = before + "1" + after, .shape = {DType::kF32, {2, 64, 64}}},
      {.name = before + "2" + after, .shape = {DType::kF32, {2, 64, 64}}},
      stacked[0]};
  const auto join = [](const FloatArrays& a) {
    FloatArrays out = {a[3], a[0]};
    for (const size_t layer : {1, 2}) out[1].insert(out[1].end(), a[layer].begin(), a[layer].end());
    return out;
  };
  OptimizerOptions options = Options(OptimizerKind::kAdamW8bit);
  options.grad_clip = 0;  // the norm is summed in another order
  const FloatArrays params = RandomArrays(apart, 1, 0.5);
  Device one(options, apart, params), other(options, stacked, join(params));
  for (uint64_t step = 0; step < 4; ++step) {
    const FloatArrays gradients = RandomArrays(apart, 5 + step, 1);
    one.Step(gradients, 1e-2);
    other.Step(join(gradients), 1e-2);
  }
  const ByteArrays a = one.Save(), b = other.Save();
  // After the parameters: m8, m8_scale, v8, v8_scale of each.
  int64_t differ = 0, all = 0;
  for (const size_t slot : {0, 2}) {
    std::vector<std::byte> codes;
    for (size_t layer = 0; layer < 3; ++layer) {
      const auto& part = a[4 + 4 * layer + slot];
      codes.insert(codes.end(), part.begin(), part.end());
    }
    const auto& want = b[2 + 4 + slot];
    ASSERT_EQ(codes.size(), want.size());
    for (size_t i = 0; i < codes.size(); ++i) differ += codes[i] == want[i] ? 0 : 1;
    all += static_cast<int64_t>(codes.size());
  }
  EXPECT_LT(differ, all / 1000);  // a moment on the edge of its draw
  // Two layers with the same values have other draws.
  FloatArrays alike = RandomArrays(apart, 9, 1);
  alike[1] = alike[0];
  Device twins(options, apart, alike);
  twins.Step(alike, 1e-2);
  EXPECT_NE(twins.Save()[4], twins.Save()[8]);
}

TEST_F(OptimizerTest, OrthogonalizeBringsSingularValuesNearOne) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{16, 8}, {8, 16}, {8, 8}}) {
    xla::Graph graph("orthogonalize");
    const xla::Value x = graph.Parameter({DType::kF32, {rows, columns}}, "x");
    const auto program = graph.Finish(std::vector{Orthogonalize(x)});
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    const std::vector<models::ParamSpec> one = {
        {.name = "x", .shape = {DType::kF32, {rows, columns}}}};
    const FloatArrays data = RandomArrays(one, 3, 10);
    auto buffer = client_->FromVector(data[0], {DType::kF32, {rows, columns}});
    std::vector<xla::Buffer*> arguments = {&*buffer};
    const auto results = client_->Compile(*program).value()->Execute(arguments);
    ASSERT_TRUE(results.ok());
    const auto y = (*results)[0].ToVector<float>().value();
    // The sum of the squared singular values is the squared Frobenius norm.
    double sum = 0;
    for (const float v : y) sum += static_cast<double>(v) * static_cast<double>(v);
    const auto count = static_cast<double>(std::min(rows, columns));
    EXPECT_NEAR(std::sqrt(sum / count), 0.95, 0.25) << rows << " x " << columns;
  }
}

TEST_F(OptimizerTest, EightBitStatesRoundWithoutBias) {
  // Many draws of one value: the mean is the value although no code is.
  constexpr int64_t kBlocks = 64;
  for (const bool is_signed : {true, false}) {
    xla::Graph graph("quantize");
    const xla::Shape shape{DType::kF32, {kBlocks, kQuantizeBlock}};
    const xla::Value x = graph.Parameter(shape, "x");
    const xla::Value seed = xla::Constant(graph, 7, DType::kU32);
    const xla::Value numbers = xla::Reshape(xla::Iota(graph, {DType::kU32, {shape.elements()}}, 0),
                                            {kBlocks, kQuantizeBlock});
    const xla::Value scales = xla::ReduceMax(xla::Abs(x), {-1});
    const xla::Value codes = EncodeBlocks(x, scales, is_signed, HashUniform(numbers, seed));
    const auto program = graph.Finish(std::vector{DecodeBlocks(codes, scales, is_signed)});
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    for (const double value : {0.7, 0.031, 2e-4, 1e-7}) {
      std::vector<float> data(static_cast<size_t>(shape.elements()), static_cast<float>(value));
      for (size_t i = 0; i < data.size(); i += kQuantizeBlock) {
        data[i] = 1;      // the block's largest is exact
        data[i + 1] = 0;  // and so is zero
        if (is_signed) data[i + 2] = static_cast<float>(-value);
      }
      auto buffer = client_->FromVector(data, shape);
      std::vector<xla::Buffer*> arguments = {&*buffer};
      const auto results = client_->Compile(*program).value()->Execute(arguments);
      ASSERT_TRUE(results.ok());
      const auto y = (*results)[0].ToVector<float>().value();
      double mean = 0;
      int64_t count = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const size_t at = i % kQuantizeBlock;
        if (at < 3) {
          EXPECT_TRUE(at == 0 ? y[i] == 1 : at == 1 ? y[i] == 0 : !is_signed || y[i] <= 0) << at;
          continue;
        }
        mean += static_cast<double>(y[i]);
        ++count;
        EXPECT_TRUE(value < 1e-4 || std::abs(static_cast<double>(y[i]) - value) < 0.1 * value);
      }
      mean /= static_cast<double>(count);
      // What lies below the smallest code is 0 or that code: a wide spread.
      EXPECT_NEAR(mean, value, value > 1e-4 ? 2e-3 * value : 0.6 * value + 1e-7)
          << is_signed << " " << value;
    }
  }
}

TEST(Optimizer, StateTakesWhatTheDocumentationSays) {
  const models::ParamSpec matrix{.name = "model.layers.0.mlp.up_proj.weight",
                                 .shape = {DType::kF32, {1024, 1024}}};
  const std::vector<models::ParamSpec> specs = {matrix};
  const auto bytes = [&](OptimizerKind kind) {
    int64_t sum = 0;
    for (const StateSpec& s : OptimizerStateSpecs({.kind = kind}, specs)) sum += s.shape.bytes();
    return static_cast<double>(sum) / static_cast<double>(matrix.shape.elements());
  };
  EXPECT_EQ(bytes(OptimizerKind::kAdamW), 8);
  EXPECT_NEAR(bytes(OptimizerKind::kAdamW8bit), 2.03, 0.01);
  EXPECT_NEAR(bytes(OptimizerKind::kAdafactor), 0.008, 0.001);
  EXPECT_EQ(bytes(OptimizerKind::kLion), 4);
  EXPECT_EQ(bytes(OptimizerKind::kMuon), 4);
}

TEST(Optimizer, NamesAndBadNumbers) {
  for (const OptimizerKind kind : kAllOptimizers) {
    EXPECT_EQ(ParseOptimizerKind(OptimizerKindName(kind)), kind);
  }
  EXPECT_EQ(ParseOptimizerKind("sgd"), std::nullopt);
  EXPECT_TRUE(ValidateOptimizer({}).ok());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(ValidateOptimizer({.beta1 = 1}).message(), HasSubstr("beta1 is 1"));
  EXPECT_THAT(ValidateOptimizer({.epsilon = 0}).message(), HasSubstr("adam_eps"));
  EXPECT_THAT(ValidateOptimizer({.kind = OptimizerKind::kMuon, .momentum = 1.5}).message(),
              HasSubstr("momentum is 1.5"));
  EXPECT_THAT(ValidateOptimizer({.weight_decay = nan}).message(), HasSubstr("weight_decay"));
  EXPECT_THAT(ValidateOptimizer({.grad_clip = -1}).message(), HasSubstr("grad_clip"));
}

}  // namespace
}  // namespace forebay::learner
