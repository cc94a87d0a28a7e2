// LoRA runs on servers: adapters alone where a server loads them, over the run's own base.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/scripted_servers_testing.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One for the wrong test would be an adapter without its configuration.
Status WriteAdapter(const std::string& folder) {
  FB_RETURN_IF_ERROR(MakeFolders(folder));
  return WriteFileAtomic(folder + "/adapter_config.json", "{}");
}

class AdaptersTest : public HttpEngineTest {
 protected:
  Result<std::unique_ptr<HttpEngine>> Make(std::vector<Vllm*> servers) {
    options_.reload = true;
    for (const Vllm* server : servers) options_.servers.push_back(server->url());
    return MakeHttpEngine(options_, *Weights(0),
                          {.write = WriteAdapter, .base = Weights(0)->tensors});
  }
  static Status PublishAdapter(HttpEngine& engine, int64_t version) {
    auto done = std::make_shared<std::promise<Status>>();
    engine.PublishAdapter(Weights(version), WriteAdapter,
                          [done](Status s) { done->set_value(std::move(s)); });
    return done->get_future().get();
  }
  static int64_t Reloads(Vllm& server) {
    return std::ranges::count(server.calls(), "/collective_rpc");
  }
  std::vector<std::string> Written() const {
    std::vector<std::string> out;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(options_.weights_folder)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_directory() && !name.starts_with("forebay_")) out.push_back(name);
    }
    return out;
  }
};

TEST_F(AdaptersTest, TheBaseIsReloadedOnceAndThenAdaptersAreLoadedUnderNamesOfTheirOwn) {
  Vllm server;
  server.loads_adapters = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_EQ(Reloads(server), 1);
  std::string before;
  for (int64_t version = 0; version <= 3; ++version) {
    if (version > 0) {
      const Status taken = PublishAdapter(**engine, version);
      ASSERT_TRUE(taken.ok()) << taken.ToString();
    }
    const auto result = Ask(**engine).get();
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->versions.front().policy_version, version);
    EXPECT_THAT(server.asked_model(), HasSubstr("-" + std::to_string(version) + "-"));
    EXPECT_NE(std::exchange(before, server.asked_model()), server.asked_model());
    EXPECT_THAT(server.adapters(), SizeIs(1));  // the one before was unloaded
  }
  EXPECT_EQ(Reloads(server), 1);
  EXPECT_EQ((*engine)->policy_version(), 3);
  EXPECT_EQ((*engine)->weights_digest(), weights::Digest(Weights(3)->tensors));
  // No merged weights were written, and old adapters go.
  Until([&] { return std::ranges::count(Written(), "adapter_000001") == 0; });
  EXPECT_THAT(Written(), Each(::testing::AnyOf("base", "adapter_000002", "adapter_000003")));
}

TEST_F(AdaptersTest, WhatRunsIsNotDrainedForAnAdapter) {
  Vllm server;
  server.loads_adapters = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.hangs = true;
  auto running = HttpEngineTest::Ask(**engine);
  Until([&] { return server.running == 1; });
  ASSERT_TRUE(PublishAdapter(**engine, 1).ok());  // while it runs
  EXPECT_EQ(server.running, 1);
  server.hangs = false;
  EXPECT_EQ(running.get()->versions.front().policy_version, 0);
  EXPECT_EQ(Ask(**engine).get()->versions.front().policy_version, 1);
}

TEST_F(AdaptersTest, AServerWithoutAWayToLoadOneTakesMergedWeights) {
  Vllm with, without;
  with.loads_adapters = true;
  const auto engine = Make({&with, &without});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  ASSERT_TRUE(PublishAdapter(**engine, 1).ok());
  EXPECT_EQ(without.version, "1");
  EXPECT_THAT(without.adapters(), IsEmpty());
  EXPECT_THAT(with.adapters(), SizeIs(1));
  EXPECT_EQ(Reloads(with), 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Ask(**engine).get()->versions.front().policy_version, 1);
}

TEST_F(AdaptersTest, AServerThatWasStartedAgainGetsBaseAndAdapterAgain) {
  Vllm server;
  server.loads_adapters = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  ASSERT_TRUE(PublishAdapter(**engine, 1).ok());
  server.ForgetAdapters();
  EXPECT_FALSE(Ask(**engine).get().ok());  // it does not know the name: never the base's tokens
  Until([&] { return Ask(**engine).get().ok(); });
  EXPECT_EQ(Reloads(server), 2);
  EXPECT_THAT(server.adapters(), SizeIs(1));
  EXPECT_EQ(server.asked_model(), server.adapters().front());
}

TEST_F(AdaptersTest, OnlyServersThatLoadAdaptersMayBeGivenOne) {
  options_.protocol = HttpEngineProtocol::kForebay;
  options_.servers = {"http://127.0.0.1:1"};
  EXPECT_EQ(Make({}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace forebay::rollout
