// Goal: one optimizer step is right (reference gradients, host AdamW) and depends on nothing but
// its sequences: not on packing, padding, neighbours, micro-batches or what was left out.
#include "forebay/learner/train_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/packing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::learner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr BucketShape kApart{3, 64};
constexpr BucketShape kPacked{1, 128};
constexpr BucketShape kOne{1, 64};
constexpr double kGradientTolerance = 1e-4;  // of the largest entry of a tensor

class TrainStepTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    client_ = MakeClient().release();
    parity_ = new ParityModel(LoadParityModel(FOREBAY_SOURCE_DIR));
    step_ = Create({}).release();
  }
  static void TearDownTestSuite() {
    delete step_;
    EXPECT_EQ(client_->live_buffers(), 0);
    delete parity_;
    delete client_;
  }

  static std::unique_ptr<TrainStep> Create(const OptimizerOptions& adam,
                                           std::vector<BucketShape> buckets = {kApart, kPacked,
                                                                               kOne}) {
    TrainStepOptions options{.gradient = {.logprob_chunk = 48, .loss = {.is_cap = 0}},
                             .optimizer = adam,
                             .buckets = std::move(buckets)};
    auto step = TrainStep::Create(*client_, *parity_->model, options, {.params = parity_->tensors});
    FB_CHECK(step.ok(), step.status().ToString());
    return std::move(*step);
  }

  // The three reference sequences; all tokens but the first count.
  static std::vector<Trajectory> ReferenceSequences() {
    std::vector<Trajectory> out;
    for (int i = 0; i < 3; ++i) {
      const auto& ids = parity_->reference.at("seq" + std::to_string(i) + ".input_ids");
      Trajectory t;
      const auto tokens = ids.as<int32_t>();
      t.tokens.assign(tokens.begin(), tokens.end());
      t.loss_mask.assign(tokens.size(), 1);
      t.loss_mask[0] = 0;
      t.rollout_logprobs.assign(tokens.size(), -1.0F);
      out.push_back(std::move(t));
    }
    return out;
  }

  // The reference's loss: token weights 1/107, token "advantages" 1, -0.5, 1, ... from each
  // sequence's start.
  static MicroBatch ReferenceBatch(BucketShape shape, const std::vector<Row>& rows,
                                   const std::vector<Trajectory>& trajectories) {
    std::vector<TrainSequence> sequences;
    for (const auto& t : trajectories) sequences.push_back(AsSequence(t, 1, 1.0 / 107));
    MicroBatch batch = FillMicroBatch(rows, sequences, shape);
    const auto positions = batch.plane(kPositions);
    const auto advantages = batch.plane(kAdvantages);
    for (size_t i = 0; i < positions.size(); ++i) {
      advantages[i] = positions[i] % 2 == 0 ? 1.0F : -0.5F;
    }
    return batch;
  }
  static MicroBatch Apart() {
    return ReferenceBatch(kApart, {{{0, 0}}, {{1, 0}}, {{2, 0}}}, ReferenceSequences());
  }
  static MicroBatch Packed() {
    return ReferenceBatch(kPacked, {{{2, 0}, {0, 50}, {1, 87}}}, ReferenceSequences());
  }

  static TrainStep::GradientValues Gradients(const MicroBatch& batch) {
    auto got = step_->Gradients(batch);
    FB_CHECK(got.ok(), got.status().ToString());
    return std::move(*got);
  }

  static weights::TensorMap Params(TrainStep& step) {
    auto params = step.Params();
    FB_CHECK(params.ok(), params.status().ToString());
    return std::move(*params);
  }

  static inline xla::Client* client_ = nullptr;
  static inline ParityModel* parity_ = nullptr;
  static inline TrainStep* step_ = nullptr;
};

TEST_F(TrainStepTest, GradientsMatchTheReferenceImplementation) {
  const auto got = Gradients(Apart());
  EXPECT_EQ(got.sums.tokens(), 107);
  EXPECT_EQ(got.gradients.size(), parity_->tensors.size());
  for (const auto& [name, gradient] : got.gradients) {
    EXPECT_LT(RelativeGap(gradient, parity_->reference.at("grad." + name)), kGradientTolerance)
        << name;
  }
}

TEST_F(TrainStepTest, T6_PackedEqualsApart) {
  const auto apart = Gradients(Apart());
  const auto packed = Gradients(Packed());
  EXPECT_LT(RelativeGap(packed.gradients, apart.gradients), kGradientTolerance);
  for (int slot = 0; slot < kMetricSlots; ++slot) {
    EXPECT_NEAR(packed.sums.slots[slot], apart.sums.slots[slot],
                1e-4 * (1 + std::abs(apart.sums.slots[slot])))
        << slot;
  }
}

TEST_F(TrainStepTest, T6_ANeighbourInTheRowChangesNothing) {
  auto trajectories = ReferenceSequences();
  trajectories[0].loss_mask.assign(trajectories[0].tokens.size(), 0);
  const std::vector<Row> rows = {{{2, 0}, {0, 50}, {1, 87}}};
  const auto before = Gradients(ReferenceBatch(kPacked, rows, trajectories));
  for (auto& token : trajectories[0].tokens) token = (token + 17) % 100;
  const auto after = Gradients(ReferenceBatch(kPacked, rows, trajectories));
  EXPECT_EQ(after.sums.slots, before.sums.slots);
  EXPECT_LT(RelativeGap(after.gradients, before.gradients), 1e-6);
}

TEST_F(TrainStepTest, N3_PaddingMayHoldAnyValue) {
  const auto clean = Gradients(Packed());
  MicroBatch dirty = Packed();
  const auto segments = dirty.plane(kSegments);
  const auto weights = dirty.plane(kWeights);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < segments.size(); ++i) {
    if (weights[i] > 0) continue;  // also the columns of real tokens that have no loss
    dirty.plane(kTargets)[i] = i % 2 == 0 ? -7 : 1'000'000;
    dirty.plane(kAdvantages)[i] = nan;
    dirty.plane(kRolloutLogprobs)[i] = i % 3 == 0 ? -inf : nan;
    dirty.plane(kInverseTemperature)[i] = inf;
    if (segments[i] != 0) continue;
    dirty.plane(kTokens)[i] = i % 2 == 0 ? -5 : 2'000'000;
    dirty.plane(kPositions)[i] = 1'000'000 - static_cast<int32_t>(i);
    weights[i] = i % 2 == 0 ? nan : -1.0F;
  }
  const auto got = Gradients(dirty);
  EXPECT_EQ(got.sums.slots, clean.sums.slots);
  EXPECT_EQ(weights::Digest(got.gradients), weights::Digest(clean.gradients));
}

TEST_F(TrainStepTest, AccumulationEqualsTheBigBatch) {
  const auto whole = Create({.weight_decay = 0.1});
  const auto parts = Create({.weight_decay = 0.1});
  const auto trajectories = ReferenceSequences();
  ASSERT_TRUE(whole->Run(std::vector<MicroBatch>{Apart()}, 1e-2).ok());
  std::vector<MicroBatch> micro;
  for (int32_t i = 0; i < 3; ++i) micro.push_back(ReferenceBatch(kOne, {{{i, 0}}}, trajectories));
  const auto outcome = parts->Run(micro, 1e-2);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->sums.tokens(), 107);
  // The moments, not the parameters: the first AdamW step is the sign of the gradient, which
  // rounding flips at 0.
  const auto a = whole->State();
  const auto b = parts->State();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_LT(RelativeGap(b->optimizer, a->optimizer), kGradientTolerance);
}

// Stacked layers: one program adds to what the one before left.
class IntoSumTest : public TrainStepTest {
 protected:
  static std::unique_ptr<TrainStep> Stacked(bool into_sum) {
    const TrainStepOptions options{.gradient = {.layout = models::LayerLayout::kStacked,
                                                .logprob_chunk = 48,
                                                .loss = {.is_cap = 0},
                                                .into_sum = into_sum},
                                   .optimizer = {.weight_decay = 0.1},
                                   .buckets = {kApart, kOne}};
    auto step = TrainStep::Create(*client_, *parity_->model, options, {.params = parity_->tensors});
    FB_CHECK(step.ok(), step.status().ToString());
    return std::move(*step);
  }
  static std::vector<MicroBatch> Parts() {
    std::vector<MicroBatch> parts;
    for (int32_t i = 0; i < 3; ++i) {
      parts.push_back(ReferenceBatch(kOne, {{{i, 0}}}, ReferenceSequences()));
    }
    return parts;
  }
};

TEST_F(IntoSumTest, GradientsAddedToTheirSumAreThoseAddedAfterwards) {
  const auto afterwards = Stacked(false), added = Stacked(true), again = Stacked(true);
  EXPECT_EQ(added->programs(), afterwards->programs());  // one compilation a shape
  const auto want = afterwards->Gradients(Apart()), got = added->Gradients(Apart());
  ASSERT_TRUE(want.ok() && got.ok());
  EXPECT_LT(RelativeGap(got->gradients, want->gradients), 1e-6);
  for (int i = 0; i < 2; ++i) {
    const auto a = afterwards->Run(Parts(), 1e-3), b = added->Run(Parts(), 1e-3),
               c = again->Run(Parts(), 1e-3);
    ASSERT_TRUE(a.ok() && b.ok() && c.ok());
    EXPECT_NEAR(b->grad_norm, a->grad_norm, 1e-5 * a->grad_norm);
    EXPECT_EQ(b->grad_norm, c->grad_norm);
    if (i > 0) continue;
    // The moments: see AccumulationEqualsTheBigBatch.
    EXPECT_LT(RelativeGap(added->State()->optimizer, afterwards->State()->optimizer), 1e-5);
  }
  EXPECT_EQ(weights::Digest(Params(*added)), weights::Digest(Params(*again)));
  EXPECT_EQ(weights::Digest(added->State()->optimizer), weights::Digest(again->State()->optimizer));
}

TEST_F(IntoSumTest, NothingOfGradientsThatWereDroppedIsInTheNextOnes) {
  const auto whole = Stacked(true), disturbed = Stacked(true);
  const int64_t before = client_->live_buffers();
  ASSERT_TRUE(disturbed->AddGradients(Parts()).ok());
  EXPECT_GT(client_->live_buffers(), before);
  disturbed->DropGradients();
  EXPECT_EQ(client_->live_buffers(), before);
  ASSERT_TRUE(whole->Run(Parts(), 1e-3).ok());
  ASSERT_TRUE(disturbed->Run(Parts(), 1e-3).ok());
  EXPECT_EQ(weights::Digest(Params(*whole)), weights::Digest(Params(*disturbed)));
  // While an update is under way the sum is with it, and the next gradients have their own.
  ASSERT_TRUE(disturbed->AddGradients(Parts()).ok());
  ASSERT_TRUE(disturbed->StartUpdate(1e-3).ok());
  ASSERT_TRUE(disturbed->AddGradients(Parts()).ok());
  ASSERT_TRUE(disturbed->FinishUpdate().ok());
  ASSERT_TRUE(disturbed->StartUpdate(1e-3).ok());
  ASSERT_TRUE(disturbed->FinishUpdate().ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(whole->Run(Parts(), 1e-3).ok());
  EXPECT_EQ(weights::Digest(Params(*whole)), weights::Digest(Params(*disturbed)));
}

// AdamW in double precision.
struct HostAdamW {
  std::map<std::string, std::vector<double>> p, m, v;
  int64_t t = 0;

  void Update(const weights::TensorMap& gradients, const OptimizerOptions& o, double rate,
              const std::map<std::string, bool>& decay) {
    double norm = 0;
    for (const auto& [name, g] : gradients) {
      for (const float x : g.as<float>()) norm += static_cast<double>(x) * static_cast<double>(x);
    }
    norm = std::sqrt(norm);
    const double scale = o.grad_clip > 0 ? std::min(1.0, o.grad_clip / (norm + 1e-6)) : 1;
    ++t;
    for (const auto& [name, g] : gradients) {
      const auto values = g.as<float>();
      auto& pp = p[name];
      auto& mm = m[name];
      auto& vv = v[name];
      mm.resize(values.size());
      vv.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const double x = scale * static_cast<double>(values[i]);
        mm[i] = o.beta1 * mm[i] + (1 - o.beta1) * x;
        vv[i] = o.beta2 * vv[i] + (1 - o.beta2) * x * x;
        const double mh = mm[i] / (1 - std::pow(o.beta1, t));
        const double vh = vv[i] / (1 - std::pow(o.beta2, t));
        pp[i] -= rate *
                 (mh / (std::sqrt(vh) + o.epsilon) + (decay.at(name) ? o.weight_decay * pp[i] : 0));
      }
    }
  }
};

TEST_F(TrainStepTest, AdamWMatchesTheHostReferenceOverThreeSteps) {
  // A large epsilon: the first step of a small one is the sign of the gradient, which amplifies its
  // rounding.
  const OptimizerOptions adam{
      .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1, .grad_clip = 0.05};
  const auto step = Create(adam);
  std::map<std::string, bool> decay;
  for (const auto& spec : parity_->model->Params(models::LayerLayout::kPerLayer)) {
    decay[spec.name] = spec.decay;
  }
  EXPECT_EQ(std::ranges::count(decay, true, &std::pair<const std::string, bool>::second) > 0, true);
  EXPECT_EQ(std::ranges::count(decay, false, &std::pair<const std::string, bool>::second) > 0,
            true);
  HostAdamW host;
  for (const auto& [name, tensor] : parity_->tensors) {
    const auto values = tensor.as<float>();
    host.p[name].assign(values.begin(), values.end());
  }
  for (int i = 0; i < 3; ++i) {
    const double rate = 1e-2 * (i + 1);
    const auto gradients = step->Gradients(Apart());
    ASSERT_TRUE(gradients.ok());
    const auto outcome = step->Run(std::vector<MicroBatch>{Apart()}, rate);
    ASSERT_TRUE(outcome.ok());
    EXPECT_TRUE(outcome->updated);
    EXPECT_GT(outcome->grad_norm, adam.grad_clip);  // clipping is in use
    host.Update(gradients->gradients, adam, rate, decay);
  }
  EXPECT_EQ(step->updates(), 3);
  for (const auto& [name, tensor] : Params(*step)) {
    const auto values = tensor.as<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], host.p[name][i], 2e-6) << name << " " << i;
    }
  }
}

TEST_F(TrainStepTest, ANonFiniteGradientChangesNothingAndIsReported) {
  const auto step = Create({.weight_decay = 0.1});
  ASSERT_TRUE(step->Run(std::vector<MicroBatch>{Apart()}, 1e-3).ok());
  const auto before = weights::Digest(Params(*step));
  const auto moments = step->State();
  MicroBatch broken = Apart();
  broken.plane(kAdvantages)[3] = std::numeric_limits<float>::infinity();
  const auto outcome = step->Run(std::vector<MicroBatch>{broken}, 1e-3);
  ASSERT_TRUE(outcome.ok());
  EXPECT_FALSE(outcome->updated);
  EXPECT_FALSE(std::isfinite(outcome->grad_norm));
  EXPECT_EQ(step->updates(), 1);
  EXPECT_EQ(weights::Digest(Params(*step)), before);
  EXPECT_EQ(weights::Digest(step->State()->optimizer), weights::Digest(moments->optimizer));
}

TEST_F(TrainStepTest, AnUpdateUnderWayHoldsNoGradientsAndIsNoStateToRead) {
  const auto step = Create({});
  const int64_t before = client_->live_buffers();
  ASSERT_TRUE(step->AddGradients(std::vector<MicroBatch>{Apart(), Packed()}).ok());
  ASSERT_TRUE(step->StartUpdate(1e-3).ok());
  EXPECT_EQ(client_->live_buffers(), before + 3);  // two sets of metrics and the norm
  EXPECT_EQ(step->State().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(step->Params().status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(step->FinishUpdate().ok());
  EXPECT_EQ(client_->live_buffers(), before);
  EXPECT_TRUE(step->State().ok());
}

TEST_F(TrainStepTest, T2_LogprobsUseTheSamplingTemperature) {
  auto trajectories = ReferenceSequences();
  const double temperature = 1.7;
  for (int i = 0; i < 3; ++i) {
    Trajectory& t = trajectories[static_cast<size_t>(i)];
    t.temperature = temperature;
    const auto& logits = parity_->reference.at("seq" + std::to_string(i) + ".logits");
    const auto values = logits.as<float>();
    const auto vocabulary = static_cast<size_t>(logits.shape().dims.back());
    for (size_t k = 1; k < t.tokens.size(); ++k) {
      const auto row = values.subspan((k - 1) * vocabulary, vocabulary);
      double sum = 0;
      for (const float x : row) sum += std::exp(static_cast<double>(x) / temperature);
      const auto chosen = static_cast<double>(row[static_cast<size_t>(t.tokens[k])]);
      t.rollout_logprobs[k] = static_cast<float>(chosen / temperature - std::log(sum));
    }
  }
  const auto got = Gradients(ReferenceBatch(kPacked, {{{2, 0}, {0, 50}, {1, 87}}}, trajectories));
  EXPECT_LT(got.sums.slots[kGapMax], 2e-4);
  EXPECT_NEAR(got.sums.PerToken(kRatioSum), 1, 1e-4);
  EXPECT_NEAR(got.sums.PerToken(kKlSum), 0, 1e-6);
}

// Blocks of adamw_8bit ran through a whole tensor before: nothing of that is misread.
TEST_F(TrainStepTest, AnOptimizerStateOfAnEarlierFormatIsRefusedWithWhatToDo) {
  const TrainStepOptions options{.gradient = {.logprob_chunk = 48},
                                 .optimizer = {.kind = OptimizerKind::kAdamW8bit},
                                 .buckets = {kOne}};
  const auto step =
      TrainStep::Create(*client_, *parity_->model, options, {.params = parity_->tensors});
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  TrainState state = (*step)->State().value();
  state.params = parity_->tensors;
  EXPECT_EQ(state.optimizer_format, kOptimizerStateFormat);
  int64_t blocks = 0;
  for (auto& [name, tensor] : state.optimizer) {
    if (!name.starts_with("m8.") && !name.starts_with("v8.")) continue;
    std::span<std::byte> bytes;
    const int64_t elements = tensor.shape().elements();
    ASSERT_EQ(elements % 256, 0);
    if (tensor.shape().dims.back() == 256) continue;
    tensor = weights::HostTensor::Allocate({tensor.shape().dtype, {elements / 256, 256}}, &bytes);
    ++blocks;
  }
  ASSERT_GT(blocks, 0);
  state.optimizer_format = 1;
  const auto old = TrainStep::Create(*client_, *parity_->model, options, state);
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(old.status().message(),
              AllOf(HasSubstr("m8."), HasSubstr("format 1"), HasSubstr("export the run")));
  // What did not change goes on, of whatever format.
  TrainState adam{.params = parity_->tensors, .optimizer_format = 1};
  const auto plain = Create({});
  adam.optimizer = plain->State()->optimizer;
  EXPECT_TRUE(TrainStep::Create(*client_, *parity_->model, {.buckets = {kOne}}, adam).ok());
}

TEST_F(TrainStepTest, AStateThatDoesNotFitTheModelIsRefusedByName) {
  weights::TensorMap tensors = parity_->tensors;
  const std::string missing = tensors.begin()->first;
  tensors.erase(tensors.begin());
  const auto step =
      TrainStep::Create(*client_, *parity_->model, {.buckets = {kOne}}, {.params = tensors});
  ASSERT_FALSE(step.ok());
  EXPECT_THAT(step.status().message(), HasSubstr(missing));
  EXPECT_FALSE(TrainStep::Create(*client_, *parity_->model, {}, {.params = parity_->tensors}).ok());
}

}  // namespace
}  // namespace forebay::learner
