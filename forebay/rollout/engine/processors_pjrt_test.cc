// Every processor against its definition (reference_sampling_testing.h): draws follow it
// (chi-square), tokens that it takes away are never drawn, and the log-probability that is told is
// that of the distribution drawn from.
#include "forebay/rollout/engine/processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/logit_edits.h"
#include "forebay/rollout/engine/reference_sampling_testing.h"
#include "forebay/rollout/engine/sampler.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using xla::DType;
using xla::Floats;
using xla::Value;
using xla::Values;

constexpr size_t kRows = 20000;

struct Case {
  std::string name;
  GenerateRequest request;
  std::vector<int32_t> sampled;  // before this token
};

// Ten tokens: two that tie, negative logits among them.
const Floats kLogits = {0.0F, 1.0F, -1.0F, 2.0F, 0.5F, -3.0F, 1.5F, 0.5F, -0.5F, 2.5F};

std::vector<Case> Cases() {
  const std::vector<int32_t> prompt = {3, 5, 5, 8}, sampled = {9, 1, 9, 2};
  const auto with = [&](auto change) {
    GenerateRequest request{.prompt = prompt};
    change(request);
    return request;
  };
  return {
      {"top_k", with([](auto& r) { r.top_k = 4; }), sampled},
      {"top_k of one", with([](auto& r) { r.top_k = 1; }), sampled},
      {"top_k keeps ties", with([](auto& r) { r.top_k = 5; }), sampled},
      {"top_k of more than there are", with([](auto& r) { r.top_k = 100; }), sampled},
      {"top_p", with([](auto& r) { r.top_p = 0.8; }), sampled},
      {"a top_p that leaves one", with([](auto& r) { r.top_p = 0.01; }), sampled},
      {"min_p", with([](auto& r) { r.min_p = 0.1; }), sampled},
      {"min_p of one", with([](auto& r) { r.min_p = 1; }), sampled},
      {"repetition", with([](auto& r) { r.repetition_penalty = 1.7; }), sampled},
      {"reward for repetition", with([](auto& r) { r.repetition_penalty = 0.6; }), sampled},
      {"presence", with([](auto& r) { r.presence_penalty = 0.9; }), sampled},
      {"frequency", with([](auto& r) { r.frequency_penalty = 0.7; }), sampled},
      {"bias", with([](auto& r) { r.logit_bias = {{0, 2.5F}, {9, -1000.0F}, {5, 1.0F}}; }),
       sampled},
      {"top_k before top_p", with([](auto& r) {
         r.top_k = 3;
         r.top_p = 0.7;
       }),
       sampled},
      {"min_p before top_p", with([](auto& r) {
         r.min_p = 0.3;
         r.top_p = 0.6;
       }),
       sampled},
      {"temperature before the filters", with([](auto& r) {
         r.temperature = 1.8;
         r.top_p = 0.85;
         r.min_p = 0.1;
       }),
       sampled},
      {"all", with([](auto& r) {
         r.temperature = 0.8;
         r.top_k = 7;
         r.top_p = 0.95;
         r.min_p = 0.01;
         r.repetition_penalty = 1.3;
         r.presence_penalty = 0.2;
         r.frequency_penalty = 0.3;
         r.logit_bias = {{2, 1.5F}};
       }),
       sampled},
      {"nothing", with([](auto&) {}), sampled},
  };
}

struct Inputs {
  int64_t rows = 0, vocab = 0;
  Floats logits, positions, temperatures, seeds, top_k, top_p, min_p;
};

Inputs Rows(const Floats& logits, const GenerateRequest& request, size_t rows) {
  Inputs in{.rows = static_cast<int64_t>(rows), .vocab = static_cast<int64_t>(logits.size())};
  for (size_t i = 0; i < rows; ++i) {
    in.logits.insert(in.logits.end(), logits.begin(), logits.end());
    in.positions.push_back(static_cast<float>(i));
    in.temperatures.push_back(static_cast<float>(request.temperature));
    in.seeds.insert(in.seeds.end(), {3, 5});
    in.top_k.push_back(static_cast<float>(request.top_k));
    in.top_p.push_back(static_cast<float>(request.top_p));
    in.min_p.push_back(static_cast<float>(request.min_p));
  }
  return in;
}

// The edits of one slot, the same for all rows.
LogitEdits::Arrays EditsOf(const GenerateRequest& request, const std::vector<int32_t>& sampled,
                           size_t rows, int64_t vocab, int64_t* width) {
  LogitEdits edits(static_cast<int64_t>(rows), vocab, 64);
  for (size_t row = 0; row < rows; ++row) {
    edits.Begin(static_cast<int64_t>(row), request);
    for (const int32_t token : sampled) edits.Sampled(static_cast<int64_t>(row), token);
  }
  *width = edits.capacity();
  return edits.Pack(*width);
}

Floats ToFloats(const std::vector<int32_t>& values) { return {values.begin(), values.end()}; }

// -> tokens, log-probabilities, the logits that were sampled
std::vector<Floats> Processed(const Inputs& in, const LogitEdits::Arrays& edits, int64_t width) {
  const xla::Shape per_edit{DType::kF32, {in.rows, width}}, per_row{DType::kF32, {in.rows}};
  return xla::RunFn(
      [](std::span<const Value> x) -> Values {
        const Value edited = EditLogits(
            x[0], {.tokens_SK = x[7], .biases_SK = x[8], .factors_SK = x[9], .subtract_SK = x[10]});
        const Value logits = FilterLogits(
            edited, {.temperatures_S = x[2], .top_k_S = x[4], .top_p_S = x[5], .min_p_S = x[6]});
        const Sampled sampled = Sample(
            {.logits_SV = logits, .positions_S = x[1], .temperatures_S = x[2], .seeds_S2 = x[3]});
        return {sampled.tokens_S, sampled.logprobs_S, logits};
      },
      {{{DType::kF32, {in.rows, in.vocab}}, in.logits},
       {{DType::kS32, {in.rows}}, in.positions},
       {per_row, in.temperatures},
       {{DType::kU32, {in.rows, 2}}, in.seeds},
       {{DType::kS32, {in.rows}}, in.top_k},
       {per_row, in.top_p},
       {per_row, in.min_p},
       {{DType::kS32, {in.rows, width}}, ToFloats(edits.tokens)},
       {per_edit, edits.biases},
       {per_edit, edits.factors},
       {per_edit, edits.subtract}});
}

TEST(ProcessorsTest, T2_DrawsFollowTheDefinitionOfEveryProcessor) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<double> expected = ReferenceProbabilities(kLogits, c.request, c.sampled);
    int64_t width = 0;
    const Inputs in = Rows(kLogits, c.request, kRows);
    const auto edits = EditsOf(c.request, c.sampled, kRows, in.vocab, &width);
    const auto out = Processed(in, edits, width);
    ASSERT_EQ(out.size(), 3U);
    std::vector<int64_t> counts(kLogits.size(), 0);
    for (size_t i = 0; i < kRows; ++i) {
      const auto token = static_cast<size_t>(out[0][i]);
      ASSERT_LT(token, counts.size());
      ASSERT_GT(expected[token], 0) << "token " << token << " cannot be drawn";
      ++counts[token];
      ASSERT_NEAR(out[1][i], std::log(expected[token]), 2e-5) << "of the distribution sampled";
    }
    const auto possible = static_cast<size_t>(
        std::count_if(expected.begin(), expected.end(), [](double p) { return p > 0; }));
    if (possible > 1) {
      EXPECT_LT(ChiSquare(counts, expected), ChiSquareLimit(possible - 1));
    }
  }
}

// Random logits over a larger vocabulary: exactly the tokens of the definition stay.
TEST(ProcessorsTest, FiltersKeepExactlyTheTokensOfTheirDefinition) {
  constexpr size_t kVocab = 300, kCount = 40;
  Rng rng(11);
  std::vector<GenerateRequest> requests;
  Inputs in{.rows = kCount, .vocab = kVocab};
  for (size_t i = 0; i < kCount; ++i) {
    GenerateRequest request{.temperature = i % 5 == 4 ? 0.0 : 0.5 + rng.Uniform(),
                            .top_k = static_cast<int32_t>(i % 3 == 0 ? 0 : rng.Below(kVocab)),
                            .top_p = i % 4 == 0 ? 1.0 : 0.05 + 0.9 * rng.Uniform(),
                            .min_p = i % 2 == 0 ? 0.0 : 0.05 * rng.Uniform()};
    Floats logits;
    for (size_t v = 0; v < kVocab; ++v) logits.push_back(static_cast<float>(4 * rng.Normal()));
    const Inputs row = Rows(logits, request, 1);
    in.logits.insert(in.logits.end(), logits.begin(), logits.end());
    for (const auto& [to, from] :
         {std::pair(&in.positions, &row.positions), std::pair(&in.temperatures, &row.temperatures),
          std::pair(&in.seeds, &row.seeds), std::pair(&in.top_k, &row.top_k),
          std::pair(&in.top_p, &row.top_p), std::pair(&in.min_p, &row.min_p)}) {
      to->insert(to->end(), from->begin(), from->end());
    }
    requests.push_back(request);
  }
  int64_t width = 0;
  const auto edits = EditsOf({}, {}, kCount, kVocab, &width);
  const auto out = Processed(in, edits, width);
  ASSERT_EQ(out.size(), 3U);
  for (size_t i = 0; i < kCount; ++i) {
    const std::span<const float> logits = std::span(in.logits).subspan(i * kVocab, kVocab);
    const std::vector<double> expected = ReferenceProbabilities(logits, requests[i], {});
    for (size_t v = 0; v < kVocab; ++v) {
      const float kept = out[2][i * kVocab + v];
      if (expected[v] > 0) {
        ASSERT_EQ(kept, logits[v]) << "row " << i << ", token " << v << ": bit for bit";
      } else {
        ASSERT_EQ(kept, -std::numeric_limits<float>::infinity()) << "row " << i << ", token " << v;
      }
    }
  }
}

TEST(ProcessorsTest, NeighboursThatAskForNothingKeepTheirBits) {
  GenerateRequest asks{.prompt = {1, 2}, .top_k = 2, .repetition_penalty = 2};
  Inputs in = Rows(kLogits, asks, 2);
  in.top_k[1] = 0;
  LogitEdits edits(2, in.vocab, 64);
  edits.Begin(0, asks);
  const auto out = Processed(in, edits.Pack(edits.capacity()), edits.capacity());
  ASSERT_EQ(out.size(), 3U);
  EXPECT_EQ(Floats(out[2].begin() + in.vocab, out[2].end()), kLogits);
  EXPECT_NE(Floats(out[2].begin(), out[2].begin() + in.vocab), kLogits);
}

// A model that overflows must be noticed, whatever is filtered.
TEST(ProcessorsTest, NaNIsNeverHidden) {
  for (const float nan :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (const GenerateRequest& request :
         {GenerateRequest{.top_k = 2}, GenerateRequest{.top_p = 0.5}, GenerateRequest{.min_p = 0.5},
          GenerateRequest{.temperature = 0}}) {
      Floats logits = kLogits;
      logits[4] = nan;
      int64_t width = 0;
      const Inputs in = Rows(logits, request, 1);
      const auto edits = EditsOf({}, {}, 1, in.vocab, &width);
      const auto out = Processed(in, edits, width);
      ASSERT_EQ(out.size(), 3U);
      EXPECT_FALSE(std::isfinite(out[1][0]));
    }
  }
}

TEST(ProcessorsTest, TopLogprobsAreTheMostLikelyInOrder) {
  constexpr int64_t kMost = 6;
  // The second row can sample two tokens only.
  Floats logits = kLogits;
  Floats two(kLogits.size(), -std::numeric_limits<float>::infinity());
  two[3] = 1;
  two[7] = 2;
  logits.insert(logits.end(), two.begin(), two.end());
  const auto vocab = static_cast<int64_t>(kLogits.size());
  const auto out = xla::RunFn(
      [](std::span<const Value> x) -> Values {
        const Top top = TopLogprobs(
            {.logits_SV = x[0], .temperatures_S = x[1], .count = xla::Reshape(x[2], {})}, kMost);
        return {top.tokens_SN, top.logprobs_SN};
      },
      {{{DType::kF32, {2, vocab}}, logits},
       {{DType::kF32, {2}}, {0.5F, 0}},
       {{DType::kS32, {1}}, {5}}});
  ASSERT_EQ(out.size(), 2U);
  // Tokens 4 and 7 tie: the first one first.
  const Floats order = {9, 3, 6, 1, 4};
  EXPECT_EQ(Floats(out[0].begin(), out[0].begin() + 5), order);
  const std::vector<double> p = ReferenceProbabilities(kLogits, {.temperature = 0.5}, {});
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_NEAR(out[1][i], std::log(p[static_cast<size_t>(order[i])]), 1e-5);
  }
  EXPECT_EQ(out[0][kMost], 7);
  EXPECT_EQ(out[0][kMost + 1], 3);
  EXPECT_NEAR(out[1][kMost], -std::log1p(std::exp(-1.0)), 1e-5);
  EXPECT_FALSE(std::isfinite(out[1][kMost + 2])) << "nothing else can be sampled";
}

}  // namespace
}  // namespace forebay::rollout
