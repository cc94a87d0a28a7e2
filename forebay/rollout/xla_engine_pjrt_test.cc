// The engine on the CPU plugin with a tiny random Llama: what it samples is what the model says,
// whoever runs beside it.
#include "forebay/rollout/xla_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using xla::DType;
using xla::Value;
using Tokens = std::vector<int32_t>;

Tokens ReferenceTokens(const std::string& name) {
  const auto values = Golden().reference.at(name).as<int32_t>();
  return {values.begin(), values.end()};
}

// log softmax(logits / temperature) of tokens[i + 1] after tokens[0..i], by the learner's
// functions.
std::vector<float> Recompute(const weights::TensorMap& checkpoint, const Tokens& tokens,
                             double temperature) {
  const auto params =
      Golden().model->FromCheckpoint(checkpoint, models::LayerLayout::kPerLayer).value();
  // One length for all, so that one program serves; what is behind the tokens is padding (segment
  // 0).
  constexpr int64_t n = 128;
  std::vector<xla::Argument> arguments;
  std::vector<std::string> names;
  names.reserve(params.size());
  for (const auto& [name, tensor] : params) {
    names.push_back(name);
    const auto values = tensor.as<float>();
    arguments.push_back({tensor.shape(), {values.begin(), values.end()}});
  }
  xla::Floats ids(tokens.begin(), tokens.end()), segments(tokens.size(), 1), positions(n);
  ids.resize(n, 0);
  segments.resize(n, 0);
  std::iota(positions.begin(), positions.end(), 0.0F);
  arguments.push_back({{DType::kS32, {1, n}}, ids});
  arguments.push_back({{DType::kS32, {1, n}}, segments});
  arguments.push_back({{DType::kS32, {1, n}}, positions});
  std::rotate(ids.begin(), ids.begin() + 1, ids.end());
  arguments.push_back({{DType::kS32, {n}}, ids});
  const auto out = xla::RunFn(
      [&](std::span<const Value> in) -> xla::Values {
        models::ParamValues traced;
        for (size_t i = 0; i < names.size(); ++i) traced[names[i]] = in[i];
        const auto rest = in.subspan(names.size());
        const Value hidden = Golden().model->Hidden(traced, {rest[0], rest[1], rest[2]}, {});
        return {models::ChunkedLogprobs(xla::Reshape(hidden, {n, -1}), Golden().model->Head(traced),
                                        rest[3], temperature, 64)};
      },
      arguments);
  return out.empty() ? std::vector<float>{} : out[0];
}

void ExpectLogprobsMatch(const weights::TensorMap& checkpoint, const Tokens& prompt,
                         const GenerateResult& result, double temperature) {
  Tokens all = prompt;
  all.insert(all.end(), result.tokens.begin(), result.tokens.end());
  const std::vector<float> expected = Recompute(checkpoint, all, temperature);
  ASSERT_LE(all.size(), expected.size());
  ASSERT_EQ(result.logprobs.size(), result.tokens.size());
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    EXPECT_NEAR(result.logprobs[i], expected[prompt.size() - 1 + i], 1e-4) << "token " << i;
  }
}

TEST(XlaEngineTest, GreedyEqualsTheReference) {
  const auto engine = MakeEngine(SmallOptions());
  const auto result = Generate(
      *engine,
      {.prompt = ReferenceTokens("seq1.input_ids"), .new_tokens_max = 16, .temperature = 0});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->tokens, ReferenceTokens("seq1.greedy16"));
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_THAT(result->versions, ElementsAre(VersionRun{.policy_version = 0, .tokens = 16}));
  ExpectLogprobsMatch(Golden().checkpoint, ReferenceTokens("seq1.input_ids"), *result, 1.0);
}

TEST(XlaEngineTest, T2_LogprobsEqualTheLearnersRecomputation) {
  const auto engine = MakeEngine(SmallOptions());
  for (const double temperature : {1.0, 0.6}) {
    for (const uint64_t length : {1, 2, 9, 40, 100}) {
      const Tokens prompt = RandomPrompt(length, length);
      const auto result = Generate(*engine, {.prompt = prompt,
                                             .new_tokens_max = 27,
                                             .temperature = temperature,
                                             .seed = 1234567890123456789ULL + length});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->tokens.size(), 27U);
      ExpectLogprobsMatch(Golden().checkpoint, prompt, *result, temperature);
    }
  }
}

std::vector<GenerateRequest> MixedRequests() {
  std::vector<GenerateRequest> requests;
  requests.reserve(12);
  for (uint64_t i = 0; i < 12; ++i) {
    requests.push_back({.prompt = RandomPrompt(i / 2, 3 + 7 * (i / 2)),
                        .new_tokens_max = static_cast<int32_t>(5 + 3 * (i % 5)),
                        .temperature = i % 4 == 3 ? 0.0 : 1.0,
                        .seed = 100 + i});
  }
  return requests;
}

TEST(XlaEngineTest, TokensDoNotDependOnNeighboursSlotsOrArrival) {
  const std::vector<GenerateRequest> requests = MixedRequests();
  std::vector<Tokens> alone;
  {
    const auto engine = MakeEngine({.slots = 1, .context = 128, .prefill_chunks = {128}});
    for (const GenerateRequest& request : requests) {
      const auto result = Generate(*engine, request);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      alone.push_back(result->tokens);
    }
  }
  const auto engine = MakeEngine(SmallOptions());
  for (uint64_t round = 0; round < 3; ++round) {
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), 0);
    Rng rng(round);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
    std::vector<std::future<Result<GenerateResult>>> futures(requests.size());
    for (const size_t i : order) futures[i] = Ask(*engine, requests[i]);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto result = Get(std::move(futures[i]));
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->tokens, alone[i]) << "request " << i << ", round " << round;
    }
  }
}

TEST(XlaEngineTest, DeterministicMeansTheSameBitsWhateverIsReused) {
  XlaEngineOptions options = SmallOptions();
  options.deterministic = true;
  const Tokens prompt = RandomPrompt(3, 90);
  const GenerateRequest request{.prompt = prompt, .new_tokens_max = 20, .seed = 5};
  const auto fresh = MakeEngine(options);
  const auto expected = Generate(*fresh, request);
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  const auto engine = MakeEngine(options);
  // The first part of the prompt comes from another request, and others decode beside it.
  auto part = Ask(*engine, {.prompt = {prompt.begin(), prompt.begin() + 70}, .new_tokens_max = 40});
  auto other = Ask(*engine, {.prompt = RandomPrompt(9, 50), .new_tokens_max = 60, .seed = 8});
  ASSERT_TRUE(Get(std::move(part)).ok());
  const auto result = Generate(*engine, request);
  ASSERT_TRUE(Get(std::move(other)).ok());
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->prompt_tokens_reused, 64);
  EXPECT_EQ(result->tokens, expected->tokens);
  EXPECT_EQ(result->logprobs, expected->logprobs);
}

TEST(XlaEngineTest, OnePrefillServesAGroupWithTheTokensOfNoReuse) {
  const auto engine = MakeEngine(SmallOptions());
  const Tokens prompt = RandomPrompt(21, 60);
  std::vector<std::future<Result<GenerateResult>>> futures;
  futures.reserve(8);
  for (uint64_t i = 0; i < 8; ++i) {
    futures.push_back(Ask(*engine, {.prompt = prompt, .new_tokens_max = 12, .seed = i}));
  }
  int64_t reused = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    const auto result = Get(std::move(futures[i]));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    reused += result->prompt_tokens_reused;
    const auto fresh = MakeEngine({.slots = 1, .context = 128, .prefill_chunks = {32}});
    const auto expected = Generate(*fresh, {.prompt = prompt, .new_tokens_max = 12, .seed = i});
    ASSERT_TRUE(expected.ok()) << expected.status().ToString();
    EXPECT_EQ(expected->prompt_tokens_reused, 0);
    EXPECT_EQ(result->tokens, expected->tokens) << "member " << i;
  }
  EXPECT_EQ(reused, 7 * 59);
  EXPECT_EQ(engine->stats().reused_tokens, 7 * 59);
  EXPECT_EQ(engine->stats().prefill_tokens, 59);
}

TEST(XlaEngineTest, TheNextTurnReusesThePrefixOfItsEpisode) {
  const auto engine = MakeEngine(SmallOptions());
  Tokens conversation = RandomPrompt(30, 20);
  for (int turn = 0; turn < 3; ++turn) {
    const auto result =
        Generate(*engine, {.prompt = conversation, .new_tokens_max = 10, .seed = 77});
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    // All but what is new: the observation and the last sampled token of the turn before.
    EXPECT_EQ(result->prompt_tokens_reused, turn == 0 ? 0 : conversation.size() - 6);
    ExpectLogprobsMatch(Golden().checkpoint, conversation, *result, 1.0);
    conversation.insert(conversation.end(), result->tokens.begin(), result->tokens.end());
    const Tokens observation = RandomPrompt(31, 5);
    conversation.insert(conversation.end(), observation.begin(), observation.end());
  }
}

TEST(XlaEngineTest, T3_NewWeightsReuseNothingAndRecomputeThePrompt) {
  const auto engine = MakeEngine(SmallOptions());
  const Tokens prompt = RandomPrompt(40, 50);
  ASSERT_TRUE(Generate(*engine, {.prompt = prompt, .new_tokens_max = 4}).ok());
  const auto other = OtherWeights(Golden(), 9, 3);
  ASSERT_EQ(PublishAndWait(*engine, other), OkStatus());
  EXPECT_EQ(engine->policy_version(), 3);
  EXPECT_EQ(engine->weights_digest(), weights::Digest(other->tensors)) << "D5";
  const auto result = Generate(*engine, {.prompt = prompt, .new_tokens_max = 20, .seed = 4});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->prompt_tokens_reused, 0);
  EXPECT_THAT(result->versions, ElementsAre(VersionRun{.policy_version = 3, .tokens = 20}));
  ExpectLogprobsMatch(other->tensors, prompt, *result, 1.0);
}

TEST(XlaEngineTest, WeightsChangeInTheMiddleOfASequence) {
  const auto engine = MakeEngine(SmallOptions());
  int64_t version = 0;
  bool changed = false;
  for (int attempt = 0; attempt < 100 && !changed; ++attempt) {
    auto running = Ask(*engine, {.prompt = RandomPrompt(50, 8), .new_tokens_max = 119, .seed = 1});
    while (running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      ++version;
      ASSERT_EQ(
          PublishAndWait(*engine, OtherWeights(Golden(), static_cast<uint64_t>(version), version)),
          OkStatus());
    }
    const auto result = Get(std::move(running));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    int64_t tokens = 0, last = -1;
    for (const VersionRun& run : result->versions) {
      EXPECT_GT(run.policy_version, last) << "run-length: versions only grow";
      EXPECT_GT(run.tokens, 0);
      last = run.policy_version;
      tokens += run.tokens;
    }
    EXPECT_EQ(tokens, 119);
    EXPECT_LE(last, engine->policy_version());
    changed = result->versions.size() > 1;
  }
  EXPECT_TRUE(changed) << "no snapshot came in the middle of a sequence";
}

TEST(XlaEngineTest, L9_L10_EightEpisodesOnTwoSlotsAcrossSyncs) {
  const auto engine = MakeEngine({.slots = 2, .context = 128, .prefill_chunks = {32}});
  constexpr int kEpisodes = 8, kTurns = 4;
  std::vector<Tokens> conversations;
  std::vector<std::future<Result<GenerateResult>>> futures;
  for (uint64_t i = 0; i < kEpisodes; ++i) conversations.push_back(RandomPrompt(60 + i, 10));
  for (int turn = 0; turn < kTurns; ++turn) {
    futures.clear();
    for (size_t i = 0; i < kEpisodes; ++i) {
      futures.push_back(Ask(*engine, {.prompt = conversations[i],
                                      .new_tokens_max = 12,
                                      .seed = i,
                                      .priority = static_cast<int64_t>(i)}));
    }
    ASSERT_EQ(
        PublishAndWait(*engine, OtherWeights(Golden(), static_cast<uint64_t>(turn), turn + 1)),
        OkStatus());
    for (size_t i = 0; i < kEpisodes; ++i) {
      auto result = Get(std::move(futures[i]));
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      conversations[i].insert(conversations[i].end(), result->tokens.begin(), result->tokens.end());
    }
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.sampled_tokens, kEpisodes * kTurns * 12);
  EXPECT_EQ(stats.requests, kEpisodes * kTurns);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.active, 0);
  EXPECT_EQ(engine->policy_version(), kTurns);
}

TEST(XlaEngineTest, W1_WeightsThatDoNotCoverTheModelAreRefused) {
  const auto engine = MakeEngine(SmallOptions());
  const GenerateRequest request{.prompt = RandomPrompt(70, 12), .new_tokens_max = 8, .seed = 2};
  const auto before = Generate(*engine, request);
  ASSERT_TRUE(before.ok());

  auto missing = std::make_shared<weights::Snapshot>(*OtherWeights(Golden(), 1, 1));
  missing->tensors.erase("model.layers.1.mlp.up_proj.weight");
  Status status = PublishAndWait(*engine, missing);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight"), HasSubstr("version 1")));

  auto extra = std::make_shared<weights::Snapshot>(*OtherWeights(Golden(), 1, 1));
  extra->tensors["model.layers.9.mlp.up_proj.weight"] = extra->tensors.begin()->second;
  EXPECT_EQ(PublishAndWait(*engine, extra).code(), StatusCode::kInvalidArgument);

  auto shape = std::make_shared<weights::Snapshot>(*OtherWeights(Golden(), 1, 1));
  shape->tensors["model.norm.weight"] = shape->tensors["model.embed_tokens.weight"];
  EXPECT_EQ(PublishAndWait(*engine, shape).code(), StatusCode::kInvalidArgument);

  auto nan = std::make_shared<weights::Snapshot>(*OtherWeights(Golden(), 1, 1));
  std::span<std::byte> bytes;
  const xla::Shape norm = nan->tensors["model.norm.weight"].shape();
  nan->tensors["model.norm.weight"] = weights::HostTensor::Allocate(norm, &bytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
  status = PublishAndWait(*engine, nan);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("model.norm.weight"));

  EXPECT_EQ(engine->policy_version(), 0);
  const auto after = Generate(*engine, request);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->tokens, before->tokens) << "the old weights stay";
}

// Finite weights under which the model overflows: its requests fail, and what they left in the
// cache spreads to nobody.
TEST(XlaEngineTest, AModelThatOverflowsFailsItsRequestsOnly) {
  XlaEngineOptions options = SmallOptions();
  options.slots = 1;
  const auto engine = MakeEngine(options);
  const GenerateRequest request{.prompt = RandomPrompt(75, 40), .new_tokens_max = 20, .seed = 6};
  const auto expected = Generate(*engine, request);
  ASSERT_TRUE(expected.ok());

  auto huge = std::make_shared<weights::Snapshot>();
  huge->policy_version = 1;
  huge->tensors = Golden().checkpoint;
  const std::string norm = "model.layers.0.input_layernorm.weight";
  std::span<std::byte> bytes;
  weights::HostTensor values = weights::HostTensor::Allocate(huge->tensors[norm].shape(), &bytes);
  const std::vector<float> large(bytes.size() / sizeof(float), 3e38F);
  std::memcpy(bytes.data(), large.data(), bytes.size());
  huge->tensors[norm] = values;
  ASSERT_EQ(PublishAndWait(*engine, huge), OkStatus());
  const auto overflowed = Generate(*engine, request);
  ASSERT_FALSE(overflowed.ok());
  EXPECT_EQ(overflowed.status().code(), StatusCode::kInternal);
  EXPECT_THAT(overflowed.status().message(), HasSubstr("policy version 1"));

  auto good = std::make_shared<weights::Snapshot>();
  good->policy_version = 2;
  good->tensors = Golden().checkpoint;
  ASSERT_EQ(PublishAndWait(*engine, good), OkStatus());
  const auto after = Generate(*engine, request);
  ASSERT_TRUE(after.ok()) << after.status().ToString();
  EXPECT_EQ(after->tokens, expected->tokens);
}

TEST(XlaEngineTest, OnlyTheNewestOfManySnapshotsIsTaken) {
  const auto engine = MakeEngine(SmallOptions());
  std::vector<std::future<Status>> futures;
  for (int64_t version = 1; version <= 20; ++version) {
    auto promise = std::make_shared<std::promise<Status>>();
    futures.push_back(promise->get_future());
    engine->Publish(OtherWeights(Golden(), 1, version),
                    [promise](Status status) { promise->set_value(std::move(status)); });
  }
  for (size_t i = 0; i < futures.size(); ++i) {
    const Status status = futures[i].get();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCancelled) << status.ToString();
    if (i + 1 == futures.size()) {
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
  EXPECT_EQ(engine->policy_version(), 20);
}

TEST(XlaEngineTest, StopTokensAndTheContextEndASequence) {
  const auto engine = MakeEngine(SmallOptions());
  const Tokens prompt = RandomPrompt(80, 100);
  const auto full = Generate(*engine, {.prompt = prompt, .new_tokens_max = 1000, .seed = 3});
  ASSERT_TRUE(full.ok()) << full.status().ToString();
  EXPECT_EQ(full->finish_reason, FinishReason::kContext);
  EXPECT_EQ(full->tokens.size(), 28U);
  EXPECT_EQ(FinishReasonName(full->finish_reason), "context");
  ExpectLogprobsMatch(Golden().checkpoint, prompt, *full, 1.0);

  const int32_t stop = full->tokens[10];
  const auto first = std::find(full->tokens.begin(), full->tokens.end(), stop);
  const auto stopped = Generate(
      *engine, {.prompt = prompt, .new_tokens_max = 1000, .seed = 3, .stop_tokens = {-1, stop}});
  ASSERT_TRUE(stopped.ok()) << stopped.status().ToString();
  EXPECT_EQ(stopped->finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped->tokens, Tokens(full->tokens.begin(), first + 1));
}

}  // namespace
}  // namespace forebay::rollout
