// Values and gradients of the elementwise, shape, product, reduction and lookup ops on the CPU
// plugin.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct UnaryCase {
  const char* name;
  Value (*op)(Value);
  float (*reference)(float);
  float low, high;
};

class UnaryOps : public testing::TestWithParam<UnaryCase> {};

TEST_P(UnaryOps, ValueAndGradient) {
  const UnaryCase& c = GetParam();
  const Argument x = RandomArgument({3, 5}, 1, c.low, c.high);
  const TracedFn fn = [&](std::span<const Value> v) { return Values{c.op(v[0])}; };
  Floats expected;
  for (const float v : x.values) expected.push_back(c.reference(v));
  ExpectNear(RunFn(fn, {x}).at(0), expected, 1e-5, c.name);
  ExpectGradientsMatch(fn, {x}, {.step = 3e-3});
}

INSTANTIATE_TEST_SUITE_P(
    All, UnaryOps,
    testing::Values(UnaryCase{"Neg", Neg, [](float x) { return -x; }, -2, 2},
                    UnaryCase{"Abs", Abs, [](float x) { return std::fabs(x); }, 0.5, 2},
                    UnaryCase{"AbsNegative", Abs, [](float x) { return std::fabs(x); }, -2, -0.5},
                    UnaryCase{"Exp", Exp, [](float x) { return std::exp(x); }, -2, 2},
                    UnaryCase{"Log", Log, [](float x) { return std::log(x); }, 0.5, 3},
                    UnaryCase{"Log1p", Log1p, [](float x) { return std::log1p(x); }, -0.4, 3},
                    UnaryCase{"Sqrt", Sqrt, [](float x) { return std::sqrt(x); }, 0.5, 3},
                    UnaryCase{"Rsqrt", Rsqrt, [](float x) { return 1 / std::sqrt(x); }, 0.5, 3},
                    UnaryCase{"Tanh", Tanh, [](float x) { return std::tanh(x); }, -2, 2},
                    UnaryCase{"Logistic", Logistic, [](float x) { return 1 / (1 + std::exp(-x)); },
                              -3, 3},
                    UnaryCase{"Sin", Sin, [](float x) { return std::sin(x); }, -3, 3},
                    UnaryCase{"Cos", Cos, [](float x) { return std::cos(x); }, -3, 3},
                    UnaryCase{"Silu", Silu, [](float x) { return x / (1 + std::exp(-x)); }, -3, 3}),
    [](const testing::TestParamInfo<UnaryCase>& i) { return i.param.name; });

struct BinaryCase {
  const char* name;
  Value (*op)(Value, Value);
  float (*reference)(float, float);
  float low, high;
};

class BinaryOps : public testing::TestWithParam<BinaryCase> {};

// [2, 3, 4] with [3, 1]: a leading and an inner axis stretch, and the gradient sums over both.
TEST_P(BinaryOps, BroadcastValueAndGradient) {
  const BinaryCase& c = GetParam();
  const Argument a = RandomArgument({2, 3, 4}, 2, c.low, c.high);
  const Argument b = RandomArgument({3, 1}, 3, c.low, c.high);
  const TracedFn fn = [&](std::span<const Value> v) { return Values{c.op(v[0], v[1])}; };
  Floats expected;
  for (size_t i = 0; i < 24; ++i) expected.push_back(c.reference(a.values[i], b.values[i / 4 % 3]));
  ExpectNear(RunFn(fn, {a, b}).at(0), expected, 1e-5, c.name);
  ExpectGradientsMatch(fn, {a, b}, {.step = 3e-3});
}

INSTANTIATE_TEST_SUITE_P(
    All, BinaryOps,
    testing::Values(BinaryCase{"Add", Add, [](float a, float b) { return a + b; }, -2, 2},
                    BinaryCase{"Sub", Sub, [](float a, float b) { return a - b; }, -2, 2},
                    BinaryCase{"Mul", Mul, [](float a, float b) { return a * b; }, -2, 2},
                    BinaryCase{"Div", Div, [](float a, float b) { return a / b; }, 0.5, 2},
                    BinaryCase{"Max", Max, [](float a, float b) { return std::fmax(a, b); }, -2, 2},
                    BinaryCase{"Min", Min, [](float a, float b) { return std::fmin(a, b); }, -2, 2},
                    BinaryCase{"Pow", Pow, [](float a, float b) { return std::pow(a, b); }, 0.5,
                               2}),
    [](const testing::TestParamInfo<BinaryCase>& i) { return i.param.name; });

TEST(Elementwise, TiesShareAndClampIsClosed) {
  const Argument a{{DType::kF32, {3}}, {1, 2, 3}};
  const Argument b{{DType::kF32, {3}}, {1, 3, 2}};
  const auto grads = RunFn(
      [](std::span<const Value> v) {
        Values out = Gradients(ReduceSum(Max(v[0], v[1]), {0}), Values{v[0], v[1]});
        out.push_back(Gradients(ReduceSum(Clamp(v[0], 1, 2), {0}), Values{v[0]})[0]);
        return out;
      },
      {a, b});
  EXPECT_EQ(grads.at(0), (Floats{0.5, 0, 1}));
  EXPECT_EQ(grads.at(1), (Floats{0.5, 1, 0}));
  EXPECT_EQ(grads.at(2), (Floats{1, 1, 0}));
}

// The side that Select did not take has a gradient of exactly zero, whatever its value.
TEST(Select, N3_GradientOfSideNotTakenIsZero) {
  const Argument x{{DType::kF32, {4}}, {-1, 0, 4, 9}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        const Value positive = Compare(v[0], ZerosLike(v[0]), Comparison::kGt);
        const Value safe = Select(positive, v[0], Full(*v[0].graph(), 1, v[0].shape()));
        const Value y = Select(positive, Sqrt(safe), ZerosLike(v[0]));
        const Value infinite = Full(*v[0].graph(), INFINITY, v[0].shape());
        const Value z = Select(positive, v[0], v[0] * infinite);
        return Values{Gradients(ReduceSum(y, {0}), Values{v[0]})[0],
                      Gradients(ReduceSum(Select(positive, v[0], infinite), {0}), Values{v[0]})[0],
                      z};
      },
      {x});
  ExpectNear(r.at(0), {0, 0, 0.25, 1.0F / 6}, 1e-6);
  EXPECT_EQ(r.at(1), (Floats{0, 0, 1, 1}));
}

TEST(Shapes, RearrangeValuesAndGradients) {
  const Argument x = RandomArgument({2, 3, 4}, 4);
  const TracedFn fn = [](std::span<const Value> v) {
    const Value t = Transpose(v[0], {2, 0, 1});
    return Values{t,
                  Reshape(t, {4, -1}),
                  Slice(v[0], 2, 1, 4, 2),
                  Slice(v[0], -2, 1, 2),
                  Pad(v[0], 1, 1, 2, 7.0),
                  Reverse(v[0], 1),
                  Concatenate(Values{v[0], v[0] * 2.0, Slice(v[0], 0, 0, 1)}, 0),
                  Squeeze(ExpandDims(v[0], 1), 1),
                  BroadcastInDim(Slice(v[0], 0, 0, 1), {2, 2, 3, 4}, {1, 2, 3})};
  };
  const auto r = RunFn(fn, {x});
  const auto at = [&](int i, int j, int k) {
    return x.values[static_cast<size_t>(i * 12 + j * 4 + k)];
  };
  ASSERT_EQ(r.size(), 9U);
  size_t n = 0;
  for (int k = 0; k < 4; ++k) {
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 3; ++j, ++n) {
        EXPECT_EQ(r[0][n], at(i, j, k));
        EXPECT_EQ(r[1][n], at(i, j, k));
      }
    }
  }
  EXPECT_EQ(r[2][1], at(0, 0, 3));
  EXPECT_EQ(r[3][4], at(1, 1, 0));
  EXPECT_EQ(r[4][0], 7.0F);
  EXPECT_EQ(r[4][4], at(0, 0, 0));
  EXPECT_EQ(r[5][0], at(0, 2, 0));
  EXPECT_EQ(r[6][24], 2 * at(0, 0, 0));
  EXPECT_EQ(r[6].size(), 60U);
  EXPECT_EQ(r[7], x.values);
  EXPECT_EQ(r[8][12], at(0, 0, 0));
  ExpectGradientsMatch(fn, {x});
}

TEST(Shapes, DynamicSlicesClampAndDifferentiate) {
  const Argument x = RandomArgument({4, 3}, 5);
  const Argument u = RandomArgument({2, 3}, 6);
  const Argument at{{DType::kS32, {}}, {3}};  // clamps to 2
  const TracedFn fn = [](std::span<const Value> v) {
    const Values starts{v[2], Constant(*v[0].graph(), 0, DType::kS32)};
    return Values{DynamicSlice(v[0], starts, {2, 3}), DynamicUpdateSlice(v[0], v[1], starts),
                  IndexLeading(v[0], v[2])};
  };
  const auto r = RunFn(fn, {x, u, at});
  EXPECT_EQ(r.at(0), Floats(x.values.begin() + 6, x.values.end()));
  Floats updated(x.values.begin(), x.values.begin() + 6);
  updated.insert(updated.end(), u.values.begin(), u.values.end());
  EXPECT_EQ(r.at(1), updated);
  EXPECT_EQ(r.at(2), Floats(x.values.begin() + 9, x.values.end()));
  ExpectGradientsMatch(fn, {x, u, at});
}

TEST(Reductions, ValuesAndGradients) {
  const Argument x = RandomArgument({2, 3, 4}, 7);
  const TracedFn fn = [](std::span<const Value> v) {
    return Values{ReduceSum(v[0], {0, -1}), ReduceMax(v[0], {1}, true), ReduceMin(v[0], {2}),
                  ReduceMean(v[0], {1, 2}), CumSum(v[0], 1)};
  };
  const auto r = RunFn(fn, {x});
  const auto at = [&](int i, int j, int k) {
    return x.values[static_cast<size_t>(i * 12 + j * 4 + k)];
  };
  for (int j = 0; j < 3; ++j) {
    float sum = 0;
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 4; ++k) sum += at(i, j, k);
    }
    EXPECT_NEAR(r.at(0)[static_cast<size_t>(j)], sum, 1e-5);
  }
  EXPECT_EQ(r[1][5], std::fmax(std::fmax(at(1, 0, 1), at(1, 1, 1)), at(1, 2, 1)));
  EXPECT_NEAR(r[4][23], at(1, 0, 3) + at(1, 1, 3) + at(1, 2, 3), 1e-6);
  ExpectGradientsMatch(fn, {x}, {.step = 2e-3});
}

TEST(Reductions, TiesOfMaxShareAndArgMaxTakesFirst) {
  const Argument x{{DType::kF32, {2, 3}}, {1, 5, 5, 2, 2, 2}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        return Values{Gradients(ReduceSum(ReduceMax(v[0], {1}), {0}), Values{v[0]})[0],
                      ArgMax(v[0], 1), ArgMax(v[0], 0),
                      ReduceAll(Compare(v[0], ZerosLike(v[0]), Comparison::kGt)),
                      ReduceAny(Compare(v[0], ZerosLike(v[0]), Comparison::kLt))};
      },
      {x});
  ExpectNear(r.at(0), {0, 0.5, 0.5, 1.0F / 3, 1.0F / 3, 1.0F / 3}, 1e-6);
  EXPECT_EQ(r.at(1), (Floats{1, 0}));
  EXPECT_EQ(r.at(2), (Floats{1, 0, 0}));
  EXPECT_EQ(r.at(3), (Floats{1}));
  EXPECT_EQ(r.at(4), (Floats{0}));
}

TEST(Softmax, MaskedRowsAreZeroWithZeroGradient) {
  const Argument x{{DType::kF32, {3, 3}}, {1, 2, 3, -kInf, -kInf, -kInf, -kInf, 1000, -1000}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        const Value y = Softmax(v[0], -1);
        const Value w = Iota(*v[0].graph(), {DType::kF32, {3, 3}}, 1);
        const Value lse = LogSumExp(v[0], {1});
        return Values{
            y, Gradients(ReduceSum(y * w, {0, 1}), Values{v[0]})[0], lse,
            Vjp(Values{lse}, Values{Full(*v[0].graph(), 1, {DType::kF32, {3}})}, Values{v[0]})[0]};
      },
      {x});
  const float z = std::exp(-2.0F) + std::exp(-1.0F) + 1;
  const Floats y{std::exp(-2.0F) / z, std::exp(-1.0F) / z, 1 / z};
  ExpectNear(r.at(0), {y[0], y[1], y[2], 0, 0, 0, 0, 1, 0}, 1e-6);
  const float mean = y[1] + 2 * y[2];
  ExpectNear(r.at(1), {-y[0] * mean, y[1] * (1 - mean), y[2] * (2 - mean), 0, 0, 0, 0, 0, 0}, 1e-6);
  ExpectNear(r.at(2), {3 + std::log(z), -kInf, 1000}, 1e-6);
  ExpectNear(r.at(3), {y[0], y[1], y[2], 0, 0, 0, 0, 1, 0}, 1e-6);
}

TEST(Softmax, GradientsOverSeveralAxes) {
  const Argument x = RandomArgument({2, 3, 4}, 8, -2, 2);
  ExpectGradientsMatch(
      [](std::span<const Value> v) {
        return Values{Softmax(v[0], 1), LogSumExp(v[0], {0, 2}), LogSumExp(v[0], {1}, true)};
      },
      {x});
}

TEST(Products, AnyDimsMatchLoopsAndDifferentiate) {
  // lhs [b, i, c, d], rhs [d, b, c, j]: batch b, contract c and d in different orders.
  const Argument l = RandomArgument({2, 3, 4, 5}, 9);
  const Argument r = RandomArgument({5, 2, 4, 6}, 10);
  const TracedFn fn = [](std::span<const Value> v) {
    return Values{DotGeneral(
        v[0], v[1],
        {.lhs_batch = {0}, .rhs_batch = {1}, .lhs_contract = {3, 2}, .rhs_contract = {0, 2}})};
  };
  const Floats out = RunFn(fn, {l, r}).at(0);
  size_t n = 0;
  for (int b = 0; b < 2; ++b) {
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 6; ++j, ++n) {
        float sum = 0;
        for (int c = 0; c < 4; ++c) {
          for (int d = 0; d < 5; ++d) {
            sum += l.values[static_cast<size_t>(((b * 3 + i) * 4 + c) * 5 + d)] *
                   r.values[static_cast<size_t>(((d * 2 + b) * 4 + c) * 6 + j)];
          }
        }
        EXPECT_NEAR(out[n], sum, 1e-4);
      }
    }
  }
  ExpectGradientsMatch(fn, {l, r});
}

TEST(Products, LinearAndMatMulDifferentiate) {
  const Argument x = RandomArgument({2, 3, 4}, 11);
  const Argument w = RandomArgument({5, 4}, 12);
  const Argument b = RandomArgument({2, 4, 3}, 13);
  ExpectGradientsMatch(
      [](std::span<const Value> v) { return Values{Linear(v[0], v[1]), MatMul(v[0], v[2])}; },
      {x, w, b});
}

TEST(Lookup, TakeClampsAndScattersBack) {
  const Argument table = RandomArgument({4, 3}, 14);
  const Argument index{{DType::kS32, {2, 2}}, {1, 3, 1, 9}};
  const TracedFn fn = [](std::span<const Value> v) { return Values{Take(v[0], v[1])}; };
  const Floats rows = RunFn(fn, {table, index}).at(0);
  for (size_t d = 0; d < 3; ++d) {
    EXPECT_EQ(rows[d], table.values[3 + d]);
    EXPECT_EQ(rows[9 + d], table.values[9 + d]);
  }
  const auto grad = RunFn(
      [](std::span<const Value> v) {
        return Gradients(ReduceSum(Take(v[0], v[1]), {0, 1, 2}), Values{v[0]});
      },
      {table, index});
  EXPECT_EQ(grad.at(0), (Floats{0, 0, 0, 2, 2, 2, 0, 0, 0, 2, 2, 2}));
}

TEST(Lookup, TakeAlongLastPicksOneAndDifferentiates) {
  const Argument x = RandomArgument({2, 2, 3}, 15);
  const Argument index{{DType::kS32, {2, 2}}, {2, 0, 1, 5}};
  const TracedFn fn = [](std::span<const Value> v) { return Values{TakeAlongLast(v[0], v[1])}; };
  EXPECT_EQ(RunFn(fn, {x, index}).at(0),
            (Floats{x.values[2], x.values[3], x.values[7], x.values[11]}));
  ExpectGradientsMatch(fn, {x, index}, {.positions = 12});
}

TEST(Lookup, ScattersDropRowsOutOfRange) {
  const Argument x = RandomArgument({3, 2}, 16);
  const Argument u = RandomArgument({3, 2}, 17);
  const Argument add_at{{DType::kS32, {3}}, {1, 1, 7}};
  const Argument set_at{{DType::kS32, {3}}, {2, -1, 0}};
  const TracedFn fn = [](std::span<const Value> v) {
    return Values{ScatterAdd(v[0], v[2], v[1]), ScatterSet(v[0], v[3], v[1])};
  };
  const auto r = RunFn(fn, {x, u, add_at, set_at});
  ExpectNear(r.at(0),
             {x.values[0], x.values[1], x.values[2] + u.values[0] + u.values[2],
              x.values[3] + u.values[1] + u.values[3], x.values[4], x.values[5]},
             1e-6);
  EXPECT_EQ(r.at(1),
            (Floats{u.values[4], u.values[5], x.values[2], x.values[3], u.values[0], u.values[1]}));
  ExpectGradientsMatch(fn, {x, u, add_at, set_at});
}

TEST(Sort, DescendingAndStable) {
  const Argument x{{DType::kF32, {2, 4}}, {1, 3, 2, 3, -kInf, 0, kInf, 0}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        const auto [values, positions] = SortDescending(v[0]);
        return Values{values, positions};
      },
      {x});
  EXPECT_EQ(r.at(0), (Floats{3, 3, 2, 1, kInf, 0, 0, -kInf}));
  EXPECT_EQ(r.at(1), (Floats{1, 3, 2, 0, 2, 1, 3, 0}));
}

TEST(Types, Bf16ProductsAccumulateInF32AndConvertBack) {
  const Argument x = RandomArgument({2, 4}, 18);
  const Argument w = RandomArgument({3, 4}, 19);
  const auto r = RunFn(
      [](std::span<const Value> v) {
        const Value a = Convert(v[0], DType::kBF16);
        const Value b = Convert(v[1], DType::kBF16);
        const Value y = DotGeneral(a, b, {.lhs_contract = {1}, .rhs_contract = {1}});
        EXPECT_EQ(y.dtype(), DType::kF32);
        EXPECT_EQ(Linear(a, b).dtype(), DType::kBF16);
        Values out = Gradients(ReduceSum(y, {0, 1}), Values{v[0], v[1]});
        EXPECT_EQ(out[0].dtype(), DType::kF32);
        return out;
      },
      {x, w});
  for (size_t k = 0; k < 4; ++k) {
    EXPECT_NEAR(r.at(0)[k], w.values[k] + w.values[4 + k] + w.values[8 + k], 0.03);
  }
}

}  // namespace
}  // namespace forebay::xla
