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
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/block_quantize.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/optimizer_reference_testing.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;
using xla::DType;
using Arrays = std::vector<std::vector<float>>;

constexpr OptimizerKind kAll[] = {OptimizerKind::kAdamW, OptimizerKind::kAdamW8bit,
                                  OptimizerKind::kAdafactor, OptimizerKind::kLion,
                                  OptimizerKind::kMuon};

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

  static Arrays Random(const std::vector<models::ParamSpec>& specs, uint64_t seed, double scale) {
    Rng rng(seed);
    Arrays out;
    for (const auto& spec : specs) {
      out.emplace_back();
      for (int64_t i = 0; i < spec.shape.elements(); ++i) {
        out.back().push_back(static_cast<float>(scale * rng.Normal()));
      }
    }
    return out;
  }

  // The apply program with its state on the device.
  class Device {
   public:
    Device(const OptimizerOptions& options, std::vector<models::ParamSpec> specs,
           const Arrays& params)
        : options_(options), specs_(std::move(specs)) {
      const auto program = TraceApply(specs_, options_);
      FB_CHECK(program.ok(), program.status().ToString());
      program_ = client_->Compile(*program).value();
      for (size_t i = 0; i < specs_.size(); ++i) {
        buffers_.push_back(client_->FromVector(params[i], specs_[i].shape).value());
      }
      for (const StateSpec& s : OptimizerStateSpecs(options_, specs_)) {
        const std::vector<std::byte> zeros(static_cast<size_t>(s.shape.bytes()));
        buffers_.push_back(client_->FromHost(zeros, s.shape).value());
      }
    }
    // Returns the gradient's norm.
    float Step(const Arrays& gradients, double rate) {
      std::vector<xla::Buffer> inputs;
      for (size_t i = 0; i < specs_.size(); ++i) {
        inputs.push_back(client_->FromVector(gradients[i], specs_[i].shape).value());
      }
      inputs.push_back(client_
                           ->FromVector(HyperParameters(options_, rate, ++updates_),
                                        {DType::kF32, {HyperCount(options_)}})
                           .value());
      std::vector<xla::Buffer*> arguments;
      for (auto& buffer : buffers_) arguments.push_back(&buffer);
      for (auto& buffer : inputs) arguments.push_back(&buffer);
      auto results = program_->Execute(arguments);
      FB_CHECK(results.ok(), results.status().ToString());
      buffers_ = std::move(*results);
      const float norm = buffers_.back().ToVector<float>().value()[0];
      buffers_.pop_back();
      return norm;
    }
    std::vector<float> Param(size_t i) const { return buffers_[i].ToVector<float>().value(); }
    // All bytes: parameters and state.
    std::vector<std::vector<std::byte>> Bits() const {
      std::vector<std::vector<std::byte>> out;
      for (const auto& buffer : buffers_) {
        out.emplace_back(static_cast<size_t>(buffer.shape().bytes()));
        FB_CHECK(buffer.ToHost(out.back()).ok(), "copy");
      }
      return out;
    }

   private:
    OptimizerOptions options_;
    std::vector<models::ParamSpec> specs_;
    std::shared_ptr<xla::Executable> program_;
    std::vector<xla::Buffer> buffers_;  // parameters, then state
    int64_t updates_ = 0;
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
  for (const OptimizerKind kind : kAll) {
    const OptimizerOptions options = Options(kind);
    const Arrays params = Random(kSpecs, 1, 0.5);
    Device device(options, kSpecs, params);
    ReferenceOptimizer reference(options, kSpecs, params);
    for (uint64_t step = 0; step < 6; ++step) {
      const Arrays gradients = Random(kSpecs, 10 + step, step % 2 == 0 ? 1 : 0.01);
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
  for (const OptimizerKind kind : kAll) {
    Device device(Options(kind), kSpecs, Random(kSpecs, 1, 0.5));
    device.Step(Random(kSpecs, 2, 1), 1e-2);
    const auto before = device.Bits();
    Arrays broken = Random(kSpecs, 3, 1);
    broken[3][17] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(device.Step(broken, 1e-2)));
    EXPECT_EQ(device.Bits(), before) << OptimizerKindName(kind);
  }
}

TEST_F(OptimizerTest, T4_ZeroLearningRateKeepsTheWeightsBitForBit) {
  for (const OptimizerKind kind : kAll) {
    const Arrays params = Random(kSpecs, 1, 0.5);
    Device device(Options(kind), kSpecs, params);
    for (uint64_t step = 0; step < 3; ++step) device.Step(Random(kSpecs, 2 + step, 1), 0);
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
  const auto join = [](const Arrays& a) {
    Arrays out = {a[0], a[2]};
    out[0].insert(out[0].end(), a[1].begin(), a[1].end());
    out[1].insert(out[1].end(), a[3].begin(), a[3].end());
    return out;
  };
  for (const OptimizerKind kind : kAll) {
    const Arrays params = Random(apart, 1, 0.5);
    Device one(Options(kind), apart, params), other(Options(kind), stacked, join(params));
    for (uint64_t step = 0; step < 4; ++step) {
      // Layers of different size, so that a statistic over both would show.
      Arrays gradients = Random(apart, 5 + step, 1);
      for (float& g : gradients[1]) g *= 100;
      one.Step(gradients, 1e-2);
      other.Step(join(gradients), 1e-2);
    }
    const Arrays want = join({one.Param(0), one.Param(1), one.Param(2), one.Param(3)});
    for (size_t i = 0; i < 2; ++i) {
      const auto got = other.Param(i);
      for (size_t k = 0; k < got.size(); ++k) {
        EXPECT_NEAR(got[k], want[i][k], 2e-6) << OptimizerKindName(kind) << " " << k;
      }
    }
  }
}

TEST_F(OptimizerTest, OrthogonalizeBringsSingularValuesNearOne) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{16, 8}, {8, 16}, {8, 8}}) {
    xla::Graph graph("orthogonalize");
    const xla::Value x = graph.Parameter({DType::kF32, {rows, columns}}, "x");
    const auto program = graph.Finish(std::vector{Orthogonalize(x)});
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    const Arrays data = Random({{.name = "x", .shape = {DType::kF32, {rows, columns}}}}, 3, 10);
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
  for (const OptimizerKind kind : kAll) {
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
