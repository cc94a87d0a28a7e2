// The Client on the real CPU plugin: what it computes, what it refuses, what it frees.
#include "forebay/xla/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/client_testing.h"
#include "forebay/xla/pjrt/pjrt_client.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ClientTest, DescribesItself) {
  const std::unique_ptr<Client> client = MakeClient();
  EXPECT_EQ(client->platform(), "cpu");
  EXPECT_EQ(client->api_version().first, 0);
  EXPECT_GE(client->api_version().second, 81);
  ASSERT_EQ(client->devices().size(), 1u);
  EXPECT_EQ(client->devices()[0].kind, "cpu");
  EXPECT_TRUE(client->devices()[0].addressable);
}

TEST(ClientTest, VirtualDevicesTakeBuffers) {
  const std::unique_ptr<Client> client = MakeClient({.cpu_device_count = 3});
  ASSERT_EQ(client->devices().size(), 3u);
  const std::vector<float> values = {1, 2, 3, 4};
  Result<Buffer> buffer = client->FromHost(std::as_bytes(std::span(values)), kVector, 2);
  ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
  EXPECT_EQ(Floats(*buffer), values);
  // A program for one device names the stray argument instead of computing elsewhere.
  Buffer here = Vector(*client, values);
  const auto add = client->Compile(AddProgram(false)).value();
  EXPECT_THAT(Call(*add, {&here, &*buffer}).status().message(), HasSubstr("'y'"));
  EXPECT_THAT(client->FromHost(std::as_bytes(std::span(values)), kVector, 3).status().message(),
              HasSubstr("no device 3"));
}

TEST(ClientTest, RunsAProgramAndKeepsItsArguments) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto add = client->Compile(AddProgram(false)).value();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  Buffer y = Vector(*client, {10, 20, 30, 40});
  Result<std::vector<Buffer>> results = Call(*add, {&x, &y});
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results->size(), 1u);
  EXPECT_EQ((*results)[0].shape(), kVector);
  EXPECT_TRUE((*results)[0].Await().ok());
  EXPECT_THAT(Floats((*results)[0]), ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(Floats(x), ElementsAre(1, 2, 3, 4));
  // The same buffer twice is fine where nothing is donated.
  EXPECT_THAT(Floats(Call(*add, {&x, &x}).value()[0]), ElementsAre(2, 4, 6, 8));
}

TEST(ClientTest, OnReadyIsCalledOnceWhenTheValueIsThere) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto add = client->Compile(AddProgram(false)).value();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  std::atomic<int> calls = 0;
  {
    const std::vector<Buffer> results = Call(*add, {&x, &x}).value();
    ASSERT_TRUE(results[0].OnReady([&] { ++calls; }).ok());
    ASSERT_TRUE(results[0].Await().ok());
    // Of a value that is there.
    ASSERT_TRUE(results[0].OnReady([&] { ++calls; }).ok());
  }
  while (calls < 2) std::this_thread::yield();
  EXPECT_EQ(Buffer().OnReady([&] { ++calls; }).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(calls, 2);
}

TEST(ClientTest, EveryTypeGoesInAndOutUnchanged) {
  const std::unique_ptr<Client> client = MakeClient();
  for (const DType dtype : {DType::kPred, DType::kS8, DType::kU8, DType::kS32, DType::kU32,
                            DType::kS64, DType::kU64, DType::kF16, DType::kBF16, DType::kF32}) {
    const Shape shape{dtype, {2, 3, 5}};
    std::vector<std::byte> bytes(static_cast<size_t>(shape.bytes()));
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(dtype == DType::kPred ? i % 2 : i);
    }
    Result<Buffer> buffer = client->FromHost(bytes, shape);
    ASSERT_TRUE(buffer.ok()) << shape.ToString() << " " << buffer.status().ToString();
    std::vector<std::byte> back(bytes.size());
    ASSERT_TRUE(buffer->ToHost(back).ok()) << shape.ToString();
    EXPECT_EQ(back, bytes) << shape.ToString();
  }
}

TEST(ClientTest, ScalarsAndEmptyArrays) {
  const std::unique_ptr<Client> client = MakeClient();
  const Buffer scalar = client->FromVector(std::vector<float>{7}, Shape{DType::kF32, {}}).value();
  EXPECT_THAT(Floats(scalar), ElementsAre(7));
  const Result<Buffer> none = client->FromVector(std::vector<float>{}, Shape{DType::kF32, {0, 3}});
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_THAT(Floats(*none), ElementsAre());
}

TEST(ClientTest, FromHostLeavesTheCallersMemoryFree) {
  const std::unique_ptr<Client> client = MakeClient();
  std::vector<float> values(1 << 20, 1.0F);
  const Buffer buffer = Vector(*client, values);
  values.assign(values.size(), 2.0F);
  EXPECT_EQ(Floats(buffer), std::vector<float>(values.size(), 1.0F));
}

TEST(ClientTest, ADonatedArgumentIsConsumed) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto add = client->Compile(AddProgram(true)).value();
  EXPECT_EQ(add->memory().value().alias_bytes, 16);
  Buffer x = Vector(*client, {1, 2, 3, 4});
  Buffer y = Vector(*client, {10, 20, 30, 40});
  std::vector<Buffer> results = Call(*add, {&x, &y}).value();
  EXPECT_TRUE(x.empty());
  EXPECT_FALSE(y.empty());
  EXPECT_EQ(client->live_buffers(), 2);
  EXPECT_THAT(Floats(results[0]), ElementsAre(11, 22, 33, 44));
  // Using it again names the argument.
  const Status again = Call(*add, {&x, &y}).status();
  EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(again.message(), HasSubstr("argument 0 'x': the buffer is empty"));
  EXPECT_EQ(x.Await().code(), StatusCode::kFailedPrecondition);
}

TEST(ClientTest, ADonationWaitsForEarlierReaders) {
  const std::unique_ptr<Client> client = MakeClient();
  const int size = 256;
  const auto slow = client->Compile(ProductProgram(size, 20)).value();
  Program program = ProductProgram(size, 1);
  program.name = "square";
  const size_t colon = program.stablehlo.find(", %y");
  program.stablehlo.insert(colon, " {tf.aliasing_output = 0 : i32}");
  program.donated_to = {0, -1};
  const auto donating = client->Compile(program).value();

  std::vector<float> identity(static_cast<size_t>(size) * size, 0.0F);
  for (int i = 0; i < size; ++i) identity[static_cast<size_t>(i) * (size + 1)] = 1.0F;
  std::vector<float> twice = identity;
  for (float& value : twice) value *= 2;
  const Shape shape{DType::kF32, {size, size}};
  Buffer x = client->FromVector(twice, shape).value();
  Buffer one = client->FromVector(identity, shape).value();
  Buffer two = client->FromVector(twice, shape).value();
  // `slow` still reads x when the second program is asked to overwrite it with 4 I.
  std::vector<Buffer> first = Call(*slow, {&x, &one}).value();
  std::vector<Buffer> second = Call(*donating, {&x, &two}).value();
  EXPECT_TRUE(x.empty());
  EXPECT_EQ(Floats(first[0]), twice);
  EXPECT_EQ(Floats(second[0])[0], 4.0F);
}

TEST(ClientTest, ATextThatDonatesMoreThanTheProgramSaysChangesNothing) {
  const std::unique_ptr<Client> client = MakeClient();
  Program program = AddProgram(true);
  program.donated_to = {-1, -1};
  const auto add = client->Compile(program).value();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  Buffer y = Vector(*client, {10, 20, 30, 40});
  std::vector<Buffer> results = Call(*add, {&x, &y}).value();
  EXPECT_THAT(Floats(results[0]), ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(Floats(x), ElementsAre(1, 2, 3, 4));
}

TEST(ClientTest, ABufferCannotBeDonatedAndReadInOneCall) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto add = client->Compile(AddProgram(true)).value();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  const Status status = Call(*add, {&x, &x}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("argument 0 'x': this argument is donated"));
  EXPECT_THAT(Floats(x), ElementsAre(1, 2, 3, 4));
}

TEST(ClientTest, WrongArgumentsAreNamedAndNothingIsConsumed) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto add = client->Compile(AddProgram(true)).value();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  Buffer longer = Vector(*client, {1, 2, 3, 4, 5});
  Status status = Call(*add, {&x}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("takes 2 arguments, 1 were given"));
  status = Call(*add, {&x, &longer}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("program 'add', argument 1 'y': takes f32[4], got f32[5]"));
  Buffer integers =
      client->FromVector(std::vector<int32_t>{1, 2, 3, 4}, {DType::kS32, {4}}).value();
  EXPECT_THAT(Call(*add, {&x, &integers}).status().message(), HasSubstr("takes f32[4]"));
  EXPECT_THAT(Call(*add, {&x, nullptr}).status().message(), HasSubstr("argument 1 'y'"));
  const std::unique_ptr<Client> other = MakeClient();
  Buffer foreign = Vector(*other, {1, 2, 3, 4});
  EXPECT_THAT(Call(*add, {&x, &foreign}).status().message(),
              HasSubstr("belongs to another client"));
  EXPECT_FALSE(x.empty());
}

TEST(ClientTest, WrongSizesOnTheHostAreRefused) {
  const std::unique_ptr<Client> client = MakeClient();
  const Status from = client->FromVector(std::vector<float>{1, 2, 3}, kVector).status();
  EXPECT_EQ(from.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(from.message(), HasSubstr("f32[4] takes 16 bytes, 12 were given"));
  const Buffer buffer = Vector(*client, {1, 2, 3, 4});
  std::vector<std::byte> small(15);
  EXPECT_EQ(buffer.ToHost(small).code(), StatusCode::kInvalidArgument);
}

TEST(ClientTest, ACopyOutlivesTheDonationOfItsSource) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto add = client->Compile(AddProgram(true)).value();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  Buffer y = Vector(*client, {10, 20, 30, 40});
  const Buffer copy = client->Copy(x).value();
  std::vector<Buffer> results = Call(*add, {&x, &y}).value();
  ASSERT_TRUE(results[0].Await().ok());
  EXPECT_THAT(Floats(copy), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(client->Copy(x).status().code(), StatusCode::kInvalidArgument);
}

// The copy of plugins that refuse PJRT_Buffer_CopyToDevice within a device.
TEST(ClientTest, TheCopyProgramCopies) {
  const std::unique_ptr<Client> client = MakeClient();
  for (const Shape& shape : {kVector, Shape{DType::kF32, {2, 2}}}) {
    const auto copy = client->Compile(pjrt::CopyProgram(shape));
    ASSERT_TRUE(copy.ok()) << copy.status().ToString();
    Buffer x = client->FromVector(std::vector<float>{1, 2, 3, 4}, shape).value();
    std::vector<Buffer> results = Call(**copy, {&x}).value();
    x = Buffer();
    EXPECT_THAT(Floats(results[0]), ElementsAre(1, 2, 3, 4));
  }
}

TEST(ClientTest, CompileErrorsCarryTheCompilersText) {
  const std::unique_ptr<Client> client = MakeClient();
  Program program = AddProgram(false);
  program.stablehlo = "module { func.func @main() -> tensor<f32> { %0 = stablehlo.no_such_op } }";
  const Status status = client->Compile(program).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("program 'add' does not compile: PJRT_Client_Compile"));
  EXPECT_THAT(status.message(), HasSubstr("no_such_op"));
  program.stablehlo = std::string("\0\x01garbage\xff", 10);
  EXPECT_FALSE(client->Compile(program).ok());
  // A failure is not kept: the next request asks the compiler again.
  EXPECT_FALSE(client->Compile(program).ok());
  EXPECT_EQ(client->counters().memory_hits, 0);
  EXPECT_EQ(client->counters().compiled, 3);
}

TEST(ClientTest, AProgramThatMisstatesItsResultsIsRefused) {
  const std::unique_ptr<Client> client = MakeClient();
  Program program = AddProgram(false);
  program.results = {kVector, kVector};
  EXPECT_THAT(client->Compile(program).status().message(),
              HasSubstr("declares 2 results, its module returns 1"));
  program.results = {Shape{DType::kF32, {8}}};
  EXPECT_THAT(client->Compile(program).status().message(),
              HasSubstr("declares result 0 as f32[8]"));
  program.results = {Shape{DType::kS32, {4}}};
  EXPECT_EQ(client->Compile(program).status().code(), StatusCode::kInvalidArgument);
}

TEST(ClientTest, FlagsOverrideAndWrongOnesAreNamed) {
  const std::unique_ptr<Client> client = MakeClient();
  const Program program = AddProgram(false);
  EXPECT_TRUE(client->Compile(program, {{"xla_cpu_enable_fast_math", "true"}}).ok());
  EXPECT_TRUE(client->Compile(program, {{"xla_backend_optimization_level", "1"}}).ok());
  // Other flags, another program.
  EXPECT_EQ(client->counters().compiled, 2);
  const Status status = client->Compile(program, {{"xla_no_such_flag", "1"}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("xla_no_such_flag"));
}

TEST(ClientTest, CompilesEqualProgramsOnce) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto first = client->Compile(AddProgram(false)).value();
  const auto second = client->Compile(AddProgram(false)).value();
  EXPECT_EQ(first, second);
  EXPECT_EQ(client->counters().compiled, 1);
  EXPECT_EQ(client->counters().memory_hits, 1);
  EXPECT_GT(client->counters().compile_seconds, 0);
  EXPECT_NE(client->Compile(AddProgram(true)).value(), first);
}

TEST(ClientTest, TheLeastRecentlyUsedProgramIsDropped) {
  const std::unique_ptr<Client> client = MakeClient({.cached_programs_max = 2});
  const auto dropped = client->Compile(ProductProgram(2, 1)).value();
  const auto kept = client->Compile(AddProgram(false)).value();
  ASSERT_TRUE(client->Compile(AddProgram(true)).ok());
  EXPECT_EQ(client->Compile(AddProgram(false)).value(), kept);
  EXPECT_EQ(client->counters().compiled, 3);
  EXPECT_NE(client->Compile(ProductProgram(2, 1)).value(), dropped);
  EXPECT_EQ(client->counters().compiled, 4);
  // Its owner can go on using it.
  Buffer x =
      client->FromVector(std::vector<float>{1, 2, 3, 4}, dropped->program().arguments[0]).value();
  EXPECT_THAT(Floats(Call(*dropped, {&x, &x}).value()[0]), ElementsAre(7, 10, 15, 22));
  EXPECT_EQ(Client::Create({.cached_programs_max = 0}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ClientTest, ThreadsThatAskForOneProgramCompileItOnce) {
  const std::unique_ptr<Client> client = MakeClient();
  std::vector<std::shared_ptr<Executable>> found(4);
  {
    std::vector<std::jthread> threads;
    threads.reserve(found.size());
    for (auto& slot : found) {
      threads.emplace_back([&] { slot = client->Compile(ProductProgram(64, 8)).value(); });
    }
  }
  for (const auto& executable : found) EXPECT_EQ(executable, found[0]);
  EXPECT_EQ(client->counters().compiled, 1);
  EXPECT_EQ(client->counters().memory_hits, 3);
}

TEST(ClientTest, TwoClientsWorkAtTheSameTime) {
  const std::unique_ptr<Client> learner = MakeClient();
  const std::unique_ptr<Client> engine = MakeClient();
  const auto slow = learner->Compile(ProductProgram(512, 4)).value();
  const auto add = engine->Compile(AddProgram(true)).value();
  std::atomic<bool> stop = false;
  int slow_runs = 0;
  {
    const std::jthread thread([&] {
      const std::vector<float> zeros(size_t{512} * 512, 0.0F);
      Buffer x = learner->FromVector(zeros, slow->program().arguments[0]).value();
      Buffer y = learner->FromVector(zeros, slow->program().arguments[1]).value();
      do {
        EXPECT_TRUE(Call(*slow, {&x, &y}).value()[0].Await().ok());
        ++slow_runs;
      } while (!stop);
    });
    Buffer sum = Vector(*engine, {0, 0, 0, 0});
    Buffer one = Vector(*engine, {1, 2, 3, 4});
    for (int i = 0; i < 200; ++i) sum = std::move(Call(*add, {&sum, &one}).value()[0]);
    EXPECT_THAT(Floats(sum), ElementsAre(200, 400, 600, 800));
    stop = true;
  }
  EXPECT_GE(slow_runs, 1);
  EXPECT_EQ(learner->live_buffers(), 0);
  EXPECT_EQ(engine->live_buffers(), 0);
}

TEST(ClientTest, LiveBuffersEndAtZero) {
  const std::unique_ptr<Client> client = MakeClient();
  const auto add = client->Compile(AddProgram(true)).value();
  {
    Buffer x = Vector(*client, {1, 2, 3, 4});
    Buffer y = Vector(*client, {1, 2, 3, 4});
    EXPECT_EQ(client->live_buffers(), 2);
    for (int i = 0; i < 100; ++i) x = std::move(Call(*add, {&x, &y}).value()[0]);
    EXPECT_FALSE(Call(*add, {&x}).ok());
    EXPECT_EQ(client->live_buffers(), 2);
    EXPECT_THAT(Floats(x), ElementsAre(101, 202, 303, 404));
  }
  EXPECT_EQ(client->live_buffers(), 0);
}

TEST(ClientTest, BuffersAndProgramsOutliveTheirClient) {
  std::unique_ptr<Client> client = MakeClient();
  auto add = client->Compile(AddProgram(true)).value();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  Buffer y = Vector(*client, {1, 2, 3, 4});
  client.reset();
  Buffer sum = std::move(Call(*add, {&x, &y}).value()[0]);
  add.reset();
  EXPECT_THAT(Floats(sum), ElementsAre(2, 4, 6, 8));
}

}  // namespace
}  // namespace forebay::xla
