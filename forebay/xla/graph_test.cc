// Graph: what Finish prints and refuses.
#include "forebay/xla/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

int Count(std::string_view text, std::string_view word) {
  int count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) ++count;
  return count;
}

const Shape kVector{DType::kF32, {4}};

TEST(Finish, PrintsArgumentsAliasesAndNoDeadNodes) {
  Graph g("my step/1");
  const Value a = g.Parameter(kVector, "weights");
  const Value b = g.Parameter(kVector, "unused");
  Exp(a);
  const Values results{b, a + a};
  const std::vector<Alias> aliases{{.parameter = 0, .output = 1}};
  const Result<Program> program = g.Finish(results, aliases);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->stablehlo,
            "module @my_step_1 {\n"
            "  func.func public @main(%arg0: tensor<4xf32> {tf.aliasing_output = 1 : i32}, %arg1: "
            "tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {\n"
            "    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>\n"
            "    return %arg1, %0 : tensor<4xf32>, tensor<4xf32>\n"
            "  }\n}\n");
  EXPECT_EQ(program->argument_names, (std::vector<std::string>{"weights", "unused"}));
  EXPECT_EQ(program->donated_to, (std::vector<int>{1, -1}));
}

TEST(Finish, RefusesBadAliasesAndForeignValues) {
  Graph g("g");
  Graph other("other");
  const Value a = g.Parameter(kVector, "a");
  const Value s = g.Parameter({DType::kF32, {}}, "s");
  const auto message = [&](const Values& results, const std::vector<Alias>& aliases) {
    return g.Finish(results, aliases).status().message();
  };
  EXPECT_NE(message({a}, {{2, 0}}).find("it has 2 parameters and 1 results"), std::string::npos);
  EXPECT_NE(message({a}, {{-1, 0}}).find("alias of parameter -1"), std::string::npos);
  EXPECT_NE(message({a}, {{1, 0}}).find("parameter 1 \"s\" of shape f32[]"), std::string::npos);
  EXPECT_NE(message({a, a}, {{0, 0}, {0, 1}}).find("in two aliases"), std::string::npos);
  EXPECT_NE(message({Value()}, {}).find("an empty Value"), std::string::npos);
  EXPECT_NE(message({other.Parameter(kVector, "x")}, {}).find("another graph"), std::string::npos);
  EXPECT_TRUE(g.Finish(Values{a, s}).ok()) << "a refused Finish leaves the graph usable";
}

TEST(Finish, PrintsEqualSubexpressionsOnce) {
  Graph g("cse");
  const Value a = g.Parameter(kVector, "a");
  const Value y = Exp(a * 2.0) + Exp(a * 2.0);
  const Result<Program> program = g.Finish(Values{y});
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(Count(program->stablehlo, "stablehlo.exponential"), 1);
  EXPECT_EQ(Count(program->stablehlo, "stablehlo.constant"), 1);
}

TEST(Literals, KeepFloatsAndSpellInfinities) {
  Graph g("literals");
  const Values v{Constant(g, 0.1, DType::kF32),   Constant(g, -HUGE_VAL, DType::kF32),
                 Constant(g, 1e39, DType::kF32),  Constant(g, NAN, DType::kBF16),
                 Constant(g, -1e30, DType::kF16), Constant(g, -7, DType::kS32),
                 Constant(g, 1, DType::kPred),    ConstantArray(g, std::vector<float>{1, 2}, {2})};
  const Result<Program> program = g.Finish(v);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  for (const char* text :
       {"dense<1.00000001e-01> : tensor<f32>", "dense<0xFF800000> : tensor<f32>",
        "dense<0x7F800000> : tensor<f32>", "dense<0x7FC0> : tensor<bf16>",
        "dense<0xFC00> : tensor<f16>", "dense<-7> : tensor<i32>", "dense<true> : tensor<i1>",
        "dense<\"0x0000803F00000040\"> : tensor<2xf32>"}) {
    EXPECT_EQ(Count(program->stablehlo, text), 1) << text << "\n" << program->stablehlo;
  }
}

// The product's gradients come out in the operands' own layouts: no transposes to move data.
TEST(Text, LinearTrainsWithoutTransposes) {
  Graph g("linear");
  const Value x = g.Parameter({DType::kF32, {2, 8, 16}}, "x");
  const Value w = g.Parameter({DType::kF32, {32, 16}}, "w");
  const Value y = Tanh(Linear(x, w));
  const Values grads = Gradients(ReduceSum(y * y, {0, 1, 2}), Values{x, w});
  const Result<Program> program = g.Finish(grads);
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(Count(program->stablehlo, "dot_general"), 3);
  EXPECT_EQ(Count(program->stablehlo, "transpose"), 0) << program->stablehlo;
}

// A scan keeps its carries for the backward pass only when there is one, and only those it reads.
TEST(Text, ScanStacksOnlyWhatIsRead) {
  Graph g("scan");
  const Value h = g.Parameter({DType::kF32, {3}}, "h");
  const Value xs = g.Parameter({DType::kF32, {5, 3}}, "xs");
  const Values r =
      Scan([](std::span<const Value> a) { return Values{a[0] * a[1], Exp(a[0]), Sin(a[0])}; },
           Values{h}, Values{xs});
  const Result<Program> forward = g.Finish(Values{r[0], r[2]});
  ASSERT_TRUE(forward.ok());
  EXPECT_EQ(Count(forward->stablehlo, "dynamic_update_slice"), 1);
  EXPECT_EQ(Count(forward->stablehlo, "exponential"), 0) << "a stack that nothing reads";
  const Values grads = Gradients(ReduceSum(r[0], {0}), Values{h, xs});
  const Result<Program> both = g.Finish(grads);
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(Count(both->stablehlo, "stablehlo.while"), 2);
  EXPECT_EQ(Count(both->stablehlo, "dynamic_update_slice"), 2) << "saved carries, d xs";
}

TEST(Text, ConstantsOfTheOutsideAreMadeAgainInBodies) {
  Graph g("constants");
  const Value h = g.Parameter({DType::kF32, {3}}, "h");
  const Value xs = g.Parameter({DType::kF32, {5, 3}}, "xs");
  const Value half = Full(g, 0.5, {DType::kF32, {3}});
  const Values r = Scan([&](std::span<const Value> a) { return Values{a[0] * half + a[1]}; },
                        Values{h}, Values{xs});
  const Result<Program> program = g.Finish(r);
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(Count(program->stablehlo, " : tensor<i32>, tensor<3xf32>, tensor<5x3xf32> cond"), 1)
      << program->stablehlo;
}

// Depth costs heap, not stack: 60,000 nodes in a chain, differentiated.
TEST(Deep, ChainsDoNotRecurse) {
  Graph g("deep");
  const Value x = g.Parameter(kVector, "x");
  Value y = x;
  for (int i = 0; i < 30000; ++i) y = Sin(y) + x;
  const Values grads = Gradients(ReduceSum(y, {0}), Values{x});
  const Result<Program> program = g.Finish(grads);
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(Count(program->stablehlo, "stablehlo.cosine"), 30000);
}

TEST(Shapes, AreReadAsXlaSpellsThem) {
  EXPECT_EQ((Shape{DType::kS32, {2, 5}}).ToString(), "s32[2,5]");
  EXPECT_EQ((Shape{DType::kU8, {}}).ToString(), "u8[]");
  EXPECT_EQ((Shape{DType::kPred, {1}}).ToString(), "pred[1]");
  EXPECT_EQ((Shape{DType::kBF16, {7, 3}}).bytes(), 42);
}

TEST(Gradients, AreZerosWhereNothingDepends) {
  Graph g("zeros");
  const Value x = g.Parameter(kVector, "x");
  const Value y = g.Parameter(kVector, "y");
  const Values grads = Gradients(
      ReduceSum(StopGradient(x) * y, {0}) + Convert(Constant(g, 2, DType::kS32), DType::kF32),
      Values{x, y});
  EXPECT_EQ(grads[0].shape(), kVector);
  const Result<Program> program = g.Finish(grads);
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(Count(program->stablehlo, "multiply"), 0) << program->stablehlo;
}

}  // namespace
}  // namespace forebay::xla
