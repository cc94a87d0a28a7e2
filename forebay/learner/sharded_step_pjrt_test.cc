// An optimizer step over the devices of a mesh has the loss, the gradients, the norm and the new
// weights of a step on one device; what one mesh saved, another goes on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/packing.h"
#include "forebay/learner/train_step.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;

constexpr BucketShape kShape = {.rows = 4, .length = 32};
constexpr char kConfig[] = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 64,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";

MicroBatch Batch(uint64_t seed) {
  const std::vector<int64_t> lengths = {20, 9, 31, 12, 15, 28};
  const std::vector<Row> rows = {{{0, 0}, {1, 20}}, {{2, 0}}, {{3, 0}, {4, 12}}, {{5, 0}}};
  Rng rng(seed);
  std::vector<std::vector<int32_t>> tokens(lengths.size());
  std::vector<std::vector<uint8_t>> masks(lengths.size());
  std::vector<std::vector<float>> logprobs(lengths.size());
  std::vector<TrainSequence> sequences;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t t = 0; t < lengths[i]; ++t) {
      tokens[i].push_back(static_cast<int32_t>(rng.Below(64)));
      masks[i].push_back(t >= 3 ? 1 : 0);
      logprobs[i].push_back(static_cast<float>(-4 + rng.Normal()));
    }
    sequences.push_back({.tokens = tokens[i],
                         .loss_mask = masks[i],
                         .rollout_logprobs = logprobs[i],
                         .advantage = i % 2 == 0 ? 0.7 : -1.1,
                         .token_weight = 0.01});
  }
  return FillMicroBatch(rows, sequences, kShape);
}

class ShardedStep : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = models::Model::Create(kConfig).value().release();
    weights_ = new weights::TensorMap(models::RandomWeights(*model_, 5, 0.2));
    client_ =
        xla::Client::Create({.plugin_path = xla::FindPlugin("").value(), .cpu_device_count = 8})
            .value()
            .release();
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(client_->live_buffers(), 0);
    delete client_;
    delete weights_;
    delete model_;
  }

  // Gradients are added to their sum, but on one device afterwards.
  static TrainStepOptions Options(const xla::MeshSizes& sizes) {
    const int64_t devices = sizes.data * sizes.fsdp * sizes.expert * sizes.context * sizes.tensor;
    return {.gradient = {.layout = models::LayerLayout::kStacked,
                         .logprob_chunk = 8,
                         .into_sum = devices > 1,
                         .mesh = xla::Mesh::Create(sizes, devices).value()},
            .optimizer = {.weight_decay = 0.1},
            .buckets = {kShape}};
  }

  static models::Model* model_;
  static weights::TensorMap* weights_;
  static xla::Client* client_;
};
models::Model* ShardedStep::model_ = nullptr;
weights::TensorMap* ShardedStep::weights_ = nullptr;
xla::Client* ShardedStep::client_ = nullptr;

void ExpectClose(const weights::TensorMap& got, const weights::TensorMap& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    const auto a = got.at(name).as<float>(), b = tensor.as<float>();
    double largest = 1e-6, difference = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      largest = std::max<double>(largest, std::abs(b[i]));
      difference = std::max<double>(difference, std::abs(a[i] - b[i]));
    }
    EXPECT_LE(difference, tolerance * largest) << what << ": " << name;
  }
}

TEST_F(ShardedStep, EqualsOneDevice) {
  const std::vector<MicroBatch> batches = {Batch(1), Batch(2)};
  const auto one = TrainStep::Create(*client_, *model_, Options({}), {.params = *weights_}).value();
  const auto want_gradients = one->Gradients(batches[0]).value();
  StepOutcome want;
  for (int i = 0; i < 2; ++i) want = one->Run(batches, 1e-2).value();
  const auto want_params = one->Params().value();
  EXPECT_GT(want.grad_norm, 0);
  for (const xla::MeshSizes& sizes :
       {xla::MeshSizes{.data = 2}, xla::MeshSizes{.fsdp = 2, .context = 2, .tensor = 2}}) {
    const TrainStepOptions options = Options(sizes);
    const std::string what = options.gradient.mesh.ToString();
    const auto step = TrainStep::Create(*client_, *model_, options, {.params = *weights_}).value();
    const auto gradients = step->Gradients(batches[0]).value();
    for (size_t i = 0; i < gradients.sums.slots.size(); ++i) {
      EXPECT_NEAR(gradients.sums.slots[i], want_gradients.sums.slots[i],
                  1e-5 * (1 + std::abs(want_gradients.sums.slots[i])))
          << what << ", metric " << i;
    }
    ExpectClose(gradients.gradients, want_gradients.gradients, 1e-5, what);
    StepOutcome got;
    for (int i = 0; i < 2; ++i) got = step->Run(batches, 1e-2).value();
    EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-4 * want.grad_norm) << what;
    // Adam divides by the gradient's own size, so weights with hardly any gradient may differ more.
    ExpectClose(step->Params().value(), want_params, 2e-3, what);
  }
}

TEST_F(ShardedStep, ACheckpointOfOneMeshGoesOnOnAnother) {
  const std::vector<MicroBatch> batches = {Batch(3)};
  const auto first =
      TrainStep::Create(*client_, *model_, Options({.fsdp = 4}), {.params = *weights_}).value();
  ASSERT_TRUE(first->Run(batches, 1e-3).ok());
  TrainState state = first->State().value();
  state.params = first->Params().value();
  const auto saved = state.params;
  const auto second = TrainStep::Create(*client_, *model_, Options({.tensor = 2}), state).value();
  EXPECT_EQ(weights::Digest(second->Params().value()), weights::Digest(saved));
  EXPECT_EQ(weights::Digest(second->State()->optimizer), weights::Digest(state.optimizer));
  EXPECT_EQ(second->updates(), 1);
  const StepOutcome a = first->Run(batches, 1e-3).value();
  const StepOutcome b = second->Run(batches, 1e-3).value();
  EXPECT_NEAR(a.sums.loss(), b.sums.loss(), 1e-5 * std::abs(a.sums.loss()));
}

TEST_F(ShardedStep, EveryOptimizerEqualsOneDevice) {
  const std::vector<MicroBatch> batches = {Batch(1), Batch(2)};
  for (const OptimizerKind kind : {OptimizerKind::kAdamW8bit, OptimizerKind::kAdafactor,
                                   OptimizerKind::kLion, OptimizerKind::kMuon}) {
    TrainStepOptions options = Options({});
    options.optimizer.kind = kind;
    const auto one = TrainStep::Create(*client_, *model_, options, {.params = *weights_}).value();
    options.gradient = Options({.fsdp = 2, .tensor = 2}).gradient;
    const auto many = TrainStep::Create(*client_, *model_, options, {.params = *weights_}).value();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(one->Run(batches, 1e-3).ok());
      ASSERT_TRUE(many->Run(batches, 1e-3).ok());
    }
    // Signs of what is hardly there may differ.
    const double tolerance = kind == OptimizerKind::kLion ? 1e-2 : 2e-3;
    ExpectClose(many->Params().value(), one->Params().value(), tolerance,
                std::string(OptimizerKindName(kind)));
  }
}

TEST_F(ShardedStep, WhatDoesNotDivideIsRefusedWithWhatWould) {
  const auto heads =
      TrainStep::Create(*client_, *model_, Options({.tensor = 8}), {.params = *weights_});
  ASSERT_FALSE(heads.ok());
  EXPECT_EQ(heads.status().code(), StatusCode::kInvalidArgument);
  TrainStepOptions rows = Options({.data = 8});
  const auto few = TrainStep::Create(*client_, *model_, rows, {.params = *weights_});
  ASSERT_FALSE(few.ok());
  EXPECT_THAT(few.status().message(), HasSubstr("data"));
}

}  // namespace
}  // namespace forebay::learner
