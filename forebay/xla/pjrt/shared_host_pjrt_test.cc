// Memory of the host that a program reads where it lies.
#include "forebay/xla/shared_host.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/huge_pages.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

const Shape kShape{DType::kF32, {256}};

std::shared_ptr<Executable> Double(Client& client) {
  Graph graph("double");
  const Value results[] = {graph.Parameter(kShape, "x") * 2.0};
  return *client.Compile(*graph.Finish(results));
}

TEST(ShareHost, IsReadWhereItLiesAndLetGoAtTheEnd) {
  Client& client = TestClient();
  const int64_t live = client.live_buffers();
  std::weak_ptr<std::byte> watched;
  {
    const auto memory = *AllocateHugePages(static_cast<size_t>(kShape.bytes()));
    watched = memory;
    const std::span<float> floats(reinterpret_cast<float*>(memory.get()), 256);
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i);
    auto shared = ShareHost(client, std::as_bytes(floats), kShape, memory);
    ASSERT_TRUE(shared.ok()) << shared.status().ToString();
    const auto program = Double(client);
    Buffer* arguments[] = {&*shared};
    for (int round = 0; round < 3; ++round) {
      const auto out = *(*program->Execute(arguments))[0].ToVector<float>();
      EXPECT_EQ(out[100], 200.0F);
    }
    // No copy was made: the plugin sees what is written (which a user must not do).
    floats[100] = 7;
    EXPECT_EQ((*shared->ToVector<float>())[100], 7.0F);
  }
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(client.live_buffers(), live);
}

TEST(ShareHost, OutlivesItsBufferWhereAProgramStillRuns) {
  Client& client = TestClient();
  const auto program = Double(client);
  for (int round = 0; round < 50; ++round) {
    Result<std::vector<Buffer>> out = InvalidArgument("");
    {
      const auto memory = *AllocateHugePages(static_cast<size_t>(kShape.bytes()));
      reinterpret_cast<float*>(memory.get())[255] = static_cast<float>(round);
      auto shared =
          *ShareHost(client, {memory.get(), static_cast<size_t>(kShape.bytes())}, kShape, memory);
      Buffer* arguments[] = {&shared};
      out = program->Execute(arguments);
    }
    EXPECT_EQ((*(*out)[0].ToVector<float>())[255], 2.0F * static_cast<float>(round));
  }
}

TEST(ShareHost, CopiesWhatIsNotAligned) {
  Client& client = TestClient();
  std::vector<float> floats(257, 3);
  const std::span<const float> odd = std::span(floats).subspan(1);
  const auto buffer = *ShareHost(client, std::as_bytes(odd), kShape, nullptr);
  floats.assign(257, 9);
  EXPECT_EQ((*buffer.ToVector<float>())[5], 3.0F);
}

TEST(ShareHost, AnotherSizeIsAnError) {
  const auto memory = *AllocateHugePages(64);
  EXPECT_EQ(ShareHost(TestClient(), {memory.get(), 64}, kShape, memory).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(GiveHost, IsWrittenWhereItLiesAndLetGoWithWhatTookItsPlace) {
  Client& client = TestClient();
  Graph graph("double_in_place");
  const Value results[] = {graph.Parameter(kShape, "x") * 2.0};
  const Alias aliases[] = {{.parameter = 0, .output = 0}};
  const auto program = *client.Compile(*graph.Finish(results, aliases));
  auto memory = *AllocateHugePages(static_cast<size_t>(kShape.bytes()));
  auto* floats = reinterpret_cast<float*>(memory.get());
  floats[100] = 3;
  const std::weak_ptr<std::byte> watched = memory;
  {
    Buffer given = *GiveHost(client, std::move(memory), kShape);
    for (const float expected : {6.0F, 12.0F}) {
      Buffer* arguments[] = {&given};
      given = std::move((*program->Execute(arguments))[0]);
      ASSERT_TRUE(given.Await().ok());
      EXPECT_FALSE(watched.expired());
      EXPECT_EQ(floats[100], expected);
    }
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace forebay::xla
