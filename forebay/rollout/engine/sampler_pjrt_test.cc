// The sampler draws from the distribution whose log-probabilities it reports, and a row's draw
// depends on that row alone.
#include "forebay/rollout/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/rollout/engine/host_sampler.h"
#include "forebay/rollout/engine/reference_sampling_testing.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using xla::DType;
using xla::Floats;
using xla::Value;
using xla::Values;

constexpr int64_t kRows = 20000;

Floats Filled(size_t count, const std::function<float(size_t)>& at) {
  Floats out(count);
  for (size_t i = 0; i < count; ++i) out[i] = at(i);
  return out;
}

struct Rows {
  Floats logits, positions, temperatures, seeds;
};

// As ops of the plugin, and as the host kernel.
enum class Form { kTraced, kKernel };

// -> tokens, log-probabilities
std::vector<Floats> RunSample(Form form, const Rows& rows, int64_t vocab) {
  const auto n = static_cast<int64_t>(rows.positions.size());
  return xla::RunFn(
      [=](std::span<const Value> in) -> Values {
        xla::UseHostProducts(*in[0].graph(), form == Form::kKernel ? 1 : 0);
        const Sampled sampled = Sample(
            {.logits_SV = in[0], .positions_S = in[1], .temperatures_S = in[2], .seeds_S2 = in[3]});
        return {sampled.tokens_S, sampled.logprobs_S};
      },
      {{{DType::kF32, {n, vocab}}, rows.logits},
       {{DType::kS32, {n}}, rows.positions},
       {{DType::kF32, {n}}, rows.temperatures},
       {{DType::kU32, {n, 2}}, rows.seeds}});
}

const Floats kLogits = {0.0F, 1.0F, -1.0F, 2.0F, 0.5F, -3.0F, 1.5F, 0.25F, -0.5F, 2.5F};

std::vector<double> Softmax(const Floats& logits, double temperature) {
  std::vector<double> p;
  for (const float logit : logits) p.push_back(std::exp(logit / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// kRows draws from kLogits: `vary` sets what makes the rows differ.
Rows Draws(double temperature, const std::function<void(size_t row, Rows* rows)>& vary) {
  const size_t v = kLogits.size();
  Rows rows{.logits = Filled(kRows * v, [v](size_t i) { return kLogits[i % v]; }),
            .positions = Floats(kRows, 7),
            .temperatures = Floats(kRows, static_cast<float>(temperature)),
            .seeds = Floats(2 * kRows, 3)};
  for (size_t i = 0; i < kRows; ++i) vary(i, &rows);
  return rows;
}

void ExpectDrawsFollow(Form form, const Rows& rows, double temperature) {
  const std::vector<double> expected = Softmax(kLogits, temperature);
  const auto out = RunSample(form, rows, static_cast<int64_t>(kLogits.size()));
  ASSERT_EQ(out.size(), 2U);
  std::vector<int64_t> counts(kLogits.size(), 0);
  for (size_t i = 0; i < kRows; ++i) {
    const auto token = static_cast<size_t>(out[0][i]);
    ASSERT_LT(token, counts.size());
    ++counts[token];
    ASSERT_NEAR(out[1][i], std::log(expected[token]), 1e-5) << "T2: of the distribution sampled";
  }
  EXPECT_LT(ChiSquare(counts, expected), ChiSquareLimit(kLogits.size() - 1));
}

class SamplerTest : public testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, SamplerTest, testing::Values(Form::kTraced, Form::kKernel));

TEST_P(SamplerTest, T2_DrawsFollowTheReportedProbabilitiesOverPositions) {
  for (const double temperature : {1.0, 0.7, 1.6}) {
    ExpectDrawsFollow(
        GetParam(),
        Draws(temperature, [](size_t i, Rows* r) { r->positions[i] = static_cast<float>(i); }),
        temperature);
  }
}

TEST_P(SamplerTest, DrawsFollowTheReportedProbabilitiesOverSeeds) {
  ExpectDrawsFollow(
      GetParam(), Draws(1, [](size_t i, Rows* r) { r->seeds[2 * i] = static_cast<float>(i); }), 1);
  ExpectDrawsFollow(
      GetParam(), Draws(1, [](size_t i, Rows* r) { r->seeds[2 * i + 1] = static_cast<float>(i); }),
      1);
}

TEST_P(SamplerTest, SuccessiveDrawsAreIndependent) {
  const auto out = RunSample(
      GetParam(), Draws(1, [](size_t i, Rows* r) { r->positions[i] = static_cast<float>(i); }),
      static_cast<int64_t>(kLogits.size()));
  ASSERT_EQ(out.size(), 2U);
  const std::vector<double> p = Softmax(kLogits, 1);
  const size_t v = kLogits.size();
  std::vector<int64_t> pairs(v * v, 0);
  std::vector<double> expected(v * v);
  for (size_t i = 0; i < v * v; ++i) expected[i] = p[i / v] * p[i % v];
  for (size_t i = 0; i + 1 < kRows; i += 2) {
    ++pairs[static_cast<size_t>(out[0][i]) * v + static_cast<size_t>(out[0][i + 1])];
  }
  EXPECT_LT(ChiSquare(pairs, expected), ChiSquareLimit(v * v - 1));
}

TEST_P(SamplerTest, GreedyTakesTheLargestAndReportsTemperatureOne) {
  Rows rows = Draws(0, [](size_t i, Rows* r) { r->positions[i] = static_cast<float>(i); });
  const auto out = RunSample(GetParam(), rows, static_cast<int64_t>(kLogits.size()));
  ASSERT_EQ(out.size(), 2U);
  const double expected = std::log(Softmax(kLogits, 1)[9]);
  for (size_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(out[0][i], 9);
    ASSERT_NEAR(out[1][i], expected, 1e-5);
  }
}

TEST_P(SamplerTest, ARowDependsOnNothingButItself) {
  Rng rng(5);
  constexpr size_t kCount = 64, kVocab = 100;
  Rows rows{
      .logits =
          Filled(kCount * kVocab, [&](size_t) { return static_cast<float>(3 * rng.Normal()); }),
      .positions = Filled(kCount, [&](size_t) { return static_cast<float>(rng.Below(1000)); }),
      .temperatures = Filled(kCount, [](size_t i) { return static_cast<float>(i % 3); }),
      .seeds = Filled(2 * kCount, [&](size_t) { return static_cast<float>(rng.Below(1 << 24)); })};
  const auto all = RunSample(GetParam(), rows, kVocab);
  ASSERT_EQ(all.size(), 2U);
  // Each row elsewhere, among others, in a batch of another size.
  for (size_t row = 0; row < kCount; row += 7) {
    const auto slice = [row](const Floats& x, size_t width) {
      return Floats(x.begin() + static_cast<int64_t>(row * width),
                    x.begin() + static_cast<int64_t>((row + 1) * width));
    };
    const auto alone = RunSample(GetParam(),
                                 {slice(rows.logits, kVocab), slice(rows.positions, 1),
                                  slice(rows.temperatures, 1), slice(rows.seeds, 2)},
                                 kVocab);
    ASSERT_EQ(alone.size(), 2U);
    EXPECT_EQ(alone[0][0], all[0][row]) << row;
    EXPECT_NEAR(alone[1][0], all[1][row], 1e-5) << row;
  }
}

// Bits of rows that differ by one in seed or position, and of neighbouring columns: uniform in each
// byte, and each bit flips half the time from one to the next.
TEST(RandomBitsTest, BitsAreUniformAndAvalanche) {
  constexpr int64_t kN = 64, kColumns = 1024;
  const auto bytes = xla::RunFn(
      [](std::span<const Value> in) -> Values {
        xla::Graph& graph = *in[0].graph();
        const Value bits = RandomBits(in[0], in[1], kColumns);
        Values out;
        for (const int shift : {0, 8, 16, 24}) {
          out.push_back(
              xla::And(xla::ShiftRightLogical(bits, xla::Constant(graph, shift, DType::kU32)),
                       xla::Constant(graph, 255, DType::kU32)));
        }
        return out;
      },
      {{{DType::kU32, {kN, 2}},
        Filled(2 * kN, [](size_t i) { return static_cast<float>(i >> 4); })},
       {{DType::kS32, {kN}}, Filled(kN, [](size_t i) { return static_cast<float>(i % 8); })}});
  ASSERT_EQ(bytes.size(), 4U);
  for (const Floats& byte : bytes) {
    ASSERT_EQ(byte.size(), static_cast<size_t>(kN * kColumns));
    std::vector<int64_t> counts(256, 0);
    for (const float value : byte) ++counts[static_cast<size_t>(value)];
    EXPECT_LT(ChiSquare(counts, std::vector<double>(256, 1.0 / 256)), ChiSquareLimit(255));
    for (const int64_t step : {int64_t{1}, kColumns}) {  // the next column, the next row
      std::vector<int64_t> flips(8, 0);
      const auto pairs = kN * kColumns - step;
      for (int64_t i = 0; i < pairs; ++i) {
        const auto changed = static_cast<unsigned>(byte[static_cast<size_t>(i)]) ^
                             static_cast<unsigned>(byte[static_cast<size_t>(i + step)]);
        for (size_t bit = 0; bit < 8; ++bit) flips[bit] += (changed >> bit) & 1U;
      }
      for (const int64_t count : flips) {
        EXPECT_NEAR(static_cast<double>(count) / static_cast<double>(pairs), 0.5, 0.01);
      }
    }
  }
}

// Half of the mass on one token against many rare ones, whose largest noise decides.
TEST_P(SamplerTest, RareTokensAreDrawnAsOftenAsTheyShould) {
  constexpr int64_t kN = 256, kVocab = 4096;
  // The other half on 4095 tokens of 2^-13 each.
  Rows rows{.logits = Filled(kN * kVocab,
                             [](size_t i) { return i % kVocab == 0 ? std::log(4095.0F) : 0.0F; }),
            .positions = Filled(kN, [](size_t i) { return static_cast<float>(i); }),
            .temperatures = Floats(kN, 1),
            .seeds = Floats(2 * kN, 11)};
  const auto out = RunSample(GetParam(), rows, kVocab);
  ASSERT_EQ(out.size(), 2U);
  const auto zeros = std::count(out[0].begin(), out[0].end(), 0.0F);
  EXPECT_NEAR(static_cast<double>(zeros) / kN, 0.5, 0.125);  // four standard deviations
}

// The same race: tokens differ only where two clocks ring within a rounding of each other.
TEST(HostSamplerTest, EqualsTheTracedSampler) {
  for (const int64_t vocab : {1, 10, 16, 1003}) {
    constexpr size_t kN = 200;
    Rows rows{.logits = xla::RandomFloats(static_cast<int64_t>(kN) * vocab, 3, -9, 9),
              .positions = Filled(kN, [](size_t i) { return static_cast<float>(i); }),
              .temperatures = Filled(kN, [](size_t i) { return static_cast<float>(i % 4) / 2; }),
              .seeds = Filled(2 * kN, [](size_t i) { return static_cast<float>(i * 77); })};
    const auto traced = RunSample(Form::kTraced, rows, vocab);
    const auto kernel = RunSample(Form::kKernel, rows, vocab);
    int others = 0;
    for (size_t i = 0; i < kN; ++i) {
      if (traced[0][i] != kernel[0][i]) {
        ++others;
      } else {
        EXPECT_NEAR(traced[1][i], kernel[1][i], 1e-5) << vocab << ", " << i;
      }
    }
    EXPECT_LE(others, 1);
  }
}

class HostSamplerCode : public testing::TestWithParam<host_sampler::DrawFn> {};
INSTANTIATE_TEST_SUITE_P(Codes, HostSamplerCode,
                         testing::Values(host_sampler::Portable(), host_sampler::Avx512()));

TEST_P(HostSamplerCode, NeverDrawsWhatIsRuledOutNorBeyondTheEnd) {
  if (GetParam() == nullptr) GTEST_SKIP() << "this processor has no AVX-512";
  const float infinity = std::numeric_limits<float>::infinity();
  Floats logits(37, -infinity);
  logits[5] = 1;
  logits[36] = 1;
  int last = 0;
  for (uint32_t key = 0; key < 2000; ++key) {
    const host_sampler::Draw draw = GetParam()(
        {.logits = logits.data(), .vocab = 37, .temperature = 0.5F, .key0 = key, .key1 = ~key});
    ASSERT_TRUE(draw.token == 5 || draw.token == 36) << draw.token;
    EXPECT_NEAR(draw.logprob, std::log(0.5), 1e-6);
    last += draw.token == 36 ? 1 : 0;
  }
  EXPECT_NEAR(last, 1000, 100);
}

TEST_P(HostSamplerCode, WhatIsNotFiniteShowsInTheLogprob) {
  if (GetParam() == nullptr) GTEST_SKIP() << "this processor has no AVX-512";
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const float temperature : {0.0F, 1.0F}) {
      for (const bool all : {false, true}) {
        Floats logits(21, all ? wrong : 0.5F);
        logits[20] = wrong;
        const host_sampler::Draw draw = GetParam()({.logits = logits.data(),
                                                    .vocab = 21,
                                                    .temperature = temperature,
                                                    .key0 = 1,
                                                    .key1 = 2});
        EXPECT_FALSE(std::isfinite(draw.logprob));
        EXPECT_GE(draw.token, 0);
        EXPECT_LT(draw.token, 21);
      }
    }
  }
}

TEST_P(HostSamplerCode, GreedyTakesTheFirstOfEqualOnes) {
  if (GetParam() == nullptr) GTEST_SKIP() << "this processor has no AVX-512";
  Floats logits(100, -1);
  for (const size_t at : {97U, 64U, 33U, 17U}) {
    logits[at] = 3;
    const host_sampler::Draw draw =
        GetParam()({.logits = logits.data(), .vocab = 100, .temperature = 0, .key0 = 1, .key1 = 2});
    EXPECT_EQ(draw.token, static_cast<int32_t>(at));
  }
}

}  // namespace
}  // namespace forebay::rollout
