// Shape rules, and what an op says when it is given wrong shapes.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

struct Inputs {
  Graph& g;
  Value f23, f4, s23, p23, b23, f234, s0;
};

struct ErrorCase {
  const char* name;
  std::function<void(Inputs&)> run;
  const char* message;
};

class Errors : public testing::TestWithParam<ErrorCase> {};

TEST_P(Errors, NameTheOpAndTheShapes) {
  Graph g("bad");
  const Shape f{DType::kF32, {2, 3}};
  Inputs in{g,
            g.Parameter(f, "f23"),
            g.Parameter({DType::kF32, {4}}, "f4"),
            g.Parameter({DType::kS32, {2, 3}}, "s23"),
            g.Parameter({DType::kPred, {2, 3}}, "p23"),
            g.Parameter({DType::kBF16, {2, 3}}, "b23"),
            g.Parameter({DType::kF32, {2, 3, 4}}, "f234"),
            g.Parameter({DType::kS32, {}}, "s0")};
  GetParam().run(in);
  const Result<Program> program = g.Finish(Values{in.f23});
  ASSERT_FALSE(program.ok()) << "no error";
  EXPECT_EQ(program.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(program.status().message().find(GetParam().message), std::string::npos)
      << program.status().message();
}

INSTANTIATE_TEST_SUITE_P(
    All, Errors,
    testing::Values(
        ErrorCase{"Add", [](Inputs& i) { Add(i.f23, i.f4); },
                  "Add: shapes f32[2,3] and f32[4] do not broadcast"},
        ErrorCase{"AddDtype", [](Inputs& i) { Add(i.f23, i.b23); },
                  "Add: dtypes of f32[2,3] and bf16[2,3] differ"},
        ErrorCase{"MulPred", [](Inputs& i) { Mul(i.p23, i.p23); }, "Mul: is not defined for pred"},
        ErrorCase{"ExpInt", [](Inputs& i) { Exp(i.s23); }, "Exp: is not defined for s32[2,3]"},
        ErrorCase{"SiluInt", [](Inputs& i) { Silu(i.s23); }, "Silu: is not defined"},
        ErrorCase{"AndFloat", [](Inputs& i) { And(i.f23, i.f23); }, "And: is not defined for f32"},
        ErrorCase{"NotFloat", [](Inputs& i) { Not(i.f23); }, "Not: is not defined for f32"},
        ErrorCase{"ShiftPred", [](Inputs& i) { ShiftLeft(i.p23, i.p23); }, "ShiftLeft: is not"},
        ErrorCase{"SelectPredicate", [](Inputs& i) { Select(i.f23, i.f23, i.f23); },
                  "Select: the predicate is f32[2,3]"},
        ErrorCase{"SelectShapes", [](Inputs& i) { Select(i.p23, i.f4, i.f4); },
                  "Select: predicate pred[2,3] and values f32[4]"},
        ErrorCase{"Clamp", [](Inputs& i) { Clamp(i.f23, 2, 1); }, "Clamp: bounds 2 and 1"},
        ErrorCase{"ClampNan", [](Inputs& i) { Clamp(i.f23, NAN, 1); }, "Clamp: bounds"},
        ErrorCase{"Bitcast", [](Inputs& i) { BitcastConvert(i.f23, DType::kBF16); },
                  "BitcastConvert: f32[2,3] and bf16[2,3]"},
        ErrorCase{"ConstantInt", [](Inputs& i) { Constant(i.g, 0.5, DType::kS32); },
                  "Constant: 0.5 is not a value of s32[]"},
        ErrorCase{"ScalarInt", [](Inputs& i) { (void)(i.s23 * 0.5); }, "Constant: 0.5 is not"},
        ErrorCase{"Array", [](Inputs& i) { ConstantArray(i.g, std::vector<float>(5), {2, 3}); },
                  "ConstantArray: 5 values for f32[2,3]"},
        ErrorCase{"Iota", [](Inputs& i) { Iota(i.g, {DType::kS32, {2}}, 1); },
                  "Iota: axis 1 of s32[2]"},
        ErrorCase{"Reshape", [](Inputs& i) { Reshape(i.f23, {4, -1}); },
                  "Reshape: f32[2,3] has 6 elements and does not reshape to [4, -1]"},
        ErrorCase{"ReshapeTwoInferred", [](Inputs& i) { Reshape(i.f23, {-1, -1}); }, "Reshape:"},
        ErrorCase{"ReshapeNegative", [](Inputs& i) { Reshape(i.f23, {-2, -3}); }, "Reshape:"},
        ErrorCase{"ReshapeZero", [](Inputs& i) { Reshape(i.f23, {0, -1}); }, "Reshape:"},
        ErrorCase{"Transpose", [](Inputs& i) { Transpose(i.f23, {0, 0}); },
                  "Transpose: [0, 0] is not a permutation of the axes of f32[2,3]"},
        ErrorCase{"BroadcastTo", [](Inputs& i) { BroadcastTo(i.f23, {2, 4}); },
                  "BroadcastTo: f32[2,3] does not broadcast to [2, 4]"},
        ErrorCase{"BroadcastToSmaller", [](Inputs& i) { BroadcastTo(i.f23, {1, 3}); },
                  "BroadcastTo:"},
        ErrorCase{"BroadcastInDim", [](Inputs& i) { BroadcastInDim(i.f23, {3, 2}, {1, 0}); },
                  "BroadcastInDim: f32[2,3]"},
        ErrorCase{"ExpandDims", [](Inputs& i) { ExpandDims(i.f23, 4); }, "ExpandDims: axis 4"},
        ErrorCase{"Squeeze", [](Inputs& i) { Squeeze(i.f23, 0); }, "Squeeze: axis 0 of f32[2,3]"},
        ErrorCase{"Slice", [](Inputs& i) { Slice(i.f23, 1, 1, 4); },
                  "Slice: 1:4:1 of axis 1 is out of range for f32[2,3]"},
        ErrorCase{"SliceStride", [](Inputs& i) { Slice(i.f23, 1, 0, 3, 0); }, "Slice:"},
        ErrorCase{"Pad", [](Inputs& i) { Pad(i.f23, 1, -1, 0, 0); }, "Pad: low -1"},
        ErrorCase{"Concatenate", [](Inputs& i) { Concatenate(Values{i.f23, i.f4}, 0); },
                  "Concatenate: shapes f32[2,3] and f32[4]"},
        ErrorCase{"ConcatenateDtype", [](Inputs& i) { Concatenate(Values{i.f23, i.s23}, 0); },
                  "Concatenate:"},
        ErrorCase{"Reverse", [](Inputs& i) { Reverse(i.f23, 2); }, "Reverse: axis 2"},
        ErrorCase{"DynamicSlice", [](Inputs& i) { DynamicSlice(i.f23, Values{i.s0}, {1, 1}); },
                  "DynamicSlice: f32[2,3] needs 2 starts"},
        ErrorCase{"DynamicSliceSizes",
                  [](Inputs& i) { DynamicSlice(i.f23, Values{i.s0, i.s0}, {1, 4}); },
                  "DynamicSlice: sizes [1, 4] do not fit f32[2,3]"},
        ErrorCase{"DynamicUpdateSlice",
                  [](Inputs& i) { DynamicUpdateSlice(i.f23, i.f4, Values{i.s0, i.s0}); },
                  "DynamicUpdateSlice: update f32[4] does not fit f32[2,3]"},
        ErrorCase{"IndexLeading", [](Inputs& i) { IndexLeading(i.f23, i.f4); }, "IndexLeading:"},
        ErrorCase{"ReduceSum", [](Inputs& i) { ReduceSum(i.f23, {0, 0}); },
                  "ReduceSum: axes [0, 0] are not distinct axes of f32[2,3]"},
        ErrorCase{"ReduceMax", [](Inputs& i) { ReduceMax(i.f23, {2}); }, "ReduceMax: axes [2]"},
        ErrorCase{"ReduceMean", [](Inputs& i) { ReduceMean(i.s23, {0}); }, "ReduceMean: is not"},
        ErrorCase{"ReduceAll", [](Inputs& i) { ReduceAll(i.f23); }, "ReduceAll: is not defined"},
        ErrorCase{"ArgMax", [](Inputs& i) { ArgMax(i.f23, 3); }, "ArgMax: axis 3 of f32[2,3]"},
        ErrorCase{"CumSum", [](Inputs& i) { CumSum(i.f23, 3); }, "CumSum: axis 3 of f32[2,3]"},
        ErrorCase{"Softmax", [](Inputs& i) { Softmax(i.f23, 2); }, "Softmax: axis 2 of f32[2,3]"},
        ErrorCase{"LogSumExp", [](Inputs& i) { LogSumExp(i.s23, {0}); }, "LogSumExp: axes [0]"},
        ErrorCase{
            "DotGeneral",
            [](Inputs& i) { DotGeneral(i.f23, i.f4, {.lhs_contract = {1}, .rhs_contract = {0}}); },
            "DotGeneral: shapes f32[2,3] and f32[4] with batch axes [] x [] and contracted "
            "axes [1] x [0]"},
        ErrorCase{"DotGeneralRepeated",
                  [](Inputs& i) {
                    DotGeneral(i.f23, i.f23, {.lhs_contract = {1, 1}, .rhs_contract = {1, 1}});
                  },
                  "DotGeneral: shapes"},
        ErrorCase{"Linear", [](Inputs& i) { Linear(i.f4, i.f23); },
                  "Linear: x f32[4] and weight f32[2,3]"},
        ErrorCase{"MatMul", [](Inputs& i) { MatMul(i.f23, i.f23); },
                  "MatMul: shapes f32[2,3] and f32[2,3]"},
        ErrorCase{"Take", [](Inputs& i) { Take(i.f23, i.f4); },
                  "Take: table f32[2,3] and indices f32[4]"},
        ErrorCase{"TakeAlongLast", [](Inputs& i) { TakeAlongLast(i.f23, i.s23); },
                  "TakeAlongLast: x f32[2,3] and indices s32[2,3]"},
        ErrorCase{"ScatterAdd", [](Inputs& i) { ScatterAdd(i.f23, i.s23, i.f23); },
                  "ScatterAdd: x f32[2,3]"},
        ErrorCase{"Sort", [](Inputs& i) { SortDescending(i.p23); }, "SortDescending: is not"},
        ErrorCase{"Gradients", [](Inputs& i) { Gradients(i.f4, Values{i.f4}); },
                  "Gradients: the loss is f32[4]; it must be a float scalar"},
        ErrorCase{"GradientsOfInt",
                  [](Inputs& i) { Gradients(ReduceSum(i.f4, {0}), Values{i.s23}); },
                  "Vjp: wrt 0 is s32[2,3]; only floats have gradients"},
        ErrorCase{"Vjp", [](Inputs& i) { Vjp(Values{i.f23}, Values{i.f4}, Values{i.f23}); },
                  "Vjp: output 0 is f32[2,3] but its cotangent f32[4]"},
        ErrorCase{"Empty", [](Inputs& i) { Add(i.f23, Value()); },
                  "Add: operand 1 is an empty Value"},
        ErrorCase{"Dim", [](Inputs& i) { EXPECT_EQ(i.f23.dim(2), 1); },
                  "Value::dim: axis 2 is out of range for f32[2,3]"},
        ErrorCase{"ScanNoXs",
                  [](Inputs& i) {
                    Scan([](std::span<const Value> a) { return Values(a.begin(), a.end()); },
                         Values{i.f4}, {});
                  },
                  "Scan: there are no xs"},
        ErrorCase{"ScanLengths",
                  [](Inputs& i) {
                    Scan([](std::span<const Value> a) { return Values{a[0]}; }, Values{i.f4},
                         Values{i.f23, i.f4});
                  },
                  "Scan: x 1 is f32[4] and x 0 is f32[2,3]"},
        ErrorCase{"ScanCarry",
                  [](Inputs& i) {
                    Scan([](std::span<const Value> a) { return Values{a[1]}; }, Values{i.f4},
                         Values{i.f23});
                  },
                  "Scan: carry 0 enters the body as f32[4] and leaves it as f32[3]"},
        ErrorCase{"ScanNothing",
                  [](Inputs& i) {
                    Scan([](std::span<const Value>) { return Values{}; }, Values{i.f4},
                         Values{i.f23});
                  },
                  "Scan: the body returns no values"},
        ErrorCase{
            "ForLoop",
            [](Inputs& i) {
              ForLoop(i.g, 0, [](std::span<const Value> a) { return Values{a[0]}; }, Values{i.f4});
            },
            "ForLoop: 0 steps"},
        ErrorCase{"While",
                  [](Inputs& i) {
                    const auto same = [](std::span<const Value> a) { return Values{a[0]}; };
                    While(same, same, Values{i.f4});
                  },
                  "While: the condition returns f32[4]; it must be one pred scalar"},
        ErrorCase{"Cond",
                  [](Inputs& i) {
                    const Value p = Compare(i.s0, i.s0, Comparison::kEq);
                    Cond(
                        p, [&](std::span<const Value>) { return Values{i.f4}; },
                        [&](std::span<const Value>) { return Values{i.f23}; }, {});
                  },
                  "Cond: the branches return f32[4] when true and f32[2,3] when false"},
        ErrorCase{"Escaped",
                  [](Inputs& i) {
                    Value inner;
                    Remat(
                        [&](std::span<const Value> a) {
                          inner = Exp(a[0]);
                          return Values{inner};
                        },
                        Values{i.f4});
                    Exp(inner);
                  },
                  "Exp: operand 0 (f32[4]) belongs to a control-flow body that has ended"},
        ErrorCase{"ParameterInBody",
                  [](Inputs& i) {
                    Remat(
                        [&](std::span<const Value> a) {
                          return Values{a[0], i.g.Parameter({DType::kF32, {}}, "late")};
                        },
                        Values{i.f4});
                  },
                  "Parameter \"late\""}),
    [](const testing::TestParamInfo<ErrorCase>& i) { return i.param.name; });

// Model code reads dims and builds on; only the first error is reported.
TEST(Poison, FlowsThroughEverythingSilently) {
  Graph g("poison");
  const Value a = g.Parameter({DType::kF32, {2, 3}}, "a");
  const Value bad = Add(a, g.Parameter({DType::kF32, {4}}, "b"));
  const Values scanned = Scan(
      [&](std::span<const Value> v) {
        return Values{MatMul(v[0], v[1]), Softmax(v[1], -1), v[0] + 1.0};
      },
      Values{bad}, Values{a});
  EXPECT_EQ(scanned.size(), 3U);
  EXPECT_EQ(bad.dims().size(), 8U);
  EXPECT_EQ(bad.dim(-1), 1);
  EXPECT_EQ(Cond(
                bad, [&](std::span<const Value>) { return Values{a, a}; },
                [&](std::span<const Value>) { return Values{a, a}; }, {})
                .size(),
            2U);
  EXPECT_EQ(Gradients(scanned[1], Values{a, a}).size(), 2U);
  const Result<Program> program = g.Finish(scanned);
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.status().message(),
            "graph poison: Add: shapes f32[2,3] and f32[4] do not broadcast");
}

TEST(ShapeRules, InferAndNormalize) {
  Graph g("shapes");
  const Value x = g.Parameter({DType::kF32, {2, 3, 4}}, "x");
  EXPECT_EQ(Reshape(x, {-1, 4}).dims(), (Dims{6, 4}));
  EXPECT_EQ(Transpose(x, {-1, 0, 1}).dims(), (Dims{4, 2, 3}));
  EXPECT_EQ(ReduceSum(x, {-1, 0}, true).dims(), (Dims{1, 3, 1}));
  EXPECT_EQ(ExpandDims(x, -1).dims(), (Dims{2, 3, 4, 1}));
  EXPECT_EQ(Slice(x, -1, 0, 4, 3).dims(), (Dims{2, 3, 2}));
  EXPECT_EQ(Compare(x, x, Comparison::kLt).dtype(), DType::kPred);
  EXPECT_EQ(ArgMax(x, 1).shape(), (Shape{DType::kS32, {2, 4}}));
  const Value b = Convert(x, DType::kBF16);
  EXPECT_EQ(MatMul(b, Transpose(b, {0, 2, 1})).shape(), (Shape{DType::kBF16, {2, 3, 3}}));
  EXPECT_EQ(Add(Slice(x, 1, 0, 1), Slice(x, 0, 0, 1)).dims(), (Dims{2, 3, 4}));
  EXPECT_TRUE(g.status().ok()) << g.status().ToString();
}

}  // namespace
}  // namespace forebay::xla
