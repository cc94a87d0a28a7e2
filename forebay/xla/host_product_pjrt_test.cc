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
