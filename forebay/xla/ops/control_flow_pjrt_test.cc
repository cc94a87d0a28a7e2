// Scan, ForLoop, While, Cond, Remat and CustomVjp: values, and gradients equal to those of unrolled
// code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

constexpr int kSteps = 4;

// h' = tanh(h W + x * scale): uses a carry, an x and two captures.
Value Layer(Value h, Value x, Value w, Value scale) { return Tanh(MatMul(h, w) + x * scale); }

std::vector<Argument> LayerArguments() {
  return {RandomArgument({2, 3}, 1), RandomArgument({kSteps, 2, 3}, 2), RandomArgument({3, 3}, 3),
          RandomArgument({3}, 4)};
}

// Final carry, and y = sum(h) per step.
Values Scanned(std::span<const Value> v, bool reverse, bool remat) {
  return Scan(
      [&](std::span<const Value> args) {
        const BodyFn layer = [&](std::span<const Value> in) {
          const Value h = Layer(in[0], in[1], v[2], v[3]);
          return Values{h, ReduceSum(h * h, {0, 1})};
        };
        return remat ? Remat(layer, args) : layer(args);
      },
      Values{v[0]}, Values{v[1]}, {.reverse = reverse});
}

Values Unrolled(std::span<const Value> v, bool reverse) {
  Value h = v[0];
  Values ys(kSteps);
  for (int k = 0; k < kSteps; ++k) {
    const int i = reverse ? kSteps - 1 - k : k;
    h = Layer(h, Squeeze(Slice(v[1], 0, i, i + 1), 0), v[2], v[3]);
    ys[static_cast<size_t>(i)] = ExpandDims(ReduceSum(h * h, {0, 1}), 0);
  }
  return {h, Concatenate(ys, 0)};
}

// The outputs, then the gradients of a loss of all outputs with respect to all arguments.
TracedFn WithGradients(const TracedFn& fn) {
  return [fn](std::span<const Value> v) {
    Values out = fn(v);
    Value loss = Constant(*v[0].graph(), 0, DType::kF32);
    for (const Value& y : out) {
      Dims axes;
      for (int64_t i = 0; i < y.shape().rank(); ++i) axes.push_back(i);
      loss = loss + ReduceSum(Sin(y), axes);
    }
    const Values grads = Gradients(loss, v);
    out.insert(out.end(), grads.begin(), grads.end());
    return out;
  };
}

void ExpectSame(const TracedFn& a, const TracedFn& b, const std::vector<Argument>& arguments) {
  const auto x = RunFn(a, arguments);
  const auto y = RunFn(b, arguments);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) ExpectNear(x[i], y[i], 2e-5, "result " + std::to_string(i));
}

class ScanDirections : public testing::TestWithParam<std::pair<bool, bool>> {};

TEST_P(ScanDirections, EqualsUnrolledWithGradients) {
  const auto [reverse, remat] = GetParam();
  ExpectSame(WithGradients([=](std::span<const Value> v) { return Scanned(v, reverse, remat); }),
             WithGradients([=](std::span<const Value> v) { return Unrolled(v, reverse); }),
             LayerArguments());
}

INSTANTIATE_TEST_SUITE_P(All, ScanDirections,
                         testing::Values(std::pair(false, false), std::pair(true, false),
                                         std::pair(false, true), std::pair(true, true)));

// A gradient taken inside a scan body (accumulation over micro-batches), of values made outside it.
TEST(Scan, GradientsInsideABody) {
  const TracedFn inside = [](std::span<const Value> v) {
    const Value scale = Exp(v[3]);  // the gradient goes on through it to v[3], outside the body
    const Values sums = Scan(
        [&](std::span<const Value> a) {
          const Value y = Layer(v[0], a[2], v[2], scale);
          const Values g = Gradients(ReduceSum(y * y, {0, 1}), Values{v[2], v[3]});
          return Values{a[0] + g[0], a[1] + g[1]};
        },
        Values{ZerosLike(v[2]), ZerosLike(v[3])}, Values{v[1]});
    return sums;
  };
  const TracedFn outside = [](std::span<const Value> v) {
    Value loss = Constant(*v[0].graph(), 0, DType::kF32);
    for (int i = 0; i < kSteps; ++i) {
      const Value y = Layer(v[0], Squeeze(Slice(v[1], 0, i, i + 1), 0), v[2], Exp(v[3]));
      loss = loss + ReduceSum(y * y, {0, 1});
    }
    return Gradients(loss, Values{v[2], v[3]});
  };
  ExpectSame(inside, outside, LayerArguments());
}

// A scan in a scan body, with the inner one capturing the outer carry.
TEST(Scan, NestedEqualsUnrolled) {
  const TracedFn nested = [](std::span<const Value> v) {
    return Scan(
        [&](std::span<const Value> outer) {
          const Value h = outer[0];
          const Values inner = Scan(
              [&](std::span<const Value> a) {
                return Values{a[0] + Layer(h, a[1], v[2], v[3]) * 0.5};
              },
              Values{outer[1]}, Values{v[1]});
          return Values{inner[0]};
        },
        Values{v[0]}, Values{v[1]});
  };
  const TracedFn unrolled = [](std::span<const Value> v) {
    const auto x = [&](int i) { return Squeeze(Slice(v[1], 0, i, i + 1), 0); };
    Value h = v[0];
    for (int i = 0; i < kSteps; ++i) {
      Value sum = x(i);
      for (int j = 0; j < kSteps; ++j) sum = sum + Layer(h, x(j), v[2], v[3]) * 0.5;
      h = sum;
    }
    return Values{h};
  };
  ExpectSame(WithGradients(nested), WithGradients(unrolled), LayerArguments());
}

// Integer carries and xs take part without gradients; a carry that starts constant becomes active.
TEST(Scan, IntegerAndLateActiveCarries) {
  const std::vector<Argument> arguments{RandomArgument({3}, 5), RandomArgument({kSteps, 3}, 6)};
  const TracedFn scanned = [](std::span<const Value> v) {
    Graph& g = *v[0].graph();
    const Values r = Scan(
        [&](std::span<const Value> a) {
          const Value step = Convert(a[1], DType::kF32) + Convert(a[3], DType::kF32);
          return Values{a[0] + v[0] * a[2] * step, a[1] + Constant(g, 1, DType::kS32)};
        },
        Values{Full(g, 0, {DType::kF32, {3}}), Constant(g, 1, DType::kS32)},
        Values{v[1], Iota(g, {DType::kS32, {kSteps}}, 0)});
    return Values{r[0]};
  };
  const TracedFn unrolled = [](std::span<const Value> v) {
    Value sum = ZerosLike(v[0]);
    for (int i = 0; i < kSteps; ++i) {
      sum = sum + v[0] * Squeeze(Slice(v[1], 0, i, i + 1), 0) * (1.0 + 2 * i);
    }
    return Values{sum};
  };
  ExpectSame(WithGradients(scanned), WithGradients(unrolled), arguments);
}

TEST(ForLoop, CountsStepsAndDifferentiates) {
  const TracedFn looped = [](std::span<const Value> v) {
    return ForLoop(
        *v[0].graph(), 3,
        [&](std::span<const Value> a) {
          return Values{Sin(a[0]) * v[1] + Convert(a[1], DType::kF32)};
        },
        Values{v[0]});
  };
  const TracedFn unrolled = [](std::span<const Value> v) {
    Value x = v[0];
    for (int i = 0; i < 3; ++i) x = Sin(x) * v[1] + static_cast<double>(i);
    return Values{x};
  };
  ExpectSame(WithGradients(looped), WithGradients(unrolled),
             {RandomArgument({4}, 7), RandomArgument({4}, 8)});
}

TEST(While, RunsUntilItsConditionFails) {
  const Argument limit{{DType::kF32, {}}, {100}};
  const Argument factor{{DType::kF32, {}}, {3}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        Graph& g = *v[0].graph();
        return While(
            [&](std::span<const Value> s) { return Values{Compare(s[0], v[0], Comparison::kLt)}; },
            [&](std::span<const Value> s) {
              return Values{s[0] * v[1], s[1] + Constant(g, 1, DType::kS32)};
            },
            Values{Constant(g, 1, DType::kF32), Constant(g, 0, DType::kS32)});
      },
      {limit, factor});
  EXPECT_EQ(r.at(0), (Floats{243}));
  EXPECT_EQ(r.at(1), (Floats{5}));
}

TEST(While, GradientThroughItIsAnError) {
  Graph graph("while");
  const Value x = graph.Parameter({DType::kF32, {}}, "x");
  const Values r = While(
      [&](std::span<const Value> s) {
        return Values{Compare(s[0], Constant(graph, 9, DType::kF32), Comparison::kLt)};
      },
      [&](std::span<const Value> s) { return Values{s[0] * 2.0}; }, Values{x});
  const Values g = Gradients(r[0], Values{x});
  const Result<Program> program = graph.Finish(g);
  ASSERT_FALSE(program.ok());
  EXPECT_NE(program.status().message().find("While: has no gradient"), std::string::npos)
      << program.status().message();
}

// Branches capture different outside values in different orders.
TEST(Cond, ChoosesAndDifferentiates) {
  for (const float chosen : {0.0F, 1.0F}) {
    const std::vector<Argument> arguments{RandomArgument({3}, 9), RandomArgument({3}, 10),
                                          RandomArgument({3}, 11)};
    const TracedFn cond = [&](std::span<const Value> v) {
      const Value p = Compare(Constant(*v[0].graph(), chosen, DType::kF32),
                              Constant(*v[0].graph(), 0.5, DType::kF32), Comparison::kGt);
      return Cond(
          p, [&](std::span<const Value> a) { return Values{a[0] * v[2] + Exp(v[1])}; },
          [&](std::span<const Value> a) { return Values{Sin(v[1]) * a[0] * 2.0}; }, Values{v[0]});
    };
    const TracedFn plain = [&](std::span<const Value> v) {
      return Values{chosen > 0.5F ? v[0] * v[2] + Exp(v[1]) : Sin(v[1]) * v[0] * 2.0};
    };
    ExpectSame(WithGradients(cond), WithGradients(plain), arguments);
  }
}

TEST(Cond, InsideAScan) {
  const TracedFn scanned = [](std::span<const Value> v) {
    return Scan(
        [&](std::span<const Value> a) {
          const Value odd = Compare(Rem(a[2], Constant(*v[0].graph(), 2, DType::kS32)),
                                    Constant(*v[0].graph(), 1, DType::kS32), Comparison::kEq);
          return Cond(
              odd, [&](std::span<const Value> h) { return Values{h[0] * v[2]}; },
              [&](std::span<const Value> h) { return Values{h[0] + a[1]}; }, Values{a[0]});
        },
        Values{v[0]}, Values{v[1], Iota(*v[0].graph(), {DType::kS32, {kSteps}}, 0)});
  };
  const TracedFn unrolled = [](std::span<const Value> v) {
    Value h = v[0];
    for (int i = 0; i < kSteps; ++i) {
      h = i % 2 == 1 ? h * v[2] : h + Squeeze(Slice(v[1], 0, i, i + 1), 0);
    }
    return Values{h};
  };
  ExpectSame(WithGradients(scanned), WithGradients(unrolled),
             {RandomArgument({3}, 12), RandomArgument({kSteps, 3}, 13), RandomArgument({3}, 14)});
}

TEST(Remat, EqualsPlainAndRecomputesBehindABarrier) {
  const TracedFn remat = [](std::span<const Value> v) {
    return Remat(
        [&](std::span<const Value> a) { return Values{Layer(a[0], a[1], v[2], v[3]), Exp(a[0])}; },
        Values{v[0], v[1]});
  };
  const TracedFn plain = [](std::span<const Value> v) {
    return Values{Layer(v[0], v[1], v[2], v[3]), Exp(v[0])};
  };
  const std::vector<Argument> arguments{RandomArgument({2, 3}, 15), RandomArgument({2, 3}, 16),
                                        RandomArgument({3, 3}, 17), RandomArgument({3}, 18)};
  ExpectSame(WithGradients(remat), WithGradients(plain), arguments);

  Graph graph("remat");
  Values v;
  for (const Argument& a : arguments) v.push_back(graph.Parameter(a.shape, "p"));
  const Result<Program> program = graph.Finish(WithGradients(remat)(v));
  ASSERT_TRUE(program.ok());
  const std::string& text = program->stablehlo;
  EXPECT_NE(text.find("optimization_barrier"), std::string::npos);
  size_t tanhs = 0;
  for (size_t at = 0; (at = text.find("stablehlo.tanh", at)) != std::string::npos; ++at) ++tanhs;
  EXPECT_EQ(tanhs, 2U) << "once forward, once again in the backward pass";
}

TEST(CustomVjp, UsesItsRule) {
  const Argument x = RandomArgument({3}, 19);
  const auto r = RunFn(
      [](std::span<const Value> v) {
        const auto y = CustomVjp(
            [](std::span<const Value> a) { return Values{Exp(a[0]), a[0] * a[1]}; },
            [](std::span<const Value>, std::span<const Value> ys, std::span<const Value> cts) {
              return Values{cts[0] * ys[0] * 10.0 + cts[1], Value()};
            },
            Values{v[0], v[0] * 2.0});
        return Gradients(ReduceSum(y[0] + y[1] * 0.0, {0}), Values{v[0]});
      },
      {x});
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(r.at(0)[i], 10 * std::exp(x.values[i]), 1e-4);
}

TEST(CustomVjp, GradientOfACaptureIsAnError) {
  Graph graph("capture");
  const Value x = graph.Parameter({DType::kF32, {2}}, "x");
  const Value w = graph.Parameter({DType::kF32, {2}}, "w");
  const Values y = CustomVjp([&](std::span<const Value> a) { return Values{a[0] * w}; },
                             [&](std::span<const Value>, std::span<const Value>,
                                 std::span<const Value> cts) { return Values{cts[0]}; },
                             Values{x});
  const Values g = Gradients(ReduceSum(y[0], {0}), Values{w});
  EXPECT_NE(graph.Finish(g).status().message().find("pass it in xs"), std::string::npos);
}

}  // namespace
}  // namespace forebay::xla
