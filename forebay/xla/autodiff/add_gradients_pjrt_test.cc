// AddGradients is the sum plus what Gradients gives, and adds a scan's into the sum's own memory.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

constexpr int64_t kLayers = 8, kRows = 4, kWidth = 16;

Value Layers(Value h, Value stacked) {
  return Scan(
      [](std::span<const Value> a) { return Values{a[0] + Tanh(MatMul(a[0], a[1])) * 0.3}; },
      Values{h}, Values{stacked})[0];
}

std::vector<Argument> WeightsAndSums() {
  return {RandomArgument({kRows, kWidth}, 1), RandomArgument({kLayers, kWidth, kWidth}, 2),
          RandomArgument({kWidth}, 3), RandomArgument({kRows, kWidth}, 4),
          RandomArgument({kLayers, kWidth, kWidth}, 5)};
}

// Of h, the stacked weights and a vector that nothing reads.
std::vector<Floats> Run(const TracedFn& loss, bool into_sums) {
  return RunFn(
      [&](std::span<const Value> v) {
        const Values wrt{v[0], v[1], v[2]}, sums{v[3], v[4], Value()};
        if (into_sums) return AddGradients(loss(v)[0], wrt, sums);
        Values gradients = Gradients(loss(v)[0], wrt);
        gradients[0] = sums[0] + gradients[0];
        gradients[1] = sums[1] + gradients[1];
        return gradients;
      },
      WeightsAndSums());
}

void ExpectSame(const TracedFn& loss, double tolerance) {
  const std::vector<Floats> apart = Run(loss, false), added = Run(loss, true);
  ASSERT_EQ(apart.size(), 3U);
  ASSERT_EQ(added.size(), 3U);
  for (size_t i = 0; i < 3; ++i) ExpectNear(added[i], apart[i], tolerance, std::to_string(i));
  EXPECT_EQ(added[2], Floats(kWidth, 0.0F)) << "nothing to add to, nothing added";
}

TEST(AddGradients, AreTheSumsPlusTheGradients) {
  ExpectSame(
      [](std::span<const Value> v) {
        const Value y = Layers(v[0], v[1]);
        return Values{ReduceSum(y * y, {0, 1})};
      },
      1e-6);
}

TEST(AddGradients, OfWhatIsUsedTwiceCountTheSumOnce) {
  ExpectSame(
      [](std::span<const Value> v) {
        const Value y = Layers(Layers(v[0], v[1]), v[1]);  // two scans over the same weights
        return Values{ReduceSum(y * y, {0, 1}) + ReduceSum(v[1] * v[1], {0, 1, 2})};
      },
      1e-5);
  // And both as two xs of one.
  ExpectSame(
      [](std::span<const Value> v) {
        const Value y =
            Scan([](std::span<const Value> a) { return Values{Tanh(MatMul(a[0], a[1] * a[2]))}; },
                 Values{v[0]}, Values{v[1], v[1]})[0];
        return Values{ReduceSum(y * y, {0, 1})};
      },
      1e-5);
}

TEST(AddGradients, OfAScanNeedNoSecondArray) {
  const Shape hidden{DType::kF32, {64, 256}}, stacked{DType::kF32, {16, 256, 256}};
  const auto memory = [&](bool into_sums) {
    Graph graph("memory");
    const Value h = graph.Parameter(hidden, "h"), w = graph.Parameter(stacked, "w"),
                sum = graph.Parameter(stacked, "sum");
    const Value y = Layers(h, w);
    const Value loss = ReduceSum(y * y, {0, 1});
    const Values results = into_sums ? AddGradients(loss, Values{w}, Values{sum})
                                     : Values{sum + Gradients(loss, Values{w})[0]};
    const Result<Program> program = graph.Finish(results, std::vector<Alias>{{2, 0}});
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    return TestClient().Compile(*program).value()->memory().value();
  };
  const MemoryStats apart = memory(false), added = memory(true);
  EXPECT_EQ(added.alias_bytes, stacked.bytes());
  EXPECT_LE(added.temp_bytes, apart.temp_bytes - stacked.bytes() * 3 / 4);
}

TEST(AddGradients, OnAMeshAddASumThatSeveralDevicesHaveOnce) {
  const Mesh mesh = Mesh::Create({.data = 2, .fsdp = 2}, 4).value();
  const PartitionSpec rows{Axes{"data", "fsdp"}}, split{{}, "fsdp"};
  const std::vector<Argument> arguments = {RandomArgument({kRows, kWidth}, 1),
                                           RandomArgument({kLayers, kWidth, kWidth}, 2),
                                           RandomArgument({kLayers, kWidth, kWidth}, 3)};
  const auto run = [&](bool into_sums) {
    return RunShardMap(
        {mesh, {rows, split, split}, {split}},
        [&](std::span<const Value> v) {
          const Value y = Scan(
              [](std::span<const Value> a) {
                return Values{a[0] + Tanh(MatMul(a[0], AllGather(a[1], "fsdp", 0))) * 0.3};
              },
              Values{v[0]}, Values{v[1]})[0];
          const Value loss = PMean(ReduceMean(y * y, {0, 1}), Axes{"data", "fsdp"});
          if (into_sums) return AddGradients(loss, Values{v[1]}, Values{v[2]});
          return Values{v[2] + Gradients(loss, Values{v[1]})[0]};
        },
        arguments);
  };
  const std::vector<Floats> apart = run(false), added = run(true);
  ASSERT_EQ(apart.size(), 1U);
  ASSERT_EQ(added.size(), 1U);
  ExpectNear(added[0], apart[0], 1e-6);
}

TEST(AddGradients, RefuseSumsOfAnotherShapeOrNumber) {
  const auto error = [](const TracedFn& fn) {
    Graph graph("error");
    const Values v{graph.Parameter({DType::kF32, {4}}, "x"),
                   graph.Parameter({DType::kF32, {5}}, "y")};
    return graph.Finish(fn(v)).status().message();
  };
  const auto loss = [](std::span<const Value> v) { return ReduceSum(v[0] * v[0], {0}); };
  EXPECT_EQ(error([&](auto v) { return AddGradients(loss(v), Values{v[0]}, Values{v[1]}); }),
            "graph error: AddGradients: sum 0 is f32[5], what it is of f32[4]");
  EXPECT_EQ(error([&](auto v) { return AddGradients(loss(v), Values{v[0]}, Values{}); }),
            "graph error: AddGradients: 0 sums for 1 gradients");
}

}  // namespace
}  // namespace forebay::xla
