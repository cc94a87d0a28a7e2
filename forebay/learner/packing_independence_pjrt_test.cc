// Goal: loss, metrics and gradients of a batch are those of its sequences, however they are packed:
// in any shapes, in any order, alone or beside others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/rng.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/micro_plan.h"
#include "forebay/learner/train_step.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/xla/client.h"

namespace forebay::learner {
namespace {

using Shapes = std::vector<BucketShape>;

struct Total {
  LossSums sums;
  std::map<std::string, std::vector<double>> gradients;
};

class PackingIndependenceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    client_ = MakeClient().release();
    parity_ = new ParityModel(LoadParityModel(FOREBAY_SOURCE_DIR));
    TrainStepOptions options{.gradient = {.logprob_chunk = 64},
                             .buckets = {{4, 48}, {1, 64}, {2, 96}, {1, 160}, {1, 256}}};
    auto step = TrainStep::Create(*client_, *parity_->model, options, {.params = parity_->tensors});
    FB_CHECK(step.ok(), step.status().ToString());
    step_ = step->release();
  }
  static void TearDownTestSuite() {
    delete step_;
    EXPECT_EQ(client_->live_buffers(), 0);
    delete parity_;
    delete client_;
  }

  // The whole batch in `shapes`, its sequences in `order`.
  static Total Run(std::span<const TrainSequence> sequences, const std::vector<size_t>& order,
                   const Shapes& shapes, const CostModel& cost) {
    std::vector<TrainSequence> ordered;
    std::vector<int64_t> lengths;
    for (const size_t i : order) {
      ordered.push_back(sequences[i]);
      lengths.push_back(static_cast<int64_t>(sequences[i].tokens.size()));
    }
    const auto plans = PlanMicroBatches(lengths, shapes, cost);
    FB_CHECK(plans.ok(), plans.status().ToString());
    Total total;
    for (const MicroPlan& plan : *plans) {
      const auto got = step_->Gradients(FillMicroBatch(plan.rows, ordered, plan.shape));
      FB_CHECK(got.ok(), got.status().ToString());
      std::vector<float> metrics(got->sums.slots.begin(), got->sums.slots.end());
      total.sums.Add(metrics);
      for (const auto& [name, tensor] : got->gradients) {
        auto& sum = total.gradients[name];
        const auto values = tensor.as<float>();
        sum.resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<double>(values[i]);
      }
    }
    return total;
  }

  static void ExpectSame(const Total& a, const Total& b, const std::string& what) {
    for (int slot = 0; slot < kMetricSlots; ++slot) {
      EXPECT_NEAR(a.sums.slots[slot], b.sums.slots[slot], 2e-5 * (1 + std::abs(b.sums.slots[slot])))
          << what << ", metric " << slot;
    }
    for (const auto& [name, want] : b.gradients) {
      const auto& got = a.gradients.at(name);
      double scale = 0, gap = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        scale = std::max(scale, std::abs(want[i]));
        gap = std::max(gap, std::abs(got[i] - want[i]));
      }
      EXPECT_LE(gap, 1e-4 * scale) << what << ", " << name;
    }
  }

  static inline xla::Client* client_ = nullptr;
  static inline ParityModel* parity_ = nullptr;
  static inline TrainStep* step_ = nullptr;
};

TEST_F(PackingIndependenceTest, T6_AnyPackingGivesTheSameLossAndGradients) {
  Rng rng(31);
  const std::vector<Shapes> all = {
      {{4, 48}}, {{1, 64}}, {{1, 64}, {1, 256}}, {{4, 48}, {2, 96}, {1, 160}}, {{1, 256}}};
  for (int round = 0; round < 4; ++round) {
    std::vector<Trajectory> trajectories;
    std::vector<TrainSequence> sequences;
    const auto count = static_cast<int32_t>(3 + rng.Below(6));
    for (int32_t i = 0; i < count; ++i) {
      trajectories.push_back(RandomTrajectory({.group = round + 1,
                                               .member = i,
                                               .prompt = static_cast<int64_t>(1 + rng.Below(16)),
                                               .action = static_cast<int64_t>(1 + rng.Below(31))}));
    }
    for (const Trajectory& t : trajectories) {
      sequences.push_back(AsSequence(t, rng.Normal(), 0.01 + 0.02 * rng.Uniform()));
    }
    std::vector<size_t> order(sequences.size());
    std::iota(order.begin(), order.end(), 0);
    // Each sequence in a row of its own.
    const Total apart = Run(sequences, order, {{1, 64}}, {.program_tokens = 0});
    for (const Shapes& shapes : all) {
      for (const auto attention : {AttentionCost::kRow, AttentionCost::kSegments}) {
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
        std::string what = "round " + std::to_string(round) + ":";
        for (const BucketShape shape : shapes) what += " " + shape.ToString();
        ExpectSame(Run(sequences, order, shapes, {.attention = attention}), apart, what);
      }
    }
  }
}

}  // namespace
}  // namespace forebay::learner
