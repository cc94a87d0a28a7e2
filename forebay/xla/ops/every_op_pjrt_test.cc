// Every op that ops.h declares has its gradient compared with central differences, or is named here
// as one without a gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

using V = std::span<const Value>;

struct OpCase {
  TracedFn fn;
  std::vector<Argument> arguments;
  double step = 3e-3;
};

Argument Around(const Dims& dims, float low, float high, uint64_t seed = 1) {
  return RandomArgument(dims, seed, low, high);
}
Argument Index(std::vector<float> values) {
  const auto count = static_cast<int64_t>(values.size());
  return {{DType::kS32, {count}}, std::move(values)};
}
Argument Scalar(float value) { return {{DType::kS32, {}}, {value}}; }
Value Zero(Value like) { return Constant(*like.graph(), 0, DType::kS32); }

using Cases = std::map<std::string, OpCase>;

OpCase Unary(Value (*op)(Value), float low = -2, float high = 2) {
  return {[op](V v) { return Values{op(v[0])}; }, {Around({3, 4}, low, high)}};
}
OpCase Binary(Value (*op)(Value, Value), float low, float high, float low2, float high2) {
  return {[op](V v) { return Values{op(v[0], v[1])}; },
          {Around({3, 4}, low, high), Around({3, 4}, low2, high2, 2)}};
}
OpCase Of(const std::function<Value(Value)>& op) {
  return {[op](V v) { return Values{op(v[0])}; }, {Around({3, 4}, -2, 2)}};
}

// Inputs keep away from kinks and jumps, where a difference says nothing.
Cases Elementwise() {
  return {{"Add", Binary(Add, -2, 2, -2, 2)},
          {"Sub", Binary(Sub, -2, 2, -2, 2)},
          {"Mul", Binary(Mul, -2, 2, -2, 2)},
          {"Div", Binary(Div, -2, 2, 1, 2)},
          {"Max", Binary(Max, 0, 1, 1.1F, 2)},
          {"Min", Binary(Min, 0, 1, 1.1F, 2)},
          {"Pow", Binary(Pow, 0.5F, 2, -1, 2)},
          {"Rem", Binary(Rem, 1.1F, 1.4F, 0.8F, 0.9F)},  // the quotient stays 1
          {"Neg", Unary(Neg)},
          {"Abs", Unary(Abs, -2, -0.5F)},
          {"Sign", Unary(Sign, 0.5F, 2)},
          {"Exp", Unary(Exp)},
          {"Log", Unary(Log, 0.5F, 3)},
          {"Log1p", Unary(Log1p, -0.4F, 3)},
          {"Sqrt", Unary(Sqrt, 0.5F, 3)},
          {"Rsqrt", Unary(Rsqrt, 0.5F, 3)},
          {"Tanh", Unary(Tanh)},
          {"Logistic", Unary(Logistic)},
          {"Sin", Unary(Sin)},
          {"Cos", Unary(Cos)},
          {"Floor", Unary(Floor, 1.2F, 1.8F)},
          {"Silu", Unary(Silu)},
          {"Clamp", Of([](Value x) { return Clamp(x, -5, 5) + Clamp(x * 10, 30, 31); })},
          // A step above the rounding of bf16.
          {"Convert",
           {[](V v) { return Values{Convert(Convert(v[0], DType::kBF16), DType::kF32)}; },
            {Around({3, 4}, -2, 2)},
            0.25}},
          {"OptimizationBarrier", Of([](Value x) {
             const Values held = OptimizationBarrier(Values{x, x * 2});
             return held[0] * held[1];
           })},
          {"Select",
           {[](V v) { return Values{Select(Compare(v[2], v[3], Comparison::kLt), v[0], v[1])}; },
            {Around({3, 4}, -2, 2),
             Around({3, 4}, -2, 2, 2),
             {{DType::kS32, {4}}, {0, 5, 1, 7}},
             Scalar(3)}}}};
}

Cases Shapes() {
  return {
      {"Reshape", Of([](Value x) { return Reshape(x, {2, -1}); })},
      {"Transpose", Of([](Value x) { return Transpose(x, {1, 0}); })},
      {"BroadcastTo", Of([](Value x) { return BroadcastTo(x, {2, 3, 4}); })},
      {"BroadcastInDim", Of([](Value x) { return BroadcastInDim(x, {3, 2, 4}, {0, 2}); })},
      {"ExpandDims", Of([](Value x) { return ExpandDims(x, 1); })},
      {"Squeeze", Of([](Value x) { return Squeeze(Slice(x, 0, 1, 2), 0); })},
      {"Slice", Of([](Value x) { return Slice(x, 1, 0, 4, 3); })},
      {"Concatenate", Of([](Value x) { return Concatenate(Values{x, x * 3, x}, 1); })},
      {"Pad", Of([](Value x) { return Pad(x, 1, 2, 1, 5); })},
      {"Reverse", Of([](Value x) { return Reverse(x, 0); })},
      {"DynamicSlice",
       {[](V v) { return Values{DynamicSlice(v[0], Values{v[1], Zero(v[0])}, {2, 3})}; },
        {Around({3, 4}, -2, 2), Scalar(1)}}},
      {"DynamicUpdateSlice",
       {[](V v) { return Values{DynamicUpdateSlice(v[0], v[1], Values{v[2], Zero(v[0])})}; },
        {Around({3, 4}, -2, 2), Around({1, 3}, -2, 2, 2), Scalar(2)}}},
      {"IndexLeading",
       {[](V v) { return Values{IndexLeading(v[0], v[1])}; }, {Around({3, 4}, -2, 2), Scalar(2)}}}};
}

Cases ReductionsProductsAndLookups() {
  return {{"ReduceSum", Of([](Value x) { return ReduceSum(x, {0}); })},
          {"ReduceMax", Of([](Value x) { return ReduceMax(x, {1}, true); })},
          {"ReduceMin", Of([](Value x) { return ReduceMin(x, {0}); })},
          {"ReduceMean", Of([](Value x) { return ReduceMean(x, {0, 1}); })},
          {"CumSum", Of([](Value x) { return CumSum(x, 1); })},
          {"Softmax", Of([](Value x) { return Softmax(x, 0); })},
          {"LogSumExp", Of([](Value x) { return LogSumExp(x, {1}); })},
          {"DotGeneral",
           {[](V v) { return Values{DotGeneral(v[0], v[1], {{}, {}, {0}, {1}}, DType::kF32)}; },
            {Around({3, 4}, -1, 1), Around({2, 3}, -1, 1, 2)}}},
          {"Linear",
           {[](V v) { return Values{Linear(v[0], v[1])}; },
            {Around({3, 4}, -1, 1), Around({2, 4}, -1, 1, 2)}}},
          {"MatMul",
           {[](V v) { return Values{MatMul(v[0], v[1])}; },
            {Around({3, 4}, -1, 1), Around({4, 2}, -1, 1, 2)}}},
          {"Take",
           {[](V v) { return Values{Take(v[0], v[1])}; },
            {Around({3, 4}, -2, 2), Index({2, 0, 2, 9})}}},
          {"TakeAlongLast",
           {[](V v) { return Values{TakeAlongLast(v[0], v[1])}; },
            {Around({3, 4}, -2, 2), Index({3, 0, 3})}}},
          {"ScatterAdd",
           {[](V v) { return Values{ScatterAdd(v[0], v[2], v[1])}; },
            {Around({3, 4}, -2, 2), Around({2, 4}, -2, 2, 2), Index({1, 1})}}},
          {"ScatterSet",
           {[](V v) { return Values{ScatterSet(v[0], v[2], v[1])}; },
            {Around({3, 4}, -2, 2), Around({2, 4}, -2, 2, 2), Index({2, 0})}}}};
}

Cases ControlFlow() {
  const auto step = [](V in) { return Values{Tanh(in[0] * in[1])}; };
  const std::vector<Argument> two = {Around({3, 4}, -1, 1), Around({3, 4}, -1, 1, 2)};
  return {{"Scan",
           {[=](V v) { return Scan(step, v.first(1), v.subspan(1)); },
            {Around({4}, -1, 1), Around({3, 4}, -1, 1, 2)}}},
          {"ForLoop",
           {[](V v) {
              return ForLoop(
                  *v[0].graph(), 3,
                  [&](V in) { return Values{Tanh(in[0] * v[1] + Convert(in[1], DType::kF32))}; },
                  v.first(1));
            },
            two}},
          {"Cond",
           {[=](V v) {
              return Cond(
                  Compare(ReduceSum(v[0] * v[0], {0, 1}), Constant(*v[0].graph(), 0, DType::kF32),
                          Comparison::kGt),
                  step, [](V in) { return Values{in[0] + in[1]}; }, v);
            },
            two}},
          {"Remat", {[=](V v) { return Remat(step, v); }, two}},
          {"CustomVjp",
           {[=](V v) {
              return CustomVjp(
                  step,
                  [](V in, V out, V d) {
                    const Value slope = d[0] * (1.0 - out[0] * out[0]);
                    return Values{slope * in[1], slope * in[0]};
                  },
                  v);
            },
            two}}};
}

// Constants, integers and choices; what differentiates is tested by all others.
const std::set<std::string>& WithoutGradient() {
  static const std::set<std::string> names = {"Constant",
                                              "Full",
                                              "ConstantArray",
                                              "ConstantArrayS32",
                                              "Iota",
                                              "ZerosLike",
                                              "Compare",
                                              "And",
                                              "Or",
                                              "Xor",
                                              "Not",
                                              "ShiftLeft",
                                              "ShiftRightLogical",
                                              "BitcastConvert",
                                              "StopGradient",
                                              "ReduceAll",
                                              "ReduceAny",
                                              "ArgMax",
                                              "SortDescending",
                                              "While",
                                              "Gradients",
                                              "AddGradients",
                                              "Vjp"};
  return names;
}

Cases AllCases() {
  Cases all = Elementwise();
  for (const Cases& more : {Shapes(), ReductionsProductsAndLookups(), ControlFlow()}) {
    all.insert(more.begin(), more.end());
  }
  return all;
}

TEST(EveryOp, GradientIsTheCentralDifference) {
  for (const auto& [name, op] : AllCases()) {
    SCOPED_TRACE(name);
    ExpectGradientsMatch(op.fn, op.arguments, {.step = op.step, .positions = 4});
  }
}

TEST(EveryOp, OfTheHeaderIsTestedHere) {
  const std::string header =
      ReadFile(std::string(FOREBAY_SOURCE_DIR) + "/forebay/xla/ops.h").value();
  const std::regex declaration(R"((?:^|\n)(?:Value|Values|std::pair<Value, Value>) ([A-Z]\w*)\()");
  std::set<std::string> declared, tested = WithoutGradient();
  for (auto it = std::sregex_iterator(header.begin(), header.end(), declaration);
       it != std::sregex_iterator(); ++it) {
    declared.insert((*it)[1]);
  }
  for (const auto& [name, op] : AllCases()) {
    EXPECT_TRUE(tested.insert(name).second) << name << " is in both lists";
  }
  EXPECT_EQ(declared, tested);
}

// What undoes itself gives back the same bits.
TEST(EveryOp, InversesGiveBackTheInput) {
  const Argument x = Around({3, 4}, -2, 2);
  const auto results = RunFn(
      [](V v) {
        const Value x = v[0];
        const Values at = {v[1], Zero(x)};
        return Values{Reverse(Reverse(x, 1), 1),
                      Transpose(Transpose(x, {1, 0}), {1, 0}),
                      Slice(Pad(x, 0, 2, 1, 9), 0, 2, 5),
                      Concatenate(Values{Slice(x, 1, 0, 1), Slice(x, 1, 1, 4)}, 1),
                      DynamicUpdateSlice(x, DynamicSlice(x, at, {2, 4}), at),
                      BitcastConvert(BitcastConvert(x, DType::kS32), DType::kF32),
                      ScatterSet(ZerosLike(x), v[2], Take(x, v[2]))};
      },
      {x, Scalar(1), Index({2, 0, 1})});
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], x.values) << i;
}

}  // namespace
}  // namespace forebay::xla
