// Ops without gradients (logic, integers, conversions) and edge shapes: scalars, rank 1, empty,
// size 1.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
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

TEST(Integers, ArithmeticAndBits) {
  const Argument a{{DType::kS32, {4}}, {7, -7, 12, 1}};
  const Argument b{{DType::kS32, {4}}, {3, 3, 10, 4}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        const Value ua = Convert(v[0], DType::kU32);
        return Values{v[0] + v[1],
                      v[0] * 2.0 - v[1],
                      Div(v[0], v[1]),
                      Rem(v[0], v[1]),
                      And(v[0], v[1]),
                      Or(v[0], v[1]),
                      Xor(v[0], v[1]),
                      Not(v[0]),
                      ShiftLeft(v[0], Constant(*v[0].graph(), 2, DType::kS32)),
                      ShiftRightLogical(ua, Constant(*v[0].graph(), 28, DType::kU32)),
                      Max(v[0], v[1]),
                      Clamp(v[0], -1, 9),
                      ReduceMax(v[0], {0}),
                      ReduceMin(v[0], {0}),
                      Abs(v[0]),
                      CumSum(v[0], 0)};
      },
      {a, b});
  ASSERT_EQ(r.size(), 16U);
  EXPECT_EQ(r[0], (Floats{10, -4, 22, 5}));
  EXPECT_EQ(r[1], (Floats{11, -17, 14, -2}));
  EXPECT_EQ(r[2], (Floats{2, -2, 1, 0}));
  EXPECT_EQ(r[3], (Floats{1, -1, 2, 1}));
  EXPECT_EQ(r[4], (Floats{3, 1, 8, 0}));
  EXPECT_EQ(r[5], (Floats{7, -5, 14, 5}));
  EXPECT_EQ(r[6], (Floats{4, -6, 6, 5}));
  EXPECT_EQ(r[7], (Floats{-8, 6, -13, -2}));
  EXPECT_EQ(r[8], (Floats{28, -28, 48, 4}));
  EXPECT_EQ(r[9], (Floats{0, 15, 0, 0}));
  EXPECT_EQ(r[10], (Floats{7, 3, 12, 4}));
  EXPECT_EQ(r[11], (Floats{7, -1, 9, 1}));
  EXPECT_EQ(r[12], (Floats{12}));
  EXPECT_EQ(r[13], (Floats{-7}));
  EXPECT_EQ(r[14], (Floats{7, 7, 12, 1}));
  EXPECT_EQ(r[15], (Floats{7, 0, 12, 13}));
}

TEST(Comparisons, AllSixWithNan) {
  const Argument a{{DType::kF32, {4}}, {1, 2, 3, NAN}};
  const Argument b{{DType::kF32, {}}, {2}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        Values out;
        for (const Comparison c : {Comparison::kEq, Comparison::kNe, Comparison::kLt,
                                   Comparison::kLe, Comparison::kGt, Comparison::kGe}) {
          out.push_back(Compare(v[0], v[1], c));
        }
        return out;
      },
      {a, b});
  EXPECT_EQ(
      r, (std::vector<Floats>{
             {0, 1, 0, 0}, {1, 0, 1, 1}, {1, 0, 0, 0}, {1, 1, 0, 0}, {0, 0, 1, 0}, {0, 1, 1, 0}}));
}

TEST(Conversions, BetweenKinds) {
  const Argument x{{DType::kF32, {4}}, {-1.75, 0, 2.5, 300}};
  const auto r = RunFn(
      [](std::span<const Value> v) {
        return Values{Convert(v[0], DType::kS32),
                      Convert(v[0], DType::kPred),
                      Convert(Compare(v[0], ZerosLike(v[0]), Comparison::kGt), DType::kF32),
                      Convert(v[0], DType::kBF16),
                      Convert(Convert(v[0], DType::kF16), DType::kF32),
                      BitcastConvert(BitcastConvert(v[0], DType::kS32), DType::kF32),
                      Floor(v[0]),
                      Sign(v[0]),
                      Convert(v[0], DType::kU8)};
      },
      {x});
  ASSERT_EQ(r.size(), 9U);
  EXPECT_EQ(r[0], (Floats{-1, 0, 2, 300}));
  EXPECT_EQ(r[1], (Floats{1, 0, 1, 1}));
  EXPECT_EQ(r[2], (Floats{0, 0, 1, 1}));
  EXPECT_EQ(r[3], x.values);
  EXPECT_EQ(r[4], x.values);
  EXPECT_EQ(r[5], x.values);
  EXPECT_EQ(r[6], (Floats{-2, 0, 2, 300}));
  EXPECT_EQ(r[7], (Floats{-1, 0, 1, 1}));
}

TEST(Constants, ArraysOfAnySize) {
  const auto r = RunFn(
      [](std::span<const Value> v) {
        Graph& g = *v[0].graph();
        return Values{ConstantArray(g, std::vector<float>{0.1F, -kInf, NAN}, {3}),
                      ConstantArray(g, std::vector<float>{5}, {1, 1}),
                      ConstantArray(g, {}, {0, 2}),
                      ConstantArrayS32(g, std::vector<int32_t>{-1, 2, 3, 4}, {2, 2}),
                      Iota(g, {DType::kF32, {2, 3}}, -1),
                      Full(g, -kInf, {DType::kBF16, {2}}),
                      Constant(g, 3, DType::kU64)};
      },
      {RandomArgument({1}, 1)});
  ASSERT_EQ(r.size(), 7U);
  ExpectNear(r[0], {0.1F, -kInf, NAN}, 0);
  EXPECT_EQ(r[1], (Floats{5}));
  EXPECT_TRUE(r[2].empty());
  EXPECT_EQ(r[3], (Floats{-1, 2, 3, 4}));
  EXPECT_EQ(r[4], (Floats{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(r[5], (Floats{-kInf, -kInf}));
  EXPECT_EQ(r[6], (Floats{3}));
}

TEST(EdgeShapes, LookupsOfScalarsAndRankOne) {
  const Argument x = RandomArgument({5}, 2);
  const Argument i{{DType::kS32, {}}, {3}};
  const TracedFn fn = [](std::span<const Value> v) {
    return Values{TakeAlongLast(v[0], v[1]), Take(v[0], v[1]), IndexLeading(v[0], v[1]),
                  Take(Reshape(v[0], {5, 1}), Reshape(v[1], {1, 1}))};
  };
  const auto r = RunFn(fn, {x, i});
  ASSERT_EQ(r.size(), 4U);
  for (const Floats& one : r) EXPECT_EQ(one, (Floats{x.values[3]}));
  ExpectGradientsMatch(fn, {x, i}, {.positions = 10});
}

TEST(EdgeShapes, ProductsOfVectorsAndOuterProducts) {
  const Argument a = RandomArgument({4}, 3);
  const Argument b = RandomArgument({4}, 4);
  const TracedFn fn = [](std::span<const Value> v) {
    return Values{DotGeneral(v[0], v[1], {.lhs_contract = {0}, .rhs_contract = {0}}),
                  DotGeneral(v[0], v[1], {}),
                  DotGeneral(v[0], v[1], {.lhs_batch = {0}, .rhs_batch = {0}})};
  };
  const auto r = RunFn(fn, {a, b});
  ASSERT_EQ(r.size(), 3U);
  float dot = 0;
  for (size_t i = 0; i < 4; ++i) {
    dot += a.values[i] * b.values[i];
    EXPECT_NEAR(r[2][i], a.values[i] * b.values[i], 1e-6);
    for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(r[1][i * 4 + j], a.values[i] * b.values[j], 1e-6);
  }
  EXPECT_NEAR(r[0][0], dot, 1e-5);
  ExpectGradientsMatch(fn, {a, b});
}

TEST(EdgeShapes, EmptyAndSizeOneAxes) {
  const Argument x = RandomArgument({1, 3}, 5);
  const TracedFn fn = [](std::span<const Value> v) {
    const Value none = Slice(v[0], 1, 2, 2);
    return Values{Concatenate(Values{none, v[0]}, 1),
                  ReduceSum(none, {1}),
                  BroadcastTo(v[0], {2, 4, 3}),
                  ReduceSum(v[0], {}),
                  LogSumExp(v[0], {0}),
                  Pad(none, 1, 1, 1, 9)};
  };
  const auto r = RunFn(fn, {x});
  ASSERT_EQ(r.size(), 6U);
  EXPECT_EQ(r[0], x.values);
  EXPECT_EQ(r[1], (Floats{0}));
  EXPECT_EQ(r[2].size(), 24U);
  EXPECT_EQ(r[3], x.values);
  ExpectNear(r[4], x.values, 1e-6);
  EXPECT_EQ(r[5], (Floats{9, 9}));
  ExpectGradientsMatch(fn, {x});
}

TEST(StopGradient, KeepsTheValueAndStopsTheGradient) {
  const Argument x = RandomArgument({3}, 6);
  const auto r = RunFn(
      [](std::span<const Value> v) {
        const Value y = v[0] * StopGradient(v[0]) + Floor(v[0]);
        return Values{y, Gradients(ReduceSum(y, {0}), Values{v[0]})[0]};
      },
      {x});
  EXPECT_EQ(r.at(1), x.values);
}

}  // namespace
}  // namespace forebay::xla
