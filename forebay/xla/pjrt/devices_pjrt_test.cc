// Programs over several virtual devices, from hand-written text: where arguments lie, what comes
// back, what is refused, what is freed.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/client_testing.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharded_buffer.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Shape kEight{DType::kF32, {8}};

Mesh Line(int64_t size) { return Mesh::Create({{"x", size}}).value(); }

// (x, y) -> (x + y, sum of the parts of x over all devices), x and y split over n devices.
Program SumProgram(int64_t n, bool donate = false) {
  std::string group;
  for (int64_t i = 0; i < n; ++i) group += fmt::format("{}{}", i > 0 ? ", " : "", i);
  const std::string split = "sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}]>";
  const std::string local = fmt::format("tensor<{}xf32>", 8 / n);
  return {
      .name = "sum",
      .stablehlo = fmt::format(
          R"(module @sum attributes {{mhlo.num_partitions = {n} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"={n}]>
  func.func public @main(%x: tensor<8xf32> {{{split}{alias}}}, %y: tensor<8xf32> {{{split}}})
      -> (tensor<8xf32> {{{split}}}, {local} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}]>}}) {{
    %0:2 = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, [{{"x"}}]>, <@mesh, [{{"x"}}]>]
        out_shardings=[<@mesh, [{{"x"}}]>, <@mesh, [{{}}]>] manual_axes={{"x"}} (%a: {local}, %b: {local}) {{
      %1 = stablehlo.add %a, %b : {local}
      %2 = "stablehlo.all_reduce"(%a) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[{group}]]> : tensor<1x{n}xi64>, use_global_device_ids}}> ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %3 = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }}) : ({local}) -> {local}
      sdy.return %1, %2 : {local}, {local}
    }} : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, {local})
    return %0#0, %0#1 : tensor<8xf32>, {local}
  }}
}}
)",
          fmt::arg("n", n), fmt::arg("split", split), fmt::arg("local", local),
          fmt::arg("group", group),
          fmt::arg("alias", donate ? ", tf.aliasing_output = 0 : i32" : "")),
      .arguments = {kEight, kEight},
      .argument_names = {"x", "y"},
      .results = {kEight, {DType::kF32, {8 / n}}},
      .donated_to = {donate ? 0 : -1, -1},
      .mesh = Line(n),
      .argument_specs = {PartitionSpec{"x"}, PartitionSpec{"x"}},
      .result_specs = {PartitionSpec{"x"}, {}}};
}

Buffer Split(Client& client, const std::vector<float>& values, const Mesh& mesh) {
  return SplitFromVector(client, values, kEight, {mesh, PartitionSpec{"x"}}).value();
}

const std::vector<float> kOnes(8, 1.0F);
const std::vector<float> kCount = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(DevicesTest, AProgramRunsOverAllPartitions) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 8});
  for (const int64_t n : {2, 4, 8}) {
    const auto sum = client->Compile(SumProgram(n));
    ASSERT_TRUE(sum.ok()) << sum.status().ToString();
    Buffer x = Split(*client, kCount, Line(n));
    Buffer y = Split(*client, kOnes, Line(n));
    EXPECT_EQ(client->live_buffers(), 2 * n);
    Result<std::vector<Buffer>> results = Call(**sum, {&x, &y});
    ASSERT_TRUE(results.ok()) << results.status().ToString();
    EXPECT_THAT(Floats((*results)[0]), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
    EXPECT_EQ((*results)[0].sharding()->spec, PartitionSpec{"x"});
    std::vector<float> sums(static_cast<size_t>(8 / n), 0.0F);
    for (size_t i = 0; i < 8; ++i) sums[i % sums.size()] += kCount[i];
    EXPECT_EQ(Floats((*results)[1]), sums);
    // Every device has the whole of what is not split.
    for (const Buffer& part : std::move((*results)[1]).TakeParts()) EXPECT_EQ(Floats(part), sums);
  }
  EXPECT_EQ(client->live_buffers(), 0);
}

TEST(DevicesTest, DonationGivesTheMemoryOfEveryPart) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 4});
  const auto sum = client->Compile(SumProgram(4, /*donate=*/true)).value();
  EXPECT_EQ(sum->memory().value().alias_bytes, 8);
  Buffer x = Split(*client, kCount, Line(4));
  Buffer y = Split(*client, kOnes, Line(4));
  for (int i = 0; i < 10; ++i) {
    std::vector<Buffer> results = Call(*sum, {&x, &y}).value();
    EXPECT_TRUE(x.empty());
    x = std::move(results[0]);
  }
  EXPECT_EQ(client->live_buffers(), 8);
  EXPECT_THAT(Floats(x), ElementsAre(10, 11, 12, 13, 14, 15, 16, 17));
}

TEST(DevicesTest, ManyRunsAreQueuedAhead) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 8});
  const auto sum = client->Compile(SumProgram(8)).value();
  Buffer x = Split(*client, kCount, Line(8));
  Buffer y = Split(*client, kOnes, Line(8));
  for (int i = 0; i < 100; ++i) x = std::move(Call(*sum, {&x, &y}).value()[0]);
  EXPECT_EQ(Floats(x)[7], 107);
}

TEST(DevicesTest, WrongPlacesAreNamedAndNothingIsConsumed) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 4});
  const auto sum = client->Compile(SumProgram(4, /*donate=*/true)).value();
  const Mesh mesh = Line(4);
  Buffer x = Split(*client, kCount, mesh);
  Buffer one_device = Vector(*client, kOnes);
  EXPECT_THAT(
      Call(*sum, {&x, &one_device}).status().message(),
      HasSubstr(
          "argument 1 'y': the buffer is on device 0, the program takes it split as [x] over x=4"));
  Buffer repeated = SplitFromVector(*client, kOnes, kEight, {mesh, {}}).value();
  EXPECT_THAT(Call(*sum, {&x, &repeated}).status().message(), HasSubstr("split as [] over x=4"));
  Buffer elsewhere = Split(*client, kOnes, Line(2));
  EXPECT_THAT(Call(*sum, {&x, &elsewhere}).status().message(), HasSubstr("split as [x] over x=2"));
  const auto add = client->Compile(AddProgram(false)).value();
  Buffer four = SplitFromVector(*client, std::vector<float>(4), kVector, {mesh, {}}).value();
  EXPECT_THAT(Call(*add, {&four, &four}).status().message(), HasSubstr("takes it on device 0"));
  EXPECT_FALSE(x.empty());
  EXPECT_THAT(client->Compile(SumProgram(8)).status().message(),
              HasSubstr("mesh of 8 devices (x=8), this client has 4"));
  Program program = SumProgram(4);
  program.argument_specs.pop_back();
  EXPECT_THAT(client->Compile(program).status().message(), HasSubstr("has 1 specs for 2 argument"));
  program = SumProgram(4);
  program.result_specs[1] = PartitionSpec{"x"};
  EXPECT_FALSE(client->Compile(program).ok());
}

TEST(DevicesTest, PartsAndWholes) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 4});
  const Mesh mesh = Mesh::Create({{"a", 2}, {"b", 2}}).value();
  const Shape shape{DType::kF32, {2, 4}};
  for (const PartitionSpec& spec : {PartitionSpec{}, PartitionSpec{"b"}, PartitionSpec{"a", "b"},
                                    PartitionSpec{{}, "a"}, PartitionSpec{{}, {"b", "a"}}}) {
    const Sharding sharding{mesh, spec};
    Buffer whole = SplitFromVector(*client, kCount, shape, sharding).value();
    EXPECT_EQ(*whole.sharding(), sharding);
    EXPECT_EQ(whole.shape(), shape);
    EXPECT_EQ(Floats(whole), kCount) << spec.ToString();
    const Buffer copy = client->Copy(whole).value();
    std::vector<Buffer> parts = std::move(whole).TakeParts();
    ASSERT_EQ(parts.size(), 4u);
    EXPECT_EQ(parts[0].shape(), LocalShape(mesh, spec, shape));
    EXPECT_EQ(client->live_buffers(), 8);
    const Buffer again = Buffer::FromParts(std::move(parts), shape, sharding).value();
    EXPECT_EQ(Floats(again), kCount);
    EXPECT_EQ(Floats(copy), kCount);
  }
  EXPECT_EQ(client->live_buffers(), 0);
}

// A checkpoint of one mesh read on another one, part by part.
TEST(DevicesTest, PartsComeAndGoWithoutTheWhole) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 8});
  const Shape shape{DType::kF32, {4, 6}};
  std::vector<float> file(24);
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<float>(i);
  const Mesh four = Mesh::Create({{"a", 2}, {"b", 2}}).value();
  const Mesh eight = Mesh::Create({{"a", 2}, {"b", 2}, {"c", 2}}).value();
  std::vector<Sharding> shardings;
  shardings.push_back({});
  shardings.push_back({four, PartitionSpec{"b", "a"}});
  shardings.push_back({eight, PartitionSpec{{}, "c"}});
  shardings.push_back({eight, PartitionSpec{{"c", "a"}}});
  for (const Sharding& sharding : shardings) {
    SCOPED_TRACE(sharding.ToString());
    int reads = 0;
    const Buffer buffer =
        SplitFromParts(*client, shape, sharding,
                       [&](const ShardSlice& slice, std::span<std::byte> part) {
                         ++reads;
                         ReadSlice(std::as_bytes(std::span(file)), shape, slice, part);
                         return OkStatus();
                       })
            .value();
    EXPECT_EQ(reads, sharding.mesh.Size(sharding.spec.axes()));
    EXPECT_EQ(Floats(buffer), file);
    std::vector<float> written(24, -1.0F);
    int visits = 0;
    ASSERT_TRUE(buffer
                    .VisitParts([&](const ShardSlice& slice, std::span<const std::byte> part) {
                      ++visits;
                      WriteSlice(std::as_writable_bytes(std::span(written)), shape, slice, part);
                      return OkStatus();
                    })
                    .ok());
    EXPECT_EQ(written, file);
    EXPECT_EQ(visits, reads);
    const auto fail = [](const auto&, const auto&) { return DataLoss("disk"); };
    EXPECT_EQ(buffer.VisitParts(fail).code(), StatusCode::kDataLoss);
    EXPECT_EQ(SplitFromParts(*client, shape, sharding, fail).status().code(),
              StatusCode::kDataLoss);
  }
  EXPECT_EQ(Buffer().VisitParts({}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client->live_buffers(), 0);
}

TEST(DevicesTest, OnOneDeviceAnySpecIsTheWholeArray) {
  const std::unique_ptr<Client> client = MakeClient();
  const std::vector<float> values = {1, 2, 3, 4};
  const Mesh unnamed, named = Mesh::Create({{"data", 1}}).value();
  for (const Mesh& mesh : {unnamed, named}) {
    const auto buffer =
        SplitFromVector(*client, values, kVector, {.mesh = mesh, .spec = PartitionSpec{"fsdp"}});
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    EXPECT_EQ(Floats(*buffer), values);
    EXPECT_EQ(buffer->sharding(), nullptr);
  }
  EXPECT_EQ(SplitFromVector(*client, values, {DType::kF32, {5}}, {}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(DevicesTest, PartsThatDoNotFitAreRefused) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 2});
  const Sharding sharding{Line(2), PartitionSpec{"x"}};
  const auto parts = [&](int first, int second) {
    std::vector<Buffer> out;
    const std::vector<float> half(4, 1.0F);
    for (const int device : {first, second}) {
      out.push_back(client->FromHost(std::as_bytes(std::span(half)), kVector, device).value());
    }
    return out;
  };
  EXPECT_TRUE(Buffer::FromParts(parts(0, 1), kEight, sharding).ok());
  EXPECT_THAT(Buffer::FromParts(parts(1, 0), kEight, sharding).status().message(),
              HasSubstr("part 0 is on device 1; it must be on 0"));
  EXPECT_THAT(Buffer::FromParts(parts(0, 1), {DType::kF32, {4}}, sharding).status().message(),
              HasSubstr("has parts f32[2]"));
  EXPECT_THAT(Buffer::FromParts({}, kEight, sharding).status().message(), HasSubstr("0 parts"));
  EXPECT_THAT(SplitFromVector(*client, kOnes, {DType::kF32, {7}}, sharding).status().message(),
              HasSubstr("size 7"));
  EXPECT_THAT(SplitFromVector(*client, kOnes, {DType::kF32, {6}}, sharding).status().message(),
              HasSubstr("takes 24 bytes"));
  EXPECT_THAT(
      SplitFromVector(*client, kOnes, kEight, {Line(8), PartitionSpec{"x"}}).status().message(),
      HasSubstr("no device 2"));
  EXPECT_EQ(client->live_buffers(), 0);
}

TEST(DevicesTest, AMeshOfOneIsAPlainBuffer) {
  const std::unique_ptr<Client> client = MakeClient();
  Buffer x = SplitFromVector(*client, kCount, kEight, {Line(1), PartitionSpec{"x"}}).value();
  EXPECT_EQ(x.sharding(), nullptr);
  EXPECT_EQ(std::move(x).TakeParts().size(), 1u);
}

TEST(DevicesTest, TheDiskCacheKeepsProgramsOverMeshes) {
  const TemporaryFolder folder;
  for (int run = 0; run < 2; ++run) {
    const std::unique_ptr<Client> client =
        MakeClient({.cpu_device_count = 4, .cache_dir = folder.path().string()});
    const auto sum = client->Compile(SumProgram(4)).value();
    EXPECT_EQ(client->counters().disk_hits, run);
    Buffer x = Split(*client, kCount, Line(4));
    EXPECT_EQ(Floats(Call(*sum, {&x, &x}).value()[0])[7], 14);
  }
}

}  // namespace
}  // namespace forebay::xla
