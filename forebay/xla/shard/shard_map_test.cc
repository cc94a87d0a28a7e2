// What a ShardMap and the collectives refuse, and what they print; no plugin is needed.
#include "forebay/xla/shard_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Mesh TwoByFour() { return Mesh::Create({{"fsdp", 2}, {"tensor", 4}}).value(); }

using Body = std::function<Values(std::span<const Value>)>;

// The error of a ShardMap of w [8, 12], split as given, whose one result has `out`.
std::string ErrorOf(const Body& body, const PartitionSpec& in = {}, const PartitionSpec& out = {}) {
  Graph graph("g");
  const Value w = graph.Parameter({DType::kF32, {8, 12}}, "w");
  const Values results = ShardMap(TwoByFour(), std::vector{in}, std::vector{out}, body, Values{w});
  EXPECT_EQ(results.size(), 1u);
  return graph.Finish(results).status().message();
}

std::string ErrorOf(const std::function<Value(Value)>& op, const PartitionSpec& in = {},
                    const PartitionSpec& out = {}) {
  return ErrorOf(Body([&](std::span<const Value> args) { return Values{op(args[0])}; }), in, out);
}

TEST(ShardMapErrorsTest, SpecsThatDoNotFitNameTheArgumentTheAxisAndTheSizes) {
  const auto identity = [](Value x) { return x; };
  EXPECT_THAT(ErrorOf(identity, {"fsdp", {"fsdp", "tensor"}}),
              HasSubstr("ShardMap: argument 0 \"w\": spec [fsdp, fsdp x tensor] for f32[8,12]: the "
                        "axis fsdp is named twice"));
  EXPECT_THAT(ErrorOf(identity, {{}, {"fsdp", "tensor"}}),
              HasSubstr("argument 0 \"w\": spec [-, fsdp x tensor]: dimension 1 of f32[8,12] has "
                        "size 12, which the axis fsdp x tensor of size 8 does not divide; with "
                        "this array fsdp x tensor may have size 1, 2, 3, 4, 6 or 12"));
  EXPECT_THAT(ErrorOf(identity, {"expert"}), HasSubstr("has no axis \"expert\""));
  EXPECT_THAT(ErrorOf(identity, {{}, {}, "fsdp"}), HasSubstr("has 3 dimensions, the array 2"));
  EXPECT_THAT(ErrorOf(identity, {}, {"expert"}), HasSubstr("result 0 (f32[8,12] on each device)"));
  EXPECT_THAT(ErrorOf(identity, {}, {{}, {}, "fsdp"}), HasSubstr("has more dimensions"));
  EXPECT_EQ(ErrorOf(identity, {"fsdp", "tensor"}, {"fsdp", "tensor"}), "");
}

TEST(ShardMapErrorsTest, ResultsThatDifferMustBeNamed) {
  EXPECT_THAT(ErrorOf([](Value x) { return ReduceSum(x, {0, 1}); }, {"fsdp", "tensor"}),
              HasSubstr("result 0 (f32[] on each device) differs along fsdp x tensor, which its "
                        "spec [] does not name: combine the devices' values (Psum"));
  const auto sum = [](const Axes& axes) {
    return [axes](Value x) { return Psum(ReduceSum(x, {0, 1}), axes); };
  };
  EXPECT_THAT(ErrorOf(sum("fsdp"), {"fsdp", "tensor"}), HasSubstr("differs along tensor"));
  EXPECT_EQ(ErrorOf(sum({"fsdp", "tensor"}), {"fsdp", "tensor"}), "");
  // Through every kind of body.
  const auto index = [](Value x) { return Convert(AxisIndex(*x.graph(), "fsdp"), DType::kF32); };
  EXPECT_THAT(ErrorOf(Body([&](std::span<const Value> args) {
                return Scan([&](std::span<const Value> in) { return Values{in[0] + index(in[0])}; },
                            Values{ReduceSum(args[0], {0, 1})}, args);
              })),
              HasSubstr("differs along fsdp"));
  EXPECT_THAT(ErrorOf(Body([&](std::span<const Value> args) {
                return Remat(
                    [&](std::span<const Value> in) { return Values{in[0] * index(in[0])}; }, args);
              })),
              HasSubstr("differs along fsdp"));
  EXPECT_THAT(ErrorOf(Body([&](std::span<const Value> args) {
                const Value first = Compare(
                    index(args[0]), Constant(*args[0].graph(), 0, DType::kF32), Comparison::kEq);
                return Cond(
                    first, [](std::span<const Value> in) { return Values{in[0]}; },
                    [](std::span<const Value> in) { return Values{-in[0]}; }, args);
              })),
              HasSubstr("differs along fsdp"));
  EXPECT_THAT(
      ErrorOf(Body([&](std::span<const Value> args) {
        // Steps until this device's index: what the loop carries differs too.
        const Value stop = index(args[0]);
        const Value zero = Constant(*args[0].graph(), 0, DType::kF32);
        return Values{While(
            [&](std::span<const Value> s) { return Values{Compare(s[0], stop, Comparison::kLt)}; },
            [](std::span<const Value> s) { return Values{s[0] + 1}; }, Values{zero})[0]};
      })),
      HasSubstr("differs along fsdp"));
  for (const auto& op : std::vector<std::function<Value(Value)>>{
           [](Value x) { return ReduceScatter(x, "fsdp", 0); },
           [](Value x) { return RingShift(x, "fsdp", 1); },
           [](Value x) { return AllToAll(x, "fsdp", 0, 1); }}) {
    EXPECT_THAT(ErrorOf(op), HasSubstr("differs along fsdp"));
  }
  EXPECT_EQ(ErrorOf([](Value x) { return AllGather(ReduceScatter(x, "fsdp", 0), "fsdp", 0); }), "");
}

TEST(ShardMapErrorsTest, CollectivesNameWhatIsWrong) {
  EXPECT_THAT(ErrorOf([](Value x) { return Psum(x, "expert"); }),
              HasSubstr("Psum: the mesh (fsdp=2 x tensor=4) has no axis \"expert\""));
  EXPECT_THAT(ErrorOf([](Value x) { return PMax(x, {"fsdp", "fsdp"}); }), HasSubstr("twice"));
  EXPECT_THAT(
      ErrorOf([](Value x) { return ReduceScatter(x, {"fsdp", "tensor"}, 1); }),
      HasSubstr("ReduceScatter: dimension 1 of f32[8,12] has size 12, which the axis fsdp x "
                "tensor of size 8 does not divide"));
  EXPECT_THAT(ErrorOf([](Value x) { return AllToAll(x, {"fsdp", "tensor"}, 1, 0); }),
              HasSubstr("AllToAll: dimension 1 of f32[8,12] has size 12"));
  EXPECT_THAT(ErrorOf([](Value x) { return AllGather(x, "fsdp", 2); }),
              HasSubstr("AllGather: dimension 2 is out of range for f32[8,12]"));
  EXPECT_THAT(ErrorOf([](Value x) { return AllToAll(x, "fsdp", 0, -3); }), HasSubstr("AllToAll"));
  const auto permute = [](std::vector<std::pair<int64_t, int64_t>> pairs) {
    return [pairs](Value x) { return Ppermute(x, "tensor", pairs); };
  };
  EXPECT_THAT(ErrorOf(permute({{0, 4}})),
              HasSubstr("the pair (0, 4) is out of range: tensor has 4"));
  EXPECT_THAT(ErrorOf(permute({{0, 1}, {0, 2}})), HasSubstr("sends or receives twice"));
  EXPECT_THAT(ErrorOf(permute({{0, 1}, {2, 1}})), HasSubstr("sends or receives twice"));
  EXPECT_EQ(ErrorOf(permute({})), "");
  EXPECT_THAT(ErrorOf([](Value x) { return Psum(Compare(x, x, Comparison::kEq), "fsdp"); }),
              HasSubstr("Psum: is not defined for pred"));
  EXPECT_THAT(ErrorOf([](Value x) { return PMean(Convert(x, DType::kS32), "fsdp"); }),
              HasSubstr("PMean: is not defined for s32"));
}

TEST(ShardMapErrorsTest, TheMaximumHasNoGradient) {
  const auto gradient = [](const std::function<Value(Value)>& op) {
    return [op](Value x) {
      const Value loss = ReduceSum(op(x) * x, {0, 1});
      return Gradients(loss, std::span(&x, 1))[0];
    };
  };
  EXPECT_THAT(ErrorOf(gradient([](Value x) { return PMax(x, "fsdp"); })),
              HasSubstr("PMax: has no gradient"));
  EXPECT_EQ(ErrorOf(gradient([](Value x) { return PMax(StopGradient(x), "fsdp"); })), "");
}

TEST(ShardMapErrorsTest, CollectivesNeedABody) {
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {8}}, "x");
  EXPECT_THAT(graph.Finish(Values{Psum(x, "fsdp")}).status().message(),
              HasSubstr("Psum along fsdp: outside of the body of a ShardMap"));
  Graph other("g");
  AxisIndex(other, "fsdp");
  EXPECT_FALSE(other.status().ok());
}

TEST(ShardMapErrorsTest, MapsDoNotNestAndShareOneMesh) {
  const auto nested = [](std::span<const Value> args) {
    return ShardMap(
        TwoByFour(), std::vector<PartitionSpec>(1), std::vector<PartitionSpec>(1),
        [](std::span<const Value> in) { return Values{in[0]}; }, args);
  };
  EXPECT_THAT(ErrorOf(Body(nested)), HasSubstr("ShardMap: inside the body of another one"));
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {8}}, "x");
  const std::vector<PartitionSpec> whole(1);
  const Body identity = [](std::span<const Value> in) { return Values{in[0]}; };
  const Values once = ShardMap(TwoByFour(), whole, whole, identity, Values{x});
  ShardMap(Mesh::Create({{"fsdp", 8}}).value(), whole, whole, identity, once);
  EXPECT_THAT(graph.status().message(), HasSubstr("the mesh is fsdp=8, that of an earlier"));
  Graph third("g");
  const Value y = third.Parameter({DType::kF32, {8}}, "y");
  ShardMap(TwoByFour(), std::vector<PartitionSpec>(2), whole, identity, Values{y});
  EXPECT_THAT(third.status().message(), HasSubstr("2 specs for 1 arguments"));
  Graph fourth("g");
  const Value z = fourth.Parameter({DType::kF32, {8}}, "z");
  EXPECT_EQ(ShardMap(TwoByFour(), whole, std::vector<PartitionSpec>(3), identity, Values{z}).size(),
            3u);
  EXPECT_THAT(fourth.status().message(), HasSubstr("returns 1 values, there are specs for 3"));
}

TEST(ShardMapErrorsTest, GradientsOfAnInnerBodysArgumentsAreRefused) {
  const auto body = [](std::span<const Value> args) {
    return Scan(
        [](std::span<const Value> in) {
          const Value loss = ReduceSum(in[1] * in[1], {0});
          return Values{in[0] + Gradients(loss, std::span(&in[1], 1))[0]};
        },
        Values{ReduceSum(args[0], {0})}, args);
  };
  EXPECT_THAT(ErrorOf(Body(body)),
              HasSubstr("Gradients: wrt 0 (f32[12]) depends on the arguments"));
}

TEST(ShardMapErrorsTest, DonationNeedsEqualSpecs) {
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {8}}, "x");
  const Values y = ShardMap(
      TwoByFour(), std::vector{PartitionSpec{"fsdp"}}, std::vector{PartitionSpec{}},
      [](std::span<const Value> in) { return Values{AllGather(in[0], "fsdp", 0)}; }, Values{x});
  EXPECT_THAT(graph.Finish(y, std::vector<Alias>{{0, 0}}).status().message(),
              HasSubstr("\"x\", split as [fsdp], cannot be donated to result 0, split as []"));
}

TEST(ShardMapTextTest, ArgumentsAndResultsCarryTheirSpecs) {
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {8, 4}}, "x");
  const Value rate = graph.Parameter({DType::kF32, {}}, "rate");
  const Values y = ShardMap(
      TwoByFour(), std::vector{PartitionSpec{{"tensor", "fsdp"}}},
      std::vector{PartitionSpec{{"tensor", "fsdp"}}},
      [&](std::span<const Value> in) { return Values{in[0] * rate + Psum(in[0], "fsdp")}; },
      Values{x});
  const Result<Program> program = graph.Finish(Values{y[0], y[0] * 2.0, rate + 1.0});
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const PartitionSpec split{{"tensor", "fsdp"}};
  EXPECT_EQ(program->argument_specs, (std::vector<PartitionSpec>{split, {}}));
  // What is made of a split value outside keeps its split.
  EXPECT_EQ(program->result_specs, (std::vector<PartitionSpec>{split, split, {}}));
  EXPECT_EQ(program->arguments[0], (Shape{DType::kF32, {8, 4}}));
  const std::string& text = program->stablehlo;
  EXPECT_THAT(text, HasSubstr("sdy.mesh @mesh = <[\"fsdp\"=2, \"tensor\"=4]>"));
  EXPECT_THAT(text, HasSubstr("mhlo.num_partitions = 8"));
  EXPECT_THAT(text, HasSubstr("%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, "
                              "[{\"tensor\", \"fsdp\"}, {}]>}"));
  EXPECT_THAT(text, HasSubstr("replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]>"));
  EXPECT_THAT(text, HasSubstr("handle = 1, type = 1"));
}

TEST(ShardMapTextTest, CollectivesHaveChannelsOfTheirOwnAndEqualOnesAreOne) {
  Graph graph("g");
  const Value x = graph.Parameter({DType::kF32, {8}}, "x");
  const Values y = ShardMap(
      TwoByFour(), std::vector<PartitionSpec>(1), std::vector<PartitionSpec>(1),
      [](std::span<const Value> in) {
        return Values{Psum(in[0], "fsdp") + Psum(in[0], "fsdp") + Psum(in[0], "tensor")};
      },
      Values{x});
  const std::string text = graph.Finish(y).value().stablehlo;
  size_t count = 0;
  for (size_t at = text.find("all_reduce"); at != std::string::npos;
       at = text.find("all_reduce", at + 1)) {
    ++count;
  }
  EXPECT_EQ(count, 2u);
  EXPECT_THAT(text, HasSubstr("handle = 1, type = 1"));
  EXPECT_THAT(text, HasSubstr("handle = 2, type = 1"));
}

TEST(ShardMapTextTest, NothingIsLeftOnOneDevice) {
  Graph graph("g");
  const Mesh mesh = Mesh::Create({{"fsdp", 1}, {"tensor", 1}}).value();
  const Value x = graph.Parameter({DType::kF32, {8}}, "x");
  const Values y = ShardMap(
      mesh, std::vector{PartitionSpec{"fsdp"}}, std::vector{PartitionSpec{}},
      [](std::span<const Value> in) {
        const Value all = AllGather(in[0], "fsdp", 0) + RingShift(in[0], "tensor", 1);
        return Values{PMean(all, {"fsdp", "tensor"}) +
                      Convert(AxisIndex(*in[0].graph(), "fsdp"), DType::kF32)};
      },
      Values{x});
  const Result<Program> program = graph.Finish(y);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->mesh.size(), 1);
  EXPECT_TRUE(program->argument_specs.empty());
  EXPECT_THAT(program->stablehlo, Not(HasSubstr("sdy")));
  EXPECT_THAT(program->stablehlo, Not(HasSubstr("all_")));
}

}  // namespace
}  // namespace forebay::xla
