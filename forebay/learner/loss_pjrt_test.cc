// Goal: the traced loss is the host's formula, in value, gradient and metrics, for every option.
#include "forebay/learner/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/rng.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

struct Columns {
  std::vector<float> logp, rollout, advantages, weights, entropy, proximal;
};

struct LossOnDevice {
  float loss;
  std::vector<float> metrics, gradient;  // of the loss by logp
};

class LossTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { client_ = MakeClient().release(); }
  static void TearDownTestSuite() {
    EXPECT_EQ(client_->live_buffers(), 0);
    delete client_;
  }

  static LossOnDevice RunOnDevice(const Columns& c, const PolicyLossOptions& options) {
    xla::Graph graph("loss");
    const auto n = static_cast<int64_t>(c.logp.size());
    std::vector<xla::Buffer> buffers;
    const auto column = [&](const std::vector<float>& values, const char* name) {
      if (values.empty()) return xla::Value();
      auto buffer = client_->FromVector(values, {xla::DType::kF32, {n}});
      FB_CHECK(buffer.ok(), buffer.status().ToString());
      buffers.push_back(std::move(*buffer));
      return graph.Parameter({xla::DType::kF32, {n}}, name);
    };
    const xla::Value logp = column(c.logp, "logp");
    const PolicyLossArrays in{.logp = logp,
                              .rollout = column(c.rollout, "rollout"),
                              .advantages = column(c.advantages, "advantages"),
                              .weights = column(c.weights, "weights"),
                              .entropy = column(c.entropy, "entropy"),
                              .proximal = column(c.proximal, "proximal")};
    const PolicyLossValues values = PolicyLoss(in, options);
    const xla::Value wrt[] = {logp};
    const auto program =
        graph.Finish(std::vector{values.loss, values.metrics, xla::Gradients(values.loss, wrt)[0]});
    FB_CHECK(program.ok(), program.status().ToString());
    const auto executable = client_->Compile(*program);
    FB_CHECK(executable.ok(), executable.status().ToString());
    std::vector<xla::Buffer*> arguments;
    for (auto& buffer : buffers) arguments.push_back(&buffer);
    const auto results = (*executable)->Execute(arguments);
    FB_CHECK(results.ok(), results.status().ToString());
    return {(*results)[0].ToVector<float>().value()[0], (*results)[1].ToVector<float>().value(),
            (*results)[2].ToVector<float>().value()};
  }

  static Columns Random(size_t n) {
    Rng rng(5);
    Columns c;
    for (size_t i = 0; i < n; ++i) {
      c.logp.push_back(static_cast<float>(-2 + 0.5 * rng.Normal()));
      c.rollout.push_back(c.logp.back() + static_cast<float>(0.6 * rng.Normal()));
      c.advantages.push_back(static_cast<float>(rng.Normal()));
      c.weights.push_back(i % 4 == 3 ? 0.0F : static_cast<float>(0.1 + rng.Uniform()));
      c.entropy.push_back(static_cast<float>(rng.Uniform()));
    }
    return c;
  }

  static inline xla::Client* client_ = nullptr;
};

TEST_F(LossTest, MatchesTheHostFormula) {
  const Columns base = Random(64);
  for (const bool given : {false, true}) {
    for (const auto proximal : {Proximal::kCurrent, Proximal::kRollout}) {
      for (const double cap : {0.0, 1.2, 5.0}) {
        Columns c = base;
        if (given) {
          for (size_t i = 0; i < c.logp.size(); ++i) {
            c.proximal.push_back(c.logp[i] + 0.3F * static_cast<float>(std::sin(i)));
          }
        }
        const PolicyLossOptions options{
            .proximal = proximal, .clip_low = 0.1, .clip_high = 0.3, .is_cap = cap};
        const LossOnDevice got = RunOnDevice(c, options);
        double loss = 0;
        for (size_t i = 0; i < c.logp.size(); ++i) {
          const TokenLossInputs x{.logp = c.logp[i],
                                  .proximal = given                            ? c.proximal[i]
                                              : proximal == Proximal::kRollout ? c.rollout[i]
                                                                               : c.logp[i],
                                  .rollout = c.rollout[i],
                                  .advantage = c.advantages[i]};
          const double weight = c.weights[i];
          loss += weight * PolicyTokenLoss(x, options);
          // By finite differences of the host's formula, the proximal logprob held still.
          constexpr double kStep = 1e-6;
          TokenLossInputs up = x, down = x;
          up.logp += kStep;
          down.logp -= kStep;
          const double slope = weight *
                               (PolicyTokenLoss(up, options) - PolicyTokenLoss(down, options)) /
                               (2 * kStep);
          EXPECT_NEAR(got.gradient[i], slope, 2e-5 * (1 + std::abs(slope))) << i << " cap " << cap;
        }
        EXPECT_NEAR(got.loss, loss, 1e-4);
        EXPECT_EQ(got.metrics[kLossSum], got.loss);
      }
    }
  }
}

TEST_F(LossTest, MetricsAreSumsOverTheLossTokens) {
  const Columns c = Random(64);
  const PolicyLossOptions options{
      .proximal = Proximal::kRollout, .clip_low = 0.1, .clip_high = 0.3, .is_cap = 2};
  const LossOnDevice got = RunOnDevice(c, options);
  double want[kMetricSlots] = {};
  for (size_t i = 0; i < c.logp.size(); ++i) {
    if (c.weights[i] == 0) continue;
    const double gap = static_cast<double>(c.logp[i]) - static_cast<double>(c.rollout[i]);
    const double ratio = std::exp(gap);
    const double a = c.advantages[i];
    want[kTokenCount] += 1;
    want[kRatioSum] += ratio;
    want[kClippedCount] += std::clamp(ratio, 0.9, 1.3) * a < ratio * a ? 1 : 0;
    want[kKlSum] += KlK3(c.rollout[i], c.logp[i]);
    want[kEntropySum] += c.entropy[i];
    want[kGapMax] = std::max(want[kGapMax], std::abs(gap));
  }
  for (const auto slot :
       {kTokenCount, kRatioSum, kClippedCount, kCappedCount, kKlSum, kEntropySum, kGapMax}) {
    EXPECT_NEAR(got.metrics[slot], want[slot], 1e-4 * (1 + want[slot])) << slot;
  }
  EXPECT_GT(want[kClippedCount], 0);

  const LossOnDevice current = RunOnDevice(c, {.is_cap = 1.2});
  int64_t capped = 0;
  for (size_t i = 0; i < c.logp.size(); ++i) {
    capped += c.weights[i] > 0 && std::exp(c.logp[i] - c.rollout[i]) > 1.2F ? 1 : 0;
  }
  EXPECT_GT(capped, 0);
  EXPECT_EQ(current.metrics[kCappedCount], static_cast<float>(capped));
  EXPECT_EQ(current.metrics[kClippedCount], 0);
}

TEST_F(LossTest, N3_WhatStandsBesideTheLossTokensLeavesNoTrace) {
  const Columns clean = Random(64);
  Columns dirty = clean;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (size_t i = 3; i < dirty.logp.size(); i += 4) {
    dirty.logp[i] = i % 8 == 3 ? nan : -inf;
    dirty.rollout[i] = inf;
    dirty.advantages[i] = nan;
    dirty.entropy[i] = nan;
    dirty.weights[i] = i % 8 == 3 ? nan : -1;
  }
  const LossOnDevice a = RunOnDevice(clean, {});
  const LossOnDevice b = RunOnDevice(dirty, {});
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.gradient, b.gradient);
}

TEST_F(LossTest, N2_ABatchWithoutLossTokensIsZeroNotNaN) {
  Columns c = Random(16);
  std::ranges::fill(c.weights, 0.0F);
  const LossOnDevice got = RunOnDevice(c, {});
  EXPECT_EQ(got.loss, 0);
  EXPECT_THAT(got.metrics, ::testing::Each(0.0F));
  EXPECT_THAT(got.gradient, ::testing::Each(0.0F));
}

TEST_F(LossTest, AnAbsurdRatioStaysFinite) {
  const Columns c{
      .logp = {0, -1000}, .rollout = {-1000, 0}, .advantages = {1, 1}, .weights = {1, 1}};
  const LossOnDevice got = RunOnDevice(c, {.is_cap = 2});
  for (const float x : got.metrics) EXPECT_TRUE(std::isfinite(x));
  EXPECT_THAT(got.gradient, ::testing::ElementsAre(-2, 0));
}

}  // namespace
}  // namespace forebay::learner
