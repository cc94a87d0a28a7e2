// How requests share the engine: one prefill a group, prompts beside running sequences, cancelling,
// and new weights while ten times more requests wait than run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/rollout/xla_engine.h"

namespace forebay::rollout {
namespace {

using Tokens = std::vector<int32_t>;

Tokens LongPrompt(uint64_t length) {
  Tokens prompt;
  for (uint64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>('a' + i * i % 23));
  return prompt;
}

TEST(EngineSharingTest, AGroupOfSixteenOverAThousandTokensCostsOnePrefill) {
  const TinyModel tiny = MakeTinyModel(1280);
  const auto engine = MakeEngine(tiny, {.slots = 16, .context = 1280, .context_buckets = {1280}});
  const Tokens prompt = LongPrompt(1000);
  std::vector<std::future<Result<GenerateResult>>> futures;
  for (uint64_t i = 0; i < 16; ++i) {
    futures.push_back(Ask(*engine, {.prompt = prompt, .new_tokens_max = 3, .seed = i}));
  }
  for (auto& future : futures) ASSERT_TRUE(Get(std::move(future)).ok());
  EXPECT_EQ(engine->stats().prefill_tokens, 999);
  EXPECT_EQ(engine->stats().reused_tokens, 15 * 999);
  // A second group under the same weights costs what is new in its prompt.
  Tokens longer = prompt;
  longer.insert(longer.end(), 10, 'x');
  ASSERT_TRUE(Generate(*engine, {.prompt = longer, .new_tokens_max = 1}).ok());
  EXPECT_EQ(engine->stats().prefill_tokens, 999 + 9) << "a decode step wrote the last entry";
}

TEST(EngineSharingTest, ALongPromptDoesNotHoldUpARunningSequence) {
  const TinyModel tiny = MakeTinyModel(1280);
  const auto engine = MakeEngine(
      tiny, {.slots = 2, .context = 1280, .context_buckets = {1280}, .prefill_chunks = {16, 32}});
  std::atomic<int64_t> sampled{0};
  std::atomic<int64_t> when_the_other_began{-1};
  std::promise<void> begun, asked;
  GenerateRequest running{.prompt = {'a'}, .new_tokens_max = 1200};
  running.on_token = [&](const TokenEvent&) {
    if (++sampled != 1) return;
    begun.set_value();
    asked.get_future().wait();
  };
  auto first = Ask(*engine, running);
  begun.get_future().wait();

  // 999 tokens are 32 chunks, with a decode step between each two.
  GenerateRequest long_one{.prompt = LongPrompt(1000), .new_tokens_max = 1};
  long_one.on_token = [&](const TokenEvent&) { when_the_other_began = sampled.load(); };
  auto other = Ask(*engine, long_one);
  asked.set_value();
  ASSERT_TRUE(Get(std::move(other)).ok());
  EXPECT_GE(when_the_other_began - 1, 31);
  EXPECT_LE(engine->stats().prefill_tokens, 999);
  ASSERT_TRUE(Get(std::move(first)).ok());
}

TEST(EngineSharingTest, CancelEndsWhatWaitsAndWhatRunsAndNothingElse) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 1;
  const auto engine = MakeEngine(options);
  std::promise<void> begun;
  bool told = false;
  const auto start = [&](GenerateRequest request, std::promise<Result<GenerateResult>>* promise) {
    return engine->Generate(std::move(request), [promise](Result<GenerateResult> result) {
      promise->set_value(std::move(result));
    });
  };
  std::promise<Result<GenerateResult>> running, waiting, kept;
  GenerateRequest request{.prompt = {1, 2, 3}, .new_tokens_max = 100};
  request.on_token = [&](const TokenEvent&) {
    if (!told) begun.set_value();
    told = true;
  };
  const uint64_t running_id = start(request, &running);
  begun.get_future().wait();
  const uint64_t waiting_id = start({.prompt = {4}, .new_tokens_max = 2}, &waiting);
  const uint64_t kept_id = start({.prompt = {5}, .new_tokens_max = 2}, &kept);
  EXPECT_GT(running_id, 0U);
  EXPECT_NE(running_id, waiting_id);
  engine->Cancel(waiting_id);
  engine->Cancel(running_id);
  engine->Cancel(987654321);
  EXPECT_EQ(Get(waiting.get_future()).status().code(), StatusCode::kCancelled);
  // It may have ended before it was cancelled.
  const auto ended = Get(running.get_future());
  EXPECT_TRUE(ended.ok() || ended.status().code() == StatusCode::kCancelled);
  EXPECT_TRUE(Get(kept.get_future()).ok());
  engine->Cancel(kept_id);  // late
  EXPECT_TRUE(Generate(*engine, {.prompt = {6}, .new_tokens_max = 2}).ok());
  EXPECT_EQ(engine->stats().active, 0);
  EXPECT_EQ(engine->stats().waiting, 0);
}

TEST(EngineSharingTest, L2_ARunningSequenceEndsAtItsDeadline) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 1;
  const auto engine = MakeEngine(options);
  // The first token moves the clock past the deadline: no speed is assumed.
  const TimePoint deadline = Now() + std::chrono::milliseconds(200);
  GenerateRequest request{.prompt = {1, 2}, .new_tokens_max = 100, .deadline = deadline};
  request.on_token = [&](const TokenEvent&) { std::this_thread::sleep_until(deadline); };
  const auto result = Generate(*engine, request);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Generate(*engine, {.prompt = {3}, .new_tokens_max = 2}).ok()) << "the slot is free";
}

TEST(EngineSharingTest, L5_EveryRequestIsAnsweredOnceWhateverEndsIt) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 2;
  options.waiting_max = 8;
  std::atomic<int64_t> answers{0};
  constexpr int64_t kRequests = 60;
  {
    const auto engine = MakeEngine(options);
    for (int64_t i = 0; i < kRequests; ++i) {
      GenerateRequest request{.prompt = {1, static_cast<int32_t>(i)},
                              .new_tokens_max = static_cast<int32_t>(1 + i % 7)};
      if (i % 9 == 1) request.prompt.clear();
      if (i % 9 == 2) request.deadline = Now();
      const uint64_t id =
          engine->Generate(request, [&](const Result<GenerateResult>&) { ++answers; });
      if (i % 9 == 3) engine->Cancel(id);
    }
    engine->Shutdown();
    engine->Generate({.prompt = {1}}, [&](const Result<GenerateResult>&) { ++answers; });
  }
  EXPECT_EQ(answers.load(), kRequests + 1);
}

TEST(EngineSharingTest, L9_WeightsAreTakenWhileTenTimesTheSlotsWait) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 2;
  const auto engine = MakeEngine(options);
  std::vector<std::future<Result<GenerateResult>>> futures;
  for (uint64_t i = 0; i < 20; ++i) {
    futures.push_back(Ask(*engine, {.prompt = RandomPrompt(i, 12),
                                    .new_tokens_max = 20,
                                    .seed = i,
                                    .priority = static_cast<int64_t>(i)}));
  }
  for (int64_t version = 1; version <= 5; ++version) {
    ASSERT_EQ(
        PublishAndWait(*engine, OtherWeights(Golden(), static_cast<uint64_t>(version), version)),
        OkStatus());
    EXPECT_EQ(engine->policy_version(), version);
  }
  for (auto& future : futures) {
    const auto result = Get(std::move(future));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->tokens.size(), 20U) << "nothing is drained or cut";
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.publishes, 5);
  EXPECT_GE(stats.publish_stall_max_s, stats.publish_stall_last_s);
  EXPECT_GE(stats.publish_stall_seconds, stats.publish_stall_max_s);
}

}  // namespace
}  // namespace forebay::rollout
