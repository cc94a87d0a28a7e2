// The engine's limits: bad requests and options, too many of them, deadlines, shutdown and failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph_testing.h"

namespace forebay::rollout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

TEST(XlaEngineLimitsTest, InvalidRequestsSayWhatIsWrong) {
  const auto engine = MakeEngine(SmallOptions());
  const auto code = [&](GenerateRequest request, const char* part) {
    const auto result = Generate(*engine, std::move(request));
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr(part));
  };
  code({.prompt = {}}, "empty");
  code({.prompt = {1, 512}}, "512");
  code({.prompt = {-1}}, "-1");
  code({.prompt = Tokens(128, 1)}, "128");
  code({.prompt = {1}, .new_tokens_max = 0}, "new_tokens_max");
  code({.prompt = {1}, .temperature = -0.5}, "temperature");
  code({.prompt = {1}, .temperature = std::numeric_limits<double>::quiet_NaN()}, "temperature");
  EXPECT_EQ(engine->context_max(), 128);
}

TEST(XlaEngineLimitsTest, InvalidOptionsSayWhatWouldBeRight) {
  const auto message = [](const XlaEngineOptions& options) {
    const auto engine = MakeXlaEngine(options, xla::TestClient(), Golden().model,
                                      {.policy_version = 0, .tensors = Golden().checkpoint});
    EXPECT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), StatusCode::kInvalidArgument);
    return engine.status().message();
  };
  EXPECT_THAT(message({.slots = 0}), HasSubstr("slots"));
  EXPECT_THAT(message({.context = 512}), HasSubstr("256"));
  EXPECT_THAT(message({.context = 128, .context_buckets = {64}}), HasSubstr("last"));
  EXPECT_THAT(message({.context = 128, .context_buckets = {128, 64}}), HasSubstr("ascending"));
  EXPECT_THAT(message({.context = 128, .prefill_chunks = {}}), HasSubstr("prefill_chunks"));
  EXPECT_THAT(message({.context = 128, .prefill_chunks = {200}}), HasSubstr("200"));
  EXPECT_THAT(message({.context = 100, .prefill_chunks = {64}, .deterministic = true}),
              HasSubstr("multiple"));
}

TEST(XlaEngineLimitsTest, TooManyWaitingAreRefusedAndDeadlinesEndTheRest) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 1;
  options.waiting_max = 3;
  const auto engine = MakeEngine(options);
  std::vector<std::future<Result<GenerateResult>>> futures;
  futures.reserve(30);
  for (uint64_t i = 0; i < 30; ++i) {
    futures.push_back(Ask(*engine, {.prompt = {1, 2, 3}, .new_tokens_max = 100, .seed = i}));
  }
  int64_t done = 0, refused = 0;
  for (auto& future : futures) {
    const auto result = Get(std::move(future));
    if (result.ok()) {
      ++done;
    } else {
      ++refused;
      EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
    }
  }
  EXPECT_GE(done, 3);
  EXPECT_GE(refused, 1);

  auto busy = Ask(*engine, {.prompt = {4, 5}, .new_tokens_max = 120});
  const auto late = Generate(*engine, {.prompt = {1, 2}, .deadline = Now()});
  EXPECT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Get(std::move(busy)).ok());
  EXPECT_EQ(engine->stats().waiting, 0);
}

TEST(XlaEngineLimitsTest, PriorityDecidesWhoWaits) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 1;
  const auto engine = MakeEngine(options);
  std::vector<int64_t> order;  // written on the engine's thread, read after all have ended
  std::vector<std::future<void>> futures;
  auto busy = Ask(*engine, {.prompt = {1, 2, 3}, .new_tokens_max = 60, .priority = -100});
  for (const int64_t priority : {5, 1, 3}) {
    auto promise = std::make_shared<std::promise<void>>();
    futures.push_back(promise->get_future());
    engine->Generate({.prompt = {7}, .new_tokens_max = 2, .priority = priority},
                     [promise, priority, &order](const Result<GenerateResult>& result) {
                       if (result.ok()) order.push_back(priority);
                       promise->set_value();
                     });
  }
  ASSERT_TRUE(Get(std::move(busy)).ok());
  for (auto& future : futures) future.get();
  EXPECT_THAT(order, ElementsAre(1, 3, 5));
}

TEST(XlaEngineLimitsTest, ShutdownFailsWhatWaitsAndRuns) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 2;
  const int64_t buffers = xla::TestClient().live_buffers();
  auto engine = MakeEngine(options);
  std::vector<std::future<Result<GenerateResult>>> futures;
  futures.reserve(10);
  for (uint64_t i = 0; i < 10; ++i) {
    futures.push_back(
        Ask(*engine, {.prompt = RandomPrompt(i, 20), .new_tokens_max = 100, .seed = i}));
  }
  engine->Shutdown();
  engine->Shutdown();
  int64_t failed = 0;
  for (auto& future : futures) {
    const auto result = Get(std::move(future));
    if (result.ok()) continue;
    ++failed;
    EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(Generate(*engine, {.prompt = {1}}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(PublishAndWait(*engine, OtherWeights(Golden(), 1, 1)).code(), StatusCode::kUnavailable);
  engine.reset();
  EXPECT_EQ(xla::TestClient().live_buffers(), buffers);
}

TEST(XlaEngineLimitsTest, ShutdownFromACallbackDoesNotDeadlock) {
  auto engine = MakeEngine(SmallOptions());
  std::promise<void> called;
  engine->Generate({.prompt = {1, 2}, .new_tokens_max = 2}, [&](const Result<GenerateResult>&) {
    engine->Shutdown();
    called.set_value();
  });
  called.get_future().get();
  engine.reset();
}

TEST(XlaEngineLimitsTest, L1_AFailedDeviceFailsEveryRequestAtOnce) {
  FailingClient client(xla::TestClient());
  const auto engine = MakeEngine(SmallOptions(), client);
  ASSERT_TRUE(Generate(*engine, {.prompt = {1, 2, 3}, .new_tokens_max = 3}).ok());
  std::vector<std::future<Result<GenerateResult>>> futures;
  futures.reserve(12);
  for (uint64_t i = 0; i < 12; ++i) {
    futures.push_back(
        Ask(*engine, {.prompt = RandomPrompt(i, 30), .new_tokens_max = 90, .seed = i}));
  }
  client.fail() = true;
  int64_t failed = 0;
  for (auto& future : futures) {
    const auto result = Get(std::move(future));
    if (result.ok()) continue;
    ++failed;
    EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(result.status().message(), HasSubstr("fell off the bus"));
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(Generate(*engine, {.prompt = {1}}).status().code(), StatusCode::kUnavailable);
}

TEST(XlaEngineLimitsTest, NothingIsCompiledAfterWarmUp) {
  const auto engine = MakeEngine(SmallOptions());
  const int64_t compiled = xla::TestClient().counters().compiled;
  for (uint64_t length = 1; length < 128; length += 11) {
    ASSERT_TRUE(
        Generate(*engine, {.prompt = RandomPrompt(length, length), .new_tokens_max = 9}).ok());
  }
  ASSERT_EQ(PublishAndWait(*engine, OtherWeights(Golden(), 1, 1)), OkStatus());
  ASSERT_TRUE(Generate(*engine, {.prompt = {1, 2, 3}, .new_tokens_max = 9}).ok());
  EXPECT_EQ(xla::TestClient().counters().compiled, compiled);
  EXPECT_EQ(engine->stats().recompiles_after_warmup, 0);
  EXPECT_GT(engine->stats().busy_seconds, 0);
}

}  // namespace
}  // namespace forebay::rollout
