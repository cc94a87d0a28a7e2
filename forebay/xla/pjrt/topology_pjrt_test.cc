// Ahead-of-time compilation for TPU topologies; where no TPU compiler is installed, those tests are
// skipped and say so. And the statistics of programs of a Client.
#include "forebay/xla/topology.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/pjrt/client_testing.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

using ::testing::HasSubstr;

constexpr const char* kSlice = "v5p:2x2x2";  // eight chips

// Gradient descent on |silu(x w1) w2|^2 in bf16: weights over fsdp (gathered) and tensor.
Program Step(const Mesh& mesh, int64_t rows, int64_t width) {
  Graph graph("step");
  const Value x = graph.Parameter({DType::kBF16, {rows, width}}, "x");
  const Value w1 = graph.Parameter({DType::kF32, {width, 4 * width}}, "w1");
  const Value w2 = graph.Parameter({DType::kF32, {4 * width, width}}, "w2");
  const std::vector<PartitionSpec> in{PartitionSpec{"fsdp"}, PartitionSpec{"fsdp", "tensor"},
                                      PartitionSpec{"tensor", "fsdp"}};
  const std::vector<PartitionSpec> out{{}, in[1], in[2]};
  const Values results = ShardMap(
      mesh, in, out,
      [](std::span<const Value> args) {
        const Value up = AllGather(Convert(args[1], DType::kBF16), "fsdp", 0);
        const Value down = AllGather(Convert(args[2], DType::kBF16), "fsdp", 1);
        const Value y = Psum(MatMul(Silu(MatMul(args[0], up)), down), "tensor");
        const Value wide = Convert(y, DType::kF32);
        const Value loss = PMean(ReduceMean(wide * wide, {0, 1}), "fsdp");
        const Values gradients = Gradients(loss, args.subspan(1));
        return Values{loss, args[1] - gradients[0] * 0.1, args[2] - gradients[1] * 0.1};
      },
      Values{x, w1, w2});
  return graph.Finish(results, std::vector<Alias>{{1, 1}, {2, 2}}).value();
}

Mesh MakeMesh(int64_t fsdp, int64_t tensor) {
  return Mesh::Create({{"fsdp", fsdp}, {"tensor", tensor}}).value();
}

TEST(TopologyTest, AMissingCompilerSaysHowToInstallIt) {
  const Status status =
      Topology::Create({.plugin_path = "/no/such/libtpu.so", .name = kSlice}).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("tools/setup_tpu_compiler.sh"));
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "libtpu.so").string();
  std::ofstream(file) << "no library";
  EXPECT_EQ(Topology::Create({.plugin_path = file, .name = kSlice}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(TopologyTest, ProgramsOfAClientHaveStatisticsToo) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 4});
  const auto step = client->Compile(Step(MakeMesh(2, 2), 8, 32)).value();
  const Result<CompiledStats> stats = StatsOf(*step);
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  const int64_t weights = 2 * int64_t{32} * 128 / 4 * 4;  // bytes on each device
  EXPECT_EQ(stats->memory.alias_bytes, weights);
  EXPECT_EQ(stats->memory.argument_bytes, weights + 4 * 32 * 2);
  EXPECT_GE(stats->total_bytes(), stats->memory.argument_bytes);
}

class TpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<std::string> compiler = FindTpuCompiler("");
    if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
    Result<std::unique_ptr<Topology>> created = Topology::Create({.name = kSlice});
    ASSERT_TRUE(created.ok()) << created.status().ToString();
    topology_ = std::move(created).value();
  }
  std::unique_ptr<Topology> topology_;
};

TEST_F(TpuTest, ASliceHasItsChips) {
  EXPECT_EQ(topology_->name(), kSlice);
  ASSERT_EQ(topology_->devices().size(), 8u);
  EXPECT_THAT(topology_->devices()[0].kind, HasSubstr("TPU"));
  const Status status = Topology::Create({.name = "v5p:nonsense"}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no topology \"v5p:nonsense\""));
}

TEST_F(TpuTest, AShardedStepCompilesAndItsMemoryIsSplit) {
  const int64_t width = 1024;
  const Result<CompiledStats> eight = topology_->Compile(Step(MakeMesh(4, 2), 512, width));
  ASSERT_TRUE(eight.ok()) << eight.status().ToString();
  const int64_t weights = 2 * width * 4 * width * 4 / 8;
  EXPECT_EQ(eight->memory.alias_bytes, weights);
  EXPECT_GE(eight->memory.argument_bytes, weights + 512 / 4 * width * 2);
  EXPECT_LT(eight->memory.argument_bytes, weights * 11 / 10);
  // Three products of [512 / 4, width] x [width, 4 width / 2] for each of two weights.
  const double flops = 2.0 * 512 / 4 * width * 4 * width / 2;
  ASSERT_TRUE(eight->flops.has_value());
  EXPECT_GT(*eight->flops, 5 * flops);
  EXPECT_LT(*eight->flops, 7 * flops);
  EXPECT_GT(eight->bytes_accessed.value_or(0), weights);
  EXPECT_GT(eight->compile_seconds, 0);
  // Without being asked the compiler lets nothing run beside the gathers; with these flags it does.
  ASSERT_TRUE(eight->collectives.has_value());
  EXPECT_GT(eight->collectives->blocking, 0);
  const std::map<std::string, std::string> flags = OverlapFlags(topology_->devices()[0].kind);
  EXPECT_FALSE(flags.empty());
  const Result<CompiledStats> overlapped =
      topology_->Compile(Step(MakeMesh(4, 2), 512, width), flags);
  ASSERT_TRUE(overlapped.ok()) << overlapped.status().ToString();
  EXPECT_GT(overlapped->collectives->overlapped, eight->collectives->overlapped);
  EXPECT_LT(overlapped->collectives->blocking, eight->collectives->blocking);
  for (const CompiledStats& stats : {*eight, *overlapped}) {
    std::printf("[ stats    ] %s\n",
                fmt::format("arguments {}, temp {}, flops {:.3g}, bytes {:.3g}, {:.3g} s, "
                            "collectives {} blocking {} overlapped, compiled in {:.1f} s",
                            stats.memory.argument_bytes, stats.memory.temp_bytes,
                            stats.flops.value_or(-1), stats.bytes_accessed.value_or(-1),
                            stats.optimal_seconds.value_or(-1), stats.collectives->blocking,
                            stats.collectives->overlapped, stats.compile_seconds)
                    .c_str());
  }
}

TEST_F(TpuTest, WhatCannotBeCompiledIsSaid) {
  const Status larger = topology_->Compile(Step(MakeMesh(8, 2), 512, 64)).status();
  EXPECT_EQ(larger.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(larger.message(), HasSubstr("the topology v5p:2x2x2 has 8"));
  Program broken = Step(MakeMesh(4, 2), 512, 64);
  broken.stablehlo = "module { nonsense }";
  EXPECT_THAT(topology_->Compile(broken).status().message(),
              HasSubstr("program 'step' does not compile for v5p:2x2x2"));
}

// Two weights of 2^36 elements: gathered in bf16, one alone takes 137 GB, and a chip has 95.
TEST_F(TpuTest, AProgramThatDoesNotFitInMemoryIsRefusedByTheCompiler) {
  const Status status = topology_->Compile(Step(MakeMesh(8, 1), 512, 131072)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString().substr(0, 2000);
}

}  // namespace
}  // namespace forebay::xla
