// Products of few rows as host kernels equal the plugin's, and take their place only where they
// were asked for.
#include "forebay/xla/host_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kDepth = 200, kColumns = 301;

// x [rows, depth] times weight [columns, depth], with host kernels for up to `rows_max` rows.
Program Product(int64_t rows, DType dtype, DType result, int64_t rows_max) {
  Graph graph("product");
  UseHostProducts(graph, rows_max);
  const Value x = graph.Parameter({dtype, {rows, kDepth}}, "x");
  const Value weight = graph.Parameter({dtype, {kColumns, kDepth}}, "weight");
  const Value products[] = {
      DotGeneral(x, weight, {.lhs_contract = {1}, .rhs_contract = {-1}}, result)};
  Result<Program> program = graph.Finish(products);
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return *program;
}

TEST(HostProduct, EqualsThePluginsProduct) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t rows : {1, 3, 16, 40}) {
      const Argument x = RandomArgument({rows, kDepth}, 1);
      const Argument weight = RandomArgument({kColumns, kDepth}, 2);
      const Program host = Product(rows, dtype, DType::kF32, 64);
      const Program plugin = Product(rows, dtype, DType::kF32, 0);
      ASSERT_THAT(host.host_kernels, SizeIs(1));
      ASSERT_THAT(plugin.host_kernels, IsEmpty());
      const auto got = RunProgram(host, {x.values, weight.values});
      const auto want = RunProgram(plugin, {x.values, weight.values});
      ASSERT_EQ(got.size(), 1u);
      ExpectNear(got[0], want[0], 2e-5, Name(dtype).data());
    }
  }
}

TEST(HostProduct, SeveralWeightsAreOneKernel) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t rows : {2, 11, 30}) {
      const std::vector<int64_t> columns = {301, 1, 64};
      const auto products = [&](int64_t rows_max) {
        Graph graph("products");
        UseHostProducts(graph, rows_max);
        const Value x = graph.Parameter({dtype, {rows, kDepth}}, "x");
        Values weights;
        for (const int64_t count : columns) {
          weights.push_back(graph.Parameter({dtype, {count, kDepth}}, "weight"));
        }
        Values out;
        if (TakesHostProduct(x)) {
          out = HostProducts(x, weights);
        } else {
          for (const Value& weight : weights) {
            out.push_back(
                DotGeneral(x, weight, {.lhs_contract = {1}, .rhs_contract = {1}}, DType::kF32));
          }
        }
        Result<Program> program = graph.Finish(out);
        EXPECT_TRUE(program.ok()) << program.status().ToString();
        return *program;
      };
      std::vector<Floats> arguments = {RandomFloats(rows * kDepth, 1)};
      for (const int64_t count : columns) arguments.push_back(RandomFloats(count * kDepth, 2));
      const Program host = products(64);
      EXPECT_THAT(host.host_kernels, SizeIs(1));
      const auto got = RunProgram(host, arguments), want = RunProgram(products(0), arguments);
      for (size_t i = 0; i < want.size(); ++i) ExpectNear(got[i], want[i], 2e-5, "product");
    }
  }
}

TEST(HostProduct, GatedEqualsThePluginsForm) {
  constexpr int64_t kWidth = 70, kOut = 90;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t rows : {1, 7, 16, 33}) {
      for (const auto activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
        const auto dot = [](Value a, Value b) {
          return DotGeneral(a, b, {.lhs_contract = {1}, .rhs_contract = {1}}, DType::kF32);
        };
        const auto gated = [&](bool on_host) {
          return RunFn(
              [&](std::span<const Value> in) -> Values {
                if (on_host) {
                  UseHostProducts(*in[0].graph(), 64);
                  return {HostGatedProduct(in[0], in[1], in[2], in[3], activation)};
                }
                const Value gate = dot(in[0], in[1]);
                const Value cube = gate * gate * gate;
                const Value active =
                    activation == GateActivation::kSilu
                        ? Silu(gate)
                        : gate * 0.5 * (Tanh((gate + cube * 0.044715) * 0.7978845608) + 1);
                return {dot(Convert(active * dot(in[0], in[2]), dtype), in[3])};
              },
              {{{dtype, {rows, kDepth}}, RandomFloats(rows * kDepth, 1)},
               {{dtype, {kWidth, kDepth}}, RandomFloats(kWidth * kDepth, 2)},
               {{dtype, {kWidth, kDepth}}, RandomFloats(kWidth * kDepth, 3)},
               {{dtype, {kOut, kWidth}}, RandomFloats(kOut * kWidth, 4)}})[0];
        };
        // A hidden element next to the middle of two bf16 may round to either.
        ExpectNear(gated(true), gated(false), dtype == DType::kBF16 ? 0.2 : 1e-3,
                   Name(dtype).data());
      }
    }
  }
}

TEST(HostProduct, ConvertsToTheResultsDType) {
  const Argument x = RandomArgument({2, kDepth}, 1), weight = RandomArgument({kColumns, kDepth}, 2);
  const auto narrow =
      RunProgram(Product(2, DType::kBF16, DType::kBF16, 8), {x.values, weight.values});
  const auto wide = RunProgram(Product(2, DType::kBF16, DType::kF32, 8), {x.values, weight.values});
  ExpectNear(narrow[0], wide[0], 1.0 / 256, "bf16");
}

TEST(HostProduct, TakesNoOtherProduct) {
  EXPECT_THAT(Product(9, DType::kF32, DType::kF32, 8).host_kernels, IsEmpty());
  EXPECT_THAT(Product(2, DType::kF16, DType::kF32, 8).host_kernels, IsEmpty());
  Graph graph("others");
  UseHostProducts(graph, 8);
  const Value x = graph.Parameter({DType::kF32, {4, 5, 4}}, "x");
  const Value flat = graph.Parameter({DType::kF32, {4, 4}}, "flat");
  const Value products[] = {
      DotGeneral(x, x,
                 {.lhs_batch = {0}, .rhs_batch = {0}, .lhs_contract = {2}, .rhs_contract = {2}}),
      DotGeneral(flat, flat, {.lhs_contract = {1}, .rhs_contract = {0}}), Linear(x, flat)};
  EXPECT_THAT(graph.Finish(products)->host_kernels, IsEmpty());
}

TEST(HostProduct, HasNoGradient) {
  Graph graph("gradient");
  UseHostProducts(graph, 8);
  const Value x = graph.Parameter({DType::kF32, {4, 4}}, "x");
  Gradients(ReduceSum(Linear(x, x), {0, 1}), Values{x});
  EXPECT_THAT(graph.status().message(), HasSubstr("has no gradient"));
}

}  // namespace
}  // namespace forebay::xla
