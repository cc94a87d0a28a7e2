// Every vector of tests/goldens/algorithms.json that the learner's host code answers for. Test
// names cite the case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "forebay/learner/advantages.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/packing.h"
#include "forebay/learner/stats.h"
#include "forebay/learner/token_weights.h"

namespace forebay::learner {
namespace {

using nlohmann::json;
using ::testing::DoubleNear;
using ::testing::ElementsAreArray;
using ::testing::Pointwise;

constexpr double kTolerance = 2e-5;

const json& Vectors() {
  static const json vectors = [] {
    std::ifstream in(std::string(FOREBAY_SOURCE_DIR) + "/tests/goldens/algorithms.json");
    return json::parse(in);
  }();
  return vectors;
}

std::vector<double> Doubles(const json& j) { return j.get<std::vector<double>>(); }

// Rewards of consecutive groups of group_size.
std::vector<double> AdvantagesOf(AdvantageKind kind, const json& c) {
  const auto rewards = Doubles(c["rewards"]);
  const auto size = c["group_size"].get<size_t>();
  std::vector<int64_t> groups;
  for (size_t i = 0; i < rewards.size(); ++i) groups.push_back(static_cast<int64_t>(i / size));
  return Advantages(kind, rewards, groups);
}

TEST(AlgorithmVectors, advantage_grpo_std_ddof1_eps1e_6) {
  const json& c = Vectors()["advantage"]["grpo_std_ddof1_eps1e-6"];
  EXPECT_THAT(AdvantagesOf(AdvantageKind::kGrpo, c),
              Pointwise(DoubleNear(kTolerance), Doubles(c["advantages"])));
}

TEST(AlgorithmVectors, advantage_dr_grpo_mean_only) {
  const json& c = Vectors()["advantage"]["dr_grpo_mean_only"];
  EXPECT_THAT(AdvantagesOf(AdvantageKind::kDrGrpo, c),
              Pointwise(DoubleNear(kTolerance), Doubles(c["advantages"])));
}

TEST(AlgorithmVectors, advantage_rloo) {
  const json& c = Vectors()["advantage"]["rloo"];
  EXPECT_THAT(AdvantagesOf(AdvantageKind::kRloo, c),
              Pointwise(DoubleNear(kTolerance), Doubles(c["advantages"])));
}

TEST(AlgorithmVectors, advantage_rloo_single) {
  const json& c = Vectors()["advantage"]["rloo_single"];
  for (const auto kind : {AdvantageKind::kGrpo, AdvantageKind::kDrGrpo, AdvantageKind::kRloo}) {
    EXPECT_EQ(AdvantagesOf(kind, c), Doubles(c["advantages"]));
  }
}

TEST(AlgorithmVectors, N1_advantage_zero_variance_group) {
  const json& c = Vectors()["advantage"]["zero_variance_group"];
  for (const auto kind : {AdvantageKind::kGrpo, AdvantageKind::kDrGrpo, AdvantageKind::kRloo}) {
    EXPECT_EQ(AdvantagesOf(kind, c), Doubles(c["advantages"])) << AdvantageKindName(kind);
  }
}

TEST(AlgorithmVectors, masked_stats) {
  const json& c = Vectors()["masked_stats"];
  std::vector<double> values;
  for (size_t i = 0; i < c["x"].size(); ++i) {
    if (c["mask"][i] == 1) values.push_back(c["x"][i]);
  }
  EXPECT_NEAR(Mean(values), c["mean"].get<double>(), kTolerance);
  const double deviation = SampleStdDev(values);
  EXPECT_NEAR(deviation * deviation, c["variance_ddof1"].get<double>(), kTolerance);
}

TEST(AlgorithmVectors, kl_k3) {
  const json& c = Vectors()["kl"];
  for (size_t i = 0; i < c["logp"].size(); ++i) {
    EXPECT_NEAR(KlK3(c["logp"][i], c["ref"][i]), c["k3"][i].get<double>(), kTolerance);
  }
}

TEST(AlgorithmVectors, truncated_is) {
  const json& c = Vectors()["truncated_is"];
  for (size_t i = 0; i < c["weights"].size(); ++i) {
    EXPECT_NEAR(ImportanceWeight(c["trainer_logp"][i], c["rollout_logp"][i], c["cap"]),
                c["weights"][i].get<double>(), kTolerance);
  }
}

TEST(AlgorithmVectors, decoupled_ppo) {
  const json& c = Vectors()["decoupled_ppo"];
  const PolicyLossOptions options{.clip_low = c["eps"], .clip_high = c["eps"], .is_cap = 1e9};
  for (size_t i = 0; i < c["losses"].size(); ++i) {
    const TokenLossInputs x{.logp = c["logp"][i],
                            .proximal = c["prox"][i],
                            .rollout = c["rollout"][i],
                            .advantage = c["advantage"][i]};
    EXPECT_NEAR(PolicyTokenLoss(x, options), c["losses"][i].get<double>(), kTolerance);
  }
}

double Aggregate(const AggregationOptions& options, const json& loss, const json& mask) {
  std::vector<int64_t> counts;
  for (const json& m : mask) {
    int64_t n = 0;
    for (const json& x : m) n += x.get<int64_t>();
    counts.push_back(n);
  }
  const auto weights = TokenWeights(options, counts);
  double sum = 0;
  for (size_t i = 0; i < loss.size(); ++i) {
    for (size_t t = 0; t < loss[i].size(); ++t) {
      if (mask[i][t] == 1) sum += weights[i] * loss[i][t].get<double>();
    }
  }
  return sum;
}

TEST(AlgorithmVectors, aggregate) {
  const json& c = Vectors()["aggregate"];
  for (const char* name :
       {"token_mean", "sequence_mean_of_token_mean", "sequence_mean_of_token_sum"}) {
    const AggregationOptions options{.mode = *ParseAggregation(name)};
    EXPECT_NEAR(Aggregate(options, c["loss"], c["mask"]), c[name].get<double>(), kTolerance)
        << name;
  }
}

TEST(AlgorithmVectors, aggregate_sequence_mean_token_scale) {
  const json& c = Vectors()["aggregate"];
  AggregationOptions options{.mode = Aggregation::kSequenceMeanTokenScale};
  const json& want = c["sequence_mean_token_scale"];
  EXPECT_NEAR(Aggregate(options, c["loss"], c["mask"]), want["norm_default"].get<double>(),
              kTolerance);
  options.token_scale = 3.14;
  EXPECT_NEAR(Aggregate(options, c["loss"], c["mask"]), want["norm_3.14"].get<double>(),
              kTolerance);
}

// Splits a packed row into its segments.
void SplitSegments(const json& c, json* loss, json* mask) {
  for (int segment = 1; segment <= 2; ++segment) {
    json l = json::array(), m = json::array();
    for (size_t t = 0; t < c["loss"].size(); ++t) {
      if (c["segments"][t] != segment) continue;
      l.push_back(c["loss"][t]);
      m.push_back(c["mask"][t]);
    }
    loss->push_back(l);
    mask->push_back(m);
  }
}

TEST(AlgorithmVectors, aggregate_packed_row) {
  const json& c = Vectors()["aggregate_packed_row"];
  json loss, mask;
  SplitSegments(c, &loss, &mask);
  for (const char* name :
       {"token_mean", "sequence_mean_of_token_mean", "sequence_mean_of_token_sum"}) {
    const AggregationOptions options{.mode = *ParseAggregation(name)};
    EXPECT_NEAR(Aggregate(options, loss, mask), c[name].get<double>(), kTolerance) << name;
  }
}

TEST(AlgorithmVectors, grpo_packed) {
  const json& c = Vectors()["grpo_packed"];
  const std::vector<int64_t> lengths = {c["len_seq1"], c["len_seq2"]};
  const std::vector<double> advantages = {c["advantage_seq1"], c["advantage_seq2"]};
  const auto weights =
      TokenWeights({.mode = *ParseAggregation(c["aggregate"].get<std::string>())}, lengths);
  double loss = 0;
  for (size_t i = 0; i < 2; ++i) {
    const TokenLossInputs x{.logp = -1, .proximal = -1, .rollout = -1, .advantage = advantages[i]};
    loss += static_cast<double>(lengths[i]) * weights[i] * PolicyTokenLoss(x, {});
  }
  EXPECT_NEAR(loss, c["loss"].get<double>(), kTolerance);
}

TEST(AlgorithmVectors, packing) {
  const json& c = Vectors()["packing"];
  const auto budget = c["budget"].get<int64_t>();
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> masks;
  std::vector<std::vector<float>> logprobs;
  std::vector<int64_t> lengths;
  for (const json& pc : c["prompt_completion"]) {
    const auto prompt = pc[0].get<size_t>();
    const auto n = prompt + pc[1].get<size_t>();
    tokens.emplace_back(n, 7);
    masks.emplace_back(n, uint8_t{1});
    for (size_t t = 0; t < prompt; ++t) masks.back()[t] = 0;
    logprobs.emplace_back(n, -1.0F);
    lengths.push_back(static_cast<int64_t>(n));
  }
  std::vector<TrainSequence> sequences;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sequences.push_back({tokens[i], masks[i], logprobs[i], 1.0, 1.0, 1.0});
  }
  const auto rows = PackRows(lengths, budget);
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), c["rows"].size());
  const MicroBatch batch =
      FillMicroBatch(*rows, sequences, {static_cast<int64_t>(rows->size()), budget});
  for (size_t r = 0; r < rows->size(); ++r) {
    const json& want = c["rows"][r];
    const auto row = [&](auto plane) {
      return plane.subspan(r * static_cast<size_t>(budget), static_cast<size_t>(budget));
    };
    EXPECT_THAT(row(batch.plane(kSegments)),
                ElementsAreArray(want["segments"].get<std::vector<int32_t>>()));
    if (want.contains("positions")) {
      EXPECT_THAT(row(batch.plane(kPositions)),
                  ElementsAreArray(want["positions"].get<std::vector<int32_t>>()));
    }
    // The vector marks the loss tokens themselves; column t of a loss plane speaks about the token
    // at t + 1.
    const auto mask = want["loss_mask"].get<std::vector<int>>();
    const auto weights = row(batch.plane(kWeights));
    for (size_t t = 0; t + 1 < mask.size(); ++t) {
      EXPECT_EQ(weights[t] > 0, mask[t + 1] == 1) << "row " << r << " column " << t;
    }
  }
}

}  // namespace
}  // namespace forebay::learner
