// ShardMap: models on 1, 2, 4 and 8 devices give the values and gradients of one device, with Scan,
// Remat, Cond, CustomVjp and collectives inside, and gradients taken inside or outside.
#include "forebay/xla/shard_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharded_buffer.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Mesh MakeMesh(std::vector<MeshAxis> axes) { return Mesh::Create(std::move(axes)).value(); }

constexpr int64_t kBatch = 8;
constexpr int64_t kIn = 8;
constexpr int64_t kHidden = 16;

// x [batch, in], w1 [in, hidden], norm [in], w2 [hidden, in].
std::vector<Argument> MlpArguments() {
  return {RandomArgument({kBatch, kIn}, 1), RandomArgument({kIn, kHidden}, 2),
          RandomArgument({kIn}, 3, 0.5F, 1.5F), RandomArgument({kHidden, kIn}, 4)};
}

// The model on one device: mean over all elements of (silu(norm(x) w1) w2 + x)^2.
Value PlainMlp(std::span<const Value> args) {
  const Value x = args[0];
  const Value h = x * Rsqrt(ReduceMean(x * x, {1}, true) + 1e-5) * args[2];
  const Value y = MatMul(Silu(MatMul(h, args[1])), args[3]) + x;
  return ReduceMean(y * y, {0, 1});
}

// Mesh axes may be missing: then the code below runs without them.
Axes Of(const Mesh& mesh, std::initializer_list<std::string_view> names) {
  std::vector<std::string> found;
  for (const std::string_view name : names) {
    if (mesh.AxisNumber(name) >= 0) found.emplace_back(name);
  }
  return Axes(found);
}

// The same over a mesh: batch over data and fsdp, weights over fsdp (gathered before use) and
// tensor (columns of w1, rows of w2).
struct ShardedMlp {
  Mesh mesh;

  std::vector<PartitionSpec> Specs() const {
    const Axes fsdp = Of(mesh, {"fsdp"});
    const Axes tensor = Of(mesh, {"tensor"});
    return {PartitionSpec{Of(mesh, {"data", "fsdp"})},
            PartitionSpec{fsdp, tensor},
            {},
            PartitionSpec{tensor, fsdp}};
  }
  Value Loss(std::span<const Value> args) const {
    const Axes fsdp = Of(mesh, {"fsdp"});
    const Value x = args[0];
    const Value w1 = AllGather(args[1], fsdp, 0);
    const Value w2 = AllGather(args[3], fsdp, 1);
    const Value h = x * Rsqrt(ReduceMean(x * x, {1}, true) + 1e-5) * args[2];
    const Value y = Psum(MatMul(Silu(MatMul(h, w1)), w2), Of(mesh, {"tensor"})) + x;
    return PMean(ReduceMean(y * y, {0, 1}), Of(mesh, {"data", "fsdp"}));
  }
};

std::vector<Mesh> MlpMeshes() {
  return {MakeMesh({}),
          MakeMesh({{"data", 2}}),
          MakeMesh({{"fsdp", 2}}),
          MakeMesh({{"tensor", 2}}),
          MakeMesh({{"data", 1}, {"fsdp", 2}, {"tensor", 2}}),
          MakeMesh({{"fsdp", 8}}),
          MakeMesh({{"data", 2}, {"fsdp", 2}, {"tensor", 2}})};
}

std::vector<Floats> PlainResults() {
  return RunFn(
      [](std::span<const Value> args) {
        const Value loss = PlainMlp(args);
        Values out{loss};
        const Values gradients = Gradients(loss, args);
        out.insert(out.end(), gradients.begin(), gradients.end());
        return out;
      },
      MlpArguments());
}

TEST(ShardMapTest, AnMlpOnAnyMeshHasTheLossAndGradientsOfOneDevice) {
  const std::vector<Floats> expected = PlainResults();
  for (const Mesh& mesh : MlpMeshes()) {
    const ShardedMlp mlp{mesh};
    std::vector<PartitionSpec> out_specs = mlp.Specs();
    out_specs.insert(out_specs.begin(), PartitionSpec());
    const std::vector<Floats> results = RunShardMap(
        {mesh, mlp.Specs(), out_specs},
        [&](std::span<const Value> args) {
          const Value loss = mlp.Loss(args);
          Values out{loss};
          const Values gradients = Gradients(loss, args);
          out.insert(out.end(), gradients.begin(), gradients.end());
          return out;
        },
        MlpArguments());
    ASSERT_EQ(results.size(), expected.size()) << mesh.ToString();
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectNear(results[i], expected[i], 1e-6, "result " + std::to_string(i) + mesh.ToString());
    }
  }
}

TEST(ShardMapTest, GradientsFromOutsideAreTheSame) {
  const std::vector<Floats> expected = PlainResults();
  for (const Mesh& mesh : {MakeMesh({{"data", 2}, {"fsdp", 2}, {"tensor", 2}})}) {
    const ShardedMlp mlp{mesh};
    const std::vector<Floats> results = RunFn(
        [&](std::span<const Value> args) {
          const std::vector<PartitionSpec> scalar(1);
          const Value loss = ShardMap(
              mesh, mlp.Specs(), scalar,
              [&](std::span<const Value> own) { return Values{mlp.Loss(own)}; }, args)[0];
          Values out{loss};
          const Values gradients = Gradients(loss, args);
          out.insert(out.end(), gradients.begin(), gradients.end());
          return out;
        },
        MlpArguments());
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectNear(results[i], expected[i], 1e-6, "result " + std::to_string(i) + mesh.ToString());
    }
  }
}

// A result that every device has is one number, not one a device: its gradient is not counted
// twice, nor is that of an argument that every device has counted once a device too little.
TEST(ShardMapTest, ValuesThatAllDevicesHaveCountOnce) {
  const Mesh mesh = MakeMesh({{"x", 2}, {"y", 2}});
  const auto body = [](std::span<const Value> args) {
    const Value w = args[0];                         // scalar on all
    const Value x = args[1];                         // split over x
    return Values{Psum(ReduceSum(w * x, {0}), "x"),  // loss, the same on all
                  w * w};                            // never leaves the device
  };
  const std::vector<PartitionSpec> in{{}, PartitionSpec{"x"}};
  const std::vector<Argument> arguments{{{DType::kF32, {}}, {3}},
                                        {{DType::kF32, {4}}, {1, 2, 3, 4}}};
  const std::vector<Floats> outside = RunFn(
      [&](std::span<const Value> args) {
        const Values y = ShardMap(mesh, in, std::vector<PartitionSpec>(2), body, args);
        return Gradients(y[0] + y[1], args);
      },
      arguments);
  ASSERT_EQ(outside.size(), 2u);
  EXPECT_EQ(outside[0], (Floats{10 + 6}));
  EXPECT_EQ(outside[1], (Floats{3, 3, 3, 3}));
  const std::vector<Floats> inside = RunShardMap(
      {mesh, in, in},
      [&](std::span<const Value> args) {
        const Values y = body(args);
        return Gradients(y[0] + y[1], args);
      },
      arguments);
  EXPECT_EQ(inside, outside);
}

TEST(ShardMapTest, GradientsOfALossThatDiffersAreThoseOfItsMean) {
  const Mesh mesh = MakeMesh({{"data", 4}});
  const std::vector<Floats> results =
      RunShardMap({mesh, {{}, PartitionSpec{"data"}}, {{}, PartitionSpec{"data"}}},
                  [](std::span<const Value> args) {
                    return Gradients(ReduceSum(args[0] * args[1] * args[1], {0}), args);
                  },
                  {{{DType::kF32, {}}, {2}}, {{DType::kF32, {4}}, {1, 2, 3, 4}}});
  EXPECT_EQ(results, (std::vector<Floats>{{30.0F / 4}, {1, 2, 3, 4}}));
}

// Gradients may be asked for anything in the body: what all devices have is summed over them.
TEST(ShardMapTest, GradientsOfIntermediateValues) {
  const Mesh mesh = MakeMesh({{"fsdp", 2}, {"tensor", 2}});
  const std::vector<Floats> results = RunShardMap(
      {mesh, {PartitionSpec{"fsdp"}, PartitionSpec{"tensor"}}, {{}, PartitionSpec{"tensor"}}},
      [](std::span<const Value> args) {
        const Value whole = AllGather(args[0], "fsdp", 0) * 2;  // the same on all
        const Value part = args[1] * 1;                         // differs along tensor
        const Value loss = Psum(ReduceSum(whole * whole, {0}) * ReduceSum(part, {0}), "tensor");
        return Gradients(loss, Values{whole, part});
      },
      {{{DType::kF32, {2}}, {1, 2}}, {{DType::kF32, {2}}, {10, 20}}});
  // loss = |whole|^2 (10 + 20), whole = (2, 4).
  EXPECT_EQ(results, (std::vector<Floats>{{2 * 2 * 30, 2 * 4 * 30}, {20, 20}}));
}

// Layers as a Scan over stacked weights, gathered layer by layer in a Remat body: what a model
// does.
Values StackedLoss(const Mesh& mesh, bool remat, std::span<const Value> args) {
  const Axes fsdp = Of(mesh, {"fsdp"});
  const Axes tensor = Of(mesh, {"tensor"});
  const auto layer = [&](std::span<const Value> in) {
    const Value w1 = AllGather(in[1], fsdp, 0);
    const Value w2 = AllGather(in[2], fsdp, 1);
    const Value h = MatMul(Tanh(MatMul(in[0], w1)), w2);
    return Values{in[0] + (tensor.empty() ? h : Psum(h, tensor)) * 0.3};
  };
  const auto body = [&](std::span<const Value> in) { return remat ? Remat(layer, in) : layer(in); };
  const Value y = Scan(body, std::span(&args[0], 1), args.subspan(1, 2))[0];
  return {PMean(ReduceMean(y * y, {0, 1}), fsdp)};
}

TEST(ShardMapTest, ScanAndRematInTheBody) {
  const std::vector<Argument> arguments{RandomArgument({4, kIn}, 1),
                                        RandomArgument({5, kIn, kHidden}, 2),
                                        RandomArgument({5, kHidden, kIn}, 3)};
  std::vector<Floats> expected;
  for (const Mesh& mesh : {MakeMesh({}), MakeMesh({{"fsdp", 4}, {"tensor", 2}})}) {
    const Axes fsdp = Of(mesh, {"fsdp"});
    const Axes tensor = Of(mesh, {"tensor"});
    const std::vector<PartitionSpec> in{PartitionSpec{fsdp}, PartitionSpec{{}, fsdp, tensor},
                                        PartitionSpec{{}, tensor, fsdp}};
    std::vector<PartitionSpec> out = in;
    out.insert(out.begin(), PartitionSpec());
    for (const bool remat : {false, true}) {
      const std::vector<Floats> results = RunShardMap(
          {mesh, in, out},
          [&](std::span<const Value> args) {
            Values losses = StackedLoss(mesh, remat, args);
            const Values gradients = Gradients(losses[0], args);
            losses.insert(losses.end(), gradients.begin(), gradients.end());
            return losses;
          },
          arguments);
      if (expected.empty()) expected = results;
      ASSERT_EQ(results.size(), 4u);
      for (size_t i = 0; i < 4; ++i) {
        ExpectNear(results[i], expected[i], 1e-6, mesh.ToString() + std::to_string(i));
      }
    }
  }
}

TEST(ShardMapTest, GradientAccumulationInAScan) {
  const Mesh mesh = MakeMesh({{"data", 2}, {"tensor", 2}});
  // w [4] over tensor; batches [3, 4] over data. Loss of a batch: mean_i x_i (sum_j w_j)^2.
  const std::vector<Floats> results = RunShardMap(
      {mesh, {PartitionSpec{"tensor"}, PartitionSpec{{}, "data"}}, {PartitionSpec{"tensor"}}},
      [](std::span<const Value> args) {
        const Value w = args[0];
        const Value zero = ZerosLike(w);
        return Scan(
            [&](std::span<const Value> in) {
              const Value sum = Psum(ReduceSum(w, {0}), "tensor");
              const Value loss = PMean(ReduceMean(in[1] * (sum * sum), {0}), "data");
              return Values{in[0] + Gradients(loss, std::span(&w, 1))[0]};
            },
            std::span(&zero, 1), args.subspan(1));
      },
      {{{DType::kF32, {4}}, {1, 2, 3, 4}},
       {{DType::kF32, {3, 4}}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}});
  // d/dw_j = mean(x) 2 (sum w) = 20 mean(x), over three batches of means 2.5, 6.5 and 10.5.
  EXPECT_EQ(results, (std::vector<Floats>{Floats(4, 20 * 19.5F)}));
}

TEST(ShardMapTest, CondAndCustomVjpAndWhileInTheBody) {
  const Mesh mesh = MakeMesh({{"x", 4}});
  const auto body = [](std::span<const Value> args) {
    Graph& graph = *args[0].graph();
    const Value index = AxisIndex(graph, "x");
    const Value even = Compare(Rem(index, Constant(graph, 2, DType::kS32)),
                               Constant(graph, 0, DType::kS32), Comparison::kEq);
    // Even devices double, odd ones square: a branch may differ as long as no collective is in it.
    const Value chosen = Cond(
        even, [](std::span<const Value> in) { return Values{in[0] * 2}; },
        [](std::span<const Value> in) { return Values{in[0] * in[0]}; }, args)[0];
    // A ring sum with a gradient of its own.
    const Value sum = CustomVjp(
        [](std::span<const Value> in) {
          Value total = in[0];
          Value moving = in[0];
          for (int i = 0; i < 3; ++i) {
            moving = RingShift(moving, "x", 1);
            total = total + moving;
          }
          return Values{total};
        },
        [](std::span<const Value>, std::span<const Value>, std::span<const Value> cts) {
          return Values{Psum(cts[0], "x")};
        },
        std::span(&chosen, 1))[0];
    const Value step = Constant(graph, 0, DType::kS32);
    const Value steps = While(
        [](std::span<const Value> state) {
          return Values{
              Compare(state[0], Constant(*state[0].graph(), 3, DType::kS32), Comparison::kLt)};
        },
        [&](std::span<const Value> state) { return Values{state[0] + 1}; }, std::span(&step, 1))[0];
    const Value loss = PMean(ReduceSum(sum, {0}), "x") * Convert(steps, DType::kF32);
    return Values{loss, Gradients(loss, args)[0]};
  };
  const std::vector<Floats> results =
      RunShardMap({mesh, {PartitionSpec{"x"}}, {{}, PartitionSpec{"x"}}}, body,
                  {{{DType::kF32, {4}}, {1, 2, 3, 4}}});
  EXPECT_EQ(results, (std::vector<Floats>{{3 * (2 + 4 + 6 + 16)}, {3 * 2, 3 * 4, 3 * 2, 3 * 8}}));
}

TEST(ShardMapTest, InsideAScanAndWithValuesOfTheOutside) {
  const Mesh mesh = MakeMesh({{"x", 2}});
  const std::vector<PartitionSpec> split{PartitionSpec{"x"}};
  const auto fn = [&](std::span<const Value> args) {
    return Values{Scan(
        [&](std::span<const Value> in) {
          const Value scale = in[1];
          return ShardMap(
              mesh, split, split,
              [&](std::span<const Value> own) {
                const Value shifted = RingShift(own[0], "x", 1) * scale;  // scale: whole, captured
                return Values{Sin(shifted) + own[0]};
              },
              std::span(&in[0], 1));
        },
        args.first(1), args.subspan(1))[0]};
  };
  ExpectGradientsMatch(fn, {RandomArgument({4}, 1), RandomArgument({3}, 2)});
}

TEST(ShardMapTest, ATrainingStepDonatesItsSplitParameters) {
  const Mesh mesh = MakeMesh({{"fsdp", 2}, {"tensor", 2}});
  const ShardedMlp mlp{mesh};
  Client& client = MeshTestClient();
  Graph graph("step");
  const std::vector<Argument> arguments = MlpArguments();
  Values xs;
  for (const char* name : {"x", "w1", "norm", "w2"}) {
    xs.push_back(graph.Parameter(arguments[xs.size()].shape, name));
  }
  std::vector<PartitionSpec> out_specs = mlp.Specs();
  out_specs[0] = PartitionSpec();
  const Values results = ShardMap(
      mesh, mlp.Specs(), out_specs,
      [&](std::span<const Value> args) {
        const Value loss = mlp.Loss(args);
        const Values gradients = Gradients(loss, args.subspan(1));
        Values out{loss};
        for (size_t i = 0; i < 3; ++i) out.push_back(args[i + 1] - gradients[i] * 0.1);
        return out;
      },
      xs);
  const std::vector<Alias> aliases{{1, 1}, {2, 2}, {3, 3}};
  const Result<Program> program = graph.Finish(results, aliases);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->argument_specs, mlp.Specs());
  EXPECT_EQ(program->result_specs, out_specs);
  EXPECT_THAT(program->stablehlo, Not(HasSubstr("all_to_all")));
  const int64_t before = client.live_buffers();
  {
    const auto step = client.Compile(*program).value();
    const int64_t donated = kIn * kHidden * 4 / 4 * 2 + kIn * 4;
    EXPECT_EQ(step->memory().value().alias_bytes, donated);
    std::vector<Buffer> buffers;
    for (size_t i = 0; i < xs.size(); ++i) {
      buffers.push_back(
          SplitFromVector(client, arguments[i].values, arguments[i].shape, {mesh, mlp.Specs()[i]})
              .value());
    }
    float first = 0;
    float last = 0;
    for (int i = 0; i < 20; ++i) {
      std::vector<Buffer*> pointers;
      for (Buffer& b : buffers) pointers.push_back(&b);
      std::vector<Buffer> out = step->Execute(pointers).value();
      last = out[0].ToVector<float>().value()[0];
      if (i == 0) first = last;
      for (size_t k = 1; k < 4; ++k) buffers[k] = std::move(out[k]);
    }
    EXPECT_LT(last, first * 0.9F);
  }
  EXPECT_EQ(client.live_buffers(), before);
}

}  // namespace
}  // namespace forebay::xla
