// The sorted, blocked experts equal a loop over all experts on all tokens: values and gradients,
// for any spread of tokens over experts, and with pairs whose expert is elsewhere.
#include "forebay/models/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/models/layers.h"
#include "forebay/models/program_testing.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::DType;
using xla::Value;
using xla::Values;

struct Sizes {
  int64_t tokens, top_k, experts, width, ff;
  DType dtype = DType::kF32;
};

struct Data {
  std::vector<int32_t> ids;
  std::vector<float> x, weights, gate, up, down, cotangent;
};

std::vector<float> Normal(Rng& rng, int64_t count, double scale) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(scale * rng.Normal());
  return values;
}

// `spread`: ids are drawn from [low, high).
Data Draw(Rng& rng, const Sizes& s, int32_t low, int32_t high) {
  const int64_t matrix = s.experts * s.ff * s.width;
  Data data{{},
            Normal(rng, s.tokens * s.width, 1),
            Normal(rng, s.tokens * s.top_k, 1),
            Normal(rng, matrix, 0.3),
            Normal(rng, matrix, 0.3),
            Normal(rng, matrix, 0.3),
            Normal(rng, s.tokens * s.width, 1)};
  for (int64_t i = 0; i < s.tokens * s.top_k; ++i) {
    data.ids.push_back(low + static_cast<int32_t>(rng.Below(static_cast<uint64_t>(high - low))));
  }
  return data;
}

// Every expert on every token, times the weight that the token gives it.
Value Dense(Value x, const Routing& routing, Value gate, Value up, Value down) {
  xla::Graph& graph = *x.graph();
  Value sum;
  for (int64_t e = 0; e < gate.dim(0); ++e) {
    const auto of = [&](Value all) { return xla::Squeeze(xla::Slice(all, 0, e, e + 1), 0); };
    const Value mine =
        xla::Compare(routing.experts_NK, xla::Constant(graph, static_cast<double>(e), DType::kS32),
                     xla::Comparison::kEq);
    const Value weight = xla::ReduceSum(
        xla::Select(mine, routing.weights_NK, xla::Constant(graph, 0, DType::kF32)), {1}, true);
    const Value part = SwiGlu(x, of(gate), of(up), of(down)) * weight;
    sum = sum.empty() ? part : sum + part;
  }
  return sum;
}

// The result, and the gradients of x, weights, gate, up and down.
std::vector<std::vector<float>> Evaluate(const Sizes& s, const Data& data, bool dense) {
  TestProgram program("experts");
  const Values in = {program.Input(F32({s.tokens, s.width}, data.x)),
                     program.Input(F32({s.tokens, s.top_k}, data.weights)),
                     program.Input(F32({s.experts, s.ff, s.width}, data.gate)),
                     program.Input(F32({s.experts, s.ff, s.width}, data.up)),
                     program.Input(F32({s.experts, s.width, s.ff}, data.down))};
  const Routing routing{program.Input(S32({s.tokens, s.top_k}, data.ids)), in[1]};
  const Value cotangent = program.Input(F32({s.tokens, s.width}, data.cotangent));
  const Value out =
      dense ? Dense(in[0], routing, in[2], in[3], in[4])
            : As(MixExperts(As(in[0], s.dtype), routing, {in[2], in[3], in[4]}), DType::kF32);
  Values results = {out};
  for (const Value& d : xla::Vjp(Values{out}, Values{cotangent}, in)) results.push_back(d);
  return program.Run(results);
}

void ExpectClose(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT(MaxDifference(got[i], expected[i]), tolerance * (1 + MaxMagnitude(expected[i])))
        << "result " << i;
  }
}

TEST(Experts, EqualALoopOverAllExperts) {
  for (const Sizes& s : {Sizes{1, 1, 1, 4, 6}, Sizes{33, 2, 4, 8, 12}, Sizes{200, 3, 5, 4, 8},
                         Sizes{20, 2, 32, 8, 4}}) {
    const auto all = static_cast<int32_t>(s.experts);
    Rng rng(static_cast<uint64_t>(s.tokens));
    struct Range {
      int32_t low, high;
    };
    // Spread; all on one expert; some of other shards; none here.
    for (const Range& range :
         {Range{0, all}, Range{all - 1, all}, Range{-all, 2 * all}, Range{all, all + 3}}) {
      SCOPED_TRACE(std::to_string(s.tokens) + " tokens, experts " + std::to_string(range.low) +
                   " to " + std::to_string(range.high));
      const Data data = Draw(rng, s, range.low, range.high);
      ExpectClose(Evaluate(s, data, false), Evaluate(s, data, true), 2e-5);
    }
  }
}

TEST(Experts, TheSameInputsGiveTheSameBits) {
  Rng rng(3);
  const Sizes s{90, 3, 4, 8, 8};
  const Data data = Draw(rng, s, 0, 4);
  EXPECT_EQ(Evaluate(s, data, false), Evaluate(s, data, false));
}

TEST(Experts, Bf16ActivationsKeepGradientsOfTheWeightsInF32) {
  Rng rng(4);
  const Sizes s{60, 2, 4, 16, 16, DType::kBF16};
  const Data data = Draw(rng, s, 0, 4);
  ExpectClose(Evaluate(s, data, false), Evaluate(s, data, true), 0.02);
}

TEST(Routing, ChoosesTheMostProbableExpertsAndDividesByTheirSum) {
  Rng rng(5);
  const int64_t tokens = 7, width = 6, experts = 5, top_k = 3;
  const auto x = Normal(rng, tokens * width, 1), router = Normal(rng, experts * width, 1);
  for (const bool normalize : {false, true}) {
    TestProgram program("route");
    const Routing routing = Route(program.Input(F32({tokens, width}, x)),
                                  program.Input(F32({experts, width}, router)), top_k, normalize);
    const auto values =
        program.Run({xla::Convert(routing.experts_NK, DType::kF32), routing.weights_NK});
    for (int64_t n = 0; n < tokens; ++n) {
      std::vector<double> scores;
      double total = 0;
      for (int64_t e = 0; e < experts; ++e) {
        double score = 0;
        for (int64_t d = 0; d < width; ++d) {
          score += static_cast<double>(x[static_cast<size_t>(n * width + d)]) *
                   router[static_cast<size_t>(e * width + d)];
        }
        scores.push_back(std::exp(score));
        total += scores.back();
      }
      std::vector<double> left = scores;
      double sum = 0;
      for (int64_t k = 0; k < top_k; ++k) {
        const auto best = std::max_element(left.begin(), left.end());
        const auto at = static_cast<size_t>(n * top_k + k);
        EXPECT_EQ(values[0][at], static_cast<float>(best - left.begin()));
        if (!normalize) EXPECT_NEAR(values[1][at], *best / total, 1e-5);
        sum += values[1][at];
        *best = -1;
      }
      if (normalize) EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
}

TEST(Experts, RefusesShapesThatDoNotBelongTogether) {
  xla::Graph graph("bad");
  const auto value = [&](xla::Dims dims, DType dtype = DType::kF32) {
    return graph.Parameter({dtype, std::move(dims)}, "v");
  };
  MixExperts(value({8, 4}), {value({8, 2}, DType::kS32), value({8, 2})},
             {value({3, 6, 4}), value({3, 6, 4}), value({3, 6, 4})});
  EXPECT_NE(graph.status().message().find("MixExperts: x f32[8,4]"), std::string::npos)
      << graph.status().ToString();
}

}  // namespace
}  // namespace forebay::models
