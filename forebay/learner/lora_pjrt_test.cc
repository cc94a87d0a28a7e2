// Goal: adapters are trained and nothing else; their gradients are right; what is published is the
// merged model; a checkpoint goes on to the same bits; both layer layouts agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/train_step.h"
#include "forebay/models/model.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::learner {
namespace {

using ::testing::HasSubstr;
using weights::HostTensor;
using weights::TensorMap;

constexpr BucketShape kShape{1, 64};

class LoraStepTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    client_ = MakeClient().release();
    parity_ = new ParityModel(LoadParityModel(FOREBAY_SOURCE_DIR));
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(client_->live_buffers(), 0);
    delete parity_;
    delete client_;
  }

  static LoraOptions Lora() {
    return {.rank = 4, .alpha = 8, .targets = {"q_proj", "mlp.down_proj"}};
  }
  static TrainStepOptions Options(models::LayerLayout layout = models::LayerLayout::kPerLayer) {
    return {.gradient = {.layout = layout,
                         .logprob_chunk = 64,
                         .loss = {.proximal = Proximal::kRollout,
                                  .clip_low = 1,
                                  .clip_high = 1000,
                                  .is_cap = 0},
                         .lora = Lora()},
            .optimizer = {.weight_decay = 0.1},
            .buckets = {kShape},
            .adapter_seed = 3};
  }
  static std::unique_ptr<TrainStep> Create(const TrainStepOptions& options,
                                           const TrainState& state) {
    auto step = TrainStep::Create(*client_, *parity_->model, options, state);
    FB_CHECK(step.ok(), step.status().ToString());
    return std::move(*step);
  }
  static TrainState Start() { return {.params = parity_->tensors}; }
  // Adapters that do something: B is not zero.
  static TensorMap RandomAdapters() {
    const auto specs = LoraSpecs(parity_->model->Params(models::LayerLayout::kPerLayer), Lora());
    TensorMap out;
    Rng rng(8);
    for (const auto& spec : *specs) {
      std::span<std::byte> bytes;
      HostTensor tensor = HostTensor::Allocate(spec.shape, &bytes);
      for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
        const auto value = static_cast<float>(0.2 * rng.Normal());
        std::memcpy(bytes.data() + i, &value, sizeof value);
      }
      out.emplace(spec.name, std::move(tensor));
    }
    return out;
  }
  static MicroBatch Batch() {
    static const Trajectory t = RandomTrajectory({.prompt = 5, .action = 40});
    const std::vector<TrainSequence> sequences = {AsSequence(t, 1.0, 1.0 / 40)};
    return FillMicroBatch(std::vector<Row>{{{0, 0}}}, sequences, kShape);
  }
  static double Loss(const TensorMap& adapters) {
    TrainState state = Start();
    state.adapters = adapters;
    const auto got = Create(Options(), state)->Gradients(Batch());
    FB_CHECK(got.ok(), got.status().ToString());
    return got->sums.loss();
  }

  static inline xla::Client* client_ = nullptr;
  static inline ParityModel* parity_ = nullptr;
};

TEST_F(LoraStepTest, GradientsMatchFiniteDifferences) {
  const TensorMap adapters = RandomAdapters();
  TrainState state = Start();
  state.adapters = adapters;
  const auto got = Create(Options(), state)->Gradients(Batch());
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ASSERT_EQ(got->gradients.size(), adapters.size());
  // Along the gradient of each of the first and last module's A and B.
  for (const auto* name : {"lora_A.weight", "lora_B.weight"}) {
    const auto found = std::ranges::find_if(
        adapters, [&](const auto& entry) { return entry.first.ends_with(name); });
    ASSERT_NE(found, adapters.end());
    const auto gradient = got->gradients.at(found->first).as<float>();
    double square = 0;
    for (const float g : gradient) square += static_cast<double>(g) * static_cast<double>(g);
    const double norm = std::sqrt(square);
    ASSERT_GT(norm, 0);
    constexpr double kStep = 2e-2;
    const auto moved = [&](double sign) {
      TensorMap out = adapters;
      std::span<std::byte> bytes;
      HostTensor tensor = HostTensor::Allocate(found->second.shape(), &bytes);
      const auto from = found->second.as<float>();
      for (size_t i = 0; i < from.size(); ++i) {
        const auto value = static_cast<float>(
            static_cast<double>(from[i]) + sign * kStep * static_cast<double>(gradient[i]) / norm);
        std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
      }
      out[found->first] = std::move(tensor);
      return out;
    };
    const double slope = (Loss(moved(1)) - Loss(moved(-1))) / (2 * kStep);
    EXPECT_NEAR(slope, norm, 2e-2 * norm) << found->first;
  }
}

TEST_F(LoraStepTest, MergedAndUnmergedAgree) {
  TrainState state = Start();
  state.adapters = RandomAdapters();
  const auto step = Create(Options(), state);
  const auto published = step->Params();
  const auto merged = MergeAdapters(parity_->tensors, state.adapters, LoraScale(Lora()));
  ASSERT_TRUE(published.ok() && merged.ok());
  EXPECT_LT(RelativeGap(*published, *merged), 1e-5);
  EXPECT_NE(weights::Digest(*merged), weights::Digest(parity_->tensors));
  // The merged model alone gives the loss (and so the log-probabilities) of base and adapters.
  TrainStepOptions plain = Options();
  plain.gradient.lora = {};
  const auto alone = Create(plain, {.params = *merged})->Gradients(Batch());
  const auto together = step->Gradients(Batch());
  ASSERT_TRUE(alone.ok() && together.ok());
  for (int slot = 0; slot < kMetricSlots; ++slot) {
    EXPECT_NEAR(alone->sums.slots[slot], together->sums.slots[slot],
                1e-4 * (1 + std::abs(together->sums.slots[slot])));
  }
}

TEST_F(LoraStepTest, OnlyAdaptersAreTrainedAndHaveState) {
  const auto step = Create(Options(), Start());
  const auto before = step->Params();
  EXPECT_EQ(weights::Digest(*before), weights::Digest(parity_->tensors));  // B is zero
  const std::vector<MicroBatch> batches = {Batch()};
  double first = 0, last = 0;
  for (int i = 0; i < 10; ++i) {
    const auto outcome = step->Run(batches, 2e-2);
    ASSERT_TRUE(outcome.ok() && outcome->updated);
    (i == 0 ? first : last) = outcome->sums.loss();
  }
  EXPECT_LT(last, first);
  const auto state = step->State();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(weights::Digest(state->params), weights::Digest(parity_->tensors));  // frozen
  EXPECT_EQ(state->optimizer.size(), 2 * state->adapters.size());
  for (const auto& [name, tensor] : state->optimizer) {
    EXPECT_THAT(name, HasSubstr(".lora_"));
  }
  const auto after = step->Params();
  for (const auto& [name, tensor] : *after) {
    const bool target = name.ends_with("q_proj.weight") || name.ends_with("down_proj.weight");
    const bool same = std::ranges::equal(tensor.bytes(), before->at(name).bytes());
    EXPECT_EQ(same, !target) << name;
  }
}

TEST_F(LoraStepTest, D5_ARestoredStateGoesOnToTheSameBits) {
  const std::vector<MicroBatch> batches = {Batch()};
  const auto whole = Create(Options(), Start());
  ASSERT_TRUE(whole->Run(batches, 1e-2).ok());
  const auto saved = whole->State();
  ASSERT_TRUE(saved.ok());
  const auto resumed = Create(Options(), *saved);
  ASSERT_TRUE(whole->Run(batches, 1e-2).ok());
  ASSERT_TRUE(resumed->Run(batches, 1e-2).ok());
  EXPECT_EQ(weights::Digest(whole->State()->adapters), weights::Digest(resumed->State()->adapters));
  EXPECT_EQ(weights::Digest(whole->State()->optimizer),
            weights::Digest(resumed->State()->optimizer));
}

TEST_F(LoraStepTest, MergedWeightsStayNoLongerThanTheyAreWanted) {
  const auto step = Create(Options(), Start());
  const int64_t before = client_->live_buffers();
  ASSERT_TRUE(step->Run(std::vector<MicroBatch>{Batch()}, 1e-2).ok());
  EXPECT_GT(client_->live_buffers(), before);  // for Params
  ASSERT_TRUE(step->Params().ok());
  EXPECT_EQ(client_->live_buffers(), before);
  MicroBatch broken = Batch();
  broken.plane(kAdvantages)[10] = std::numeric_limits<float>::infinity();
  const auto outcome = step->Run(std::vector<MicroBatch>{broken}, 1e-2);
  ASSERT_TRUE(outcome.ok());
  EXPECT_FALSE(outcome->updated);
  EXPECT_EQ(client_->live_buffers(), before);
}

TEST_F(LoraStepTest, StackedLayersGiveTheSameAdapters) {
  const std::vector<MicroBatch> batches = {Batch()};
  TrainState state = Start();
  state.adapters = RandomAdapters();
  const auto apart = Create(Options(), state);
  const auto stacked = Create(Options(models::LayerLayout::kStacked), state);
  const auto a = apart->Gradients(Batch()), b = stacked->Gradients(Batch());
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_LT(RelativeGap(b->gradients, a->gradients), 1e-4);
  EXPECT_LT(RelativeGap(*stacked->Params(), *apart->Params()), 1e-5);
}

TEST_F(LoraStepTest, StatesOfAnotherKindAreRefused) {
  TrainState state = Start();
  state.adapters = RandomAdapters();
  TrainStepOptions plain = Options();
  plain.gradient.lora = {};
  const auto without = TrainStep::Create(*client_, *parity_->model, plain, state);
  EXPECT_THAT(without.status().message(), HasSubstr("lora_rank is 0"));
  TrainStepOptions other = Options();
  other.gradient.lora.rank = 5;
  const auto rank = TrainStep::Create(*client_, *parity_->model, other, state);
  EXPECT_THAT(rank.status().message(), HasSubstr("LoRA adapters has"));
  const auto saved = Create(Options(), state)->State();
  TrainStepOptions muon = Options();
  muon.optimizer.kind = OptimizerKind::kLion;
  const auto kind = TrainStep::Create(*client_, *parity_->model, muon, *saved);
  EXPECT_THAT(kind.status().message(), HasSubstr("learner.optimizer = \"lion\""));
}

}  // namespace
}  // namespace forebay::learner
