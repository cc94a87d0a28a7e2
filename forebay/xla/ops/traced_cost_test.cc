// Costs counted from graphs: loops, branches, bodies, dead code; on one device and on a mesh.
#include "forebay/xla/traced_cost.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

constexpr double kProduct = 2.0 * 8 * 8 * 8;  // [8, 8] x [8, 8]

TracedCost CostOf(Graph& graph, const Values& results) {
  return graph.Finish(results).value().cost;
}

TEST(TracedCostTest, ProductsCountTwoAMultiplyAdd) {
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {2, 3, 4}}, "x");
  const Value w = graph.Parameter({DType::kF32, {5, 4}}, "w");
  const Value unused = Linear(x, w);
  EXPECT_EQ(CostOf(graph, {x + 1.0}).dot_flops, 0);
  EXPECT_EQ(CostOf(graph, {unused}).dot_flops, 2.0 * 2 * 3 * 4 * 5);
}

TEST(TracedCostTest, LoopsCountAsOftenAsTheyRunAndBranchesOnce) {
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {8, 8}}, "x");
  const auto product = [](std::span<const Value> in) { return Values{MatMul(in[0], in[0])}; };
  const auto two = [](std::span<const Value> in) {
    return Values{MatMul(MatMul(in[0], in[0]), in[0])};
  };
  const Value looped = ForLoop(graph, 5, product, std::span(&x, 1))[0];
  EXPECT_EQ(CostOf(graph, {looped}).dot_flops, 5 * kProduct);
  const Value yes = Compare(ReduceSum(x, {0, 1}), Constant(graph, 0, DType::kF32), Comparison::kGt);
  EXPECT_EQ(CostOf(graph, Cond(yes, product, two, std::span(&x, 1))).dot_flops, 2 * kProduct);
  EXPECT_EQ(CostOf(graph, Cond(yes, two, product, std::span(&x, 1))).dot_flops, 2 * kProduct);
  // Forward, and in the backward pass two products for the gradient; they need no product again.
  const Value kept = Remat(product, std::span(&x, 1))[0];
  const Values gradients = Gradients(ReduceSum(kept * kept, {0, 1}), std::span(&x, 1));
  const TracedCost cost = CostOf(graph, {kept, gradients[0]});
  EXPECT_EQ(cost.dot_flops, 3 * kProduct);
  EXPECT_FALSE(cost.has_while);
  const Values state = While(
      [](std::span<const Value> in) {
        return Values{Compare(ReduceSum(in[0], {0, 1}), Constant(*in[0].graph(), 9, DType::kF32),
                              Comparison::kLt)};
      },
      product, std::span(&x, 1));
  EXPECT_TRUE(CostOf(graph, state).has_while);
}

TEST(TracedCostTest, CollectivesOfALayeredStep) {
  const Mesh mesh = Mesh::Create({{"fsdp", 4}, {"tensor", 2}}).value();
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {16, 8}}, "x");
  const Value w = graph.Parameter({DType::kF32, {5, 8, 8}}, "w");
  const std::vector<PartitionSpec> in{PartitionSpec{"fsdp"}, PartitionSpec{{}, "fsdp", "tensor"}};
  const std::vector<PartitionSpec> out{in[1]};
  const Values step = ShardMap(
      mesh, in, out,
      [](std::span<const Value> args) {
        const Value y = Scan(
            [](std::span<const Value> layer) {
              const Value whole = AllGather(layer[1], "fsdp", 0);  // [8, 4]
              return Values{AllGather(MatMul(layer[0], whole), "tensor", 1)};
            },
            args.first(1), args.subspan(1))[0];
        const Value loss = PMean(ReduceMean(y * y, {0, 1}), "fsdp");
        return Gradients(loss, args.subspan(1));
      },
      Values{x, w});
  const TracedCost cost = CostOf(graph, step);
  // Each layer: forward and two products back; local [4, 8] x [8, 4].
  EXPECT_EQ(cost.dot_flops, 5 * 3 * 2.0 * 4 * 8 * 4);
  const auto find = [&](const std::string& op, const Axes& axes) {
    for (const CollectiveUse& use : cost.collectives) {
      if (use.op == op && use.axes == axes) return use;
    }
    return CollectiveUse{};
  };
  const double weight = 8 * 4 * 4;  // bytes of the gathered one
  EXPECT_EQ(find("AllGather", "fsdp"),
            (CollectiveUse{"AllGather", "fsdp", 10, 10 * weight * 3 / 4}));
  EXPECT_EQ(find("ReduceScatter", "fsdp"),
            (CollectiveUse{"ReduceScatter", "fsdp", 5, 5 * weight * 3 / 4}));
  EXPECT_EQ(find("ReduceScatter", "tensor").count, 5);
  // The loss's sum and its transpose; scalars, each byte sent twice.
  EXPECT_EQ(find("Psum", "fsdp").sent_bytes, find("Psum", "fsdp").count * 4.0 * 2 * 3 / 4);
  EXPECT_EQ(cost.sent_bytes(),
            find("AllGather", "fsdp").sent_bytes + find("AllGather", "tensor").sent_bytes +
                find("ReduceScatter", "fsdp").sent_bytes +
                find("ReduceScatter", "tensor").sent_bytes + find("Psum", "fsdp").sent_bytes);
}

}  // namespace
}  // namespace forebay::xla
