// What the engine samples and tells when requests ask for more than a temperature: the same
// distribution as the definitions, whoever runs beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/reference_sampling_testing.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using ::testing::HasSubstr;
using xla::DType;
using xla::Value;
using Tokens = std::vector<int32_t>;

constexpr int64_t kLength = 96;

// The logits [kLength, V] after each of the tokens, by the function that the learner trains.
xla::Floats Logits(const Tokens& tokens) {
  const auto params =
      Golden().model->FromCheckpoint(Golden().checkpoint, models::LayerLayout::kPerLayer).value();
  std::vector<xla::Argument> arguments;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : params) {
    names.push_back(name);
    const auto values = tensor.as<float>();
    arguments.push_back({tensor.shape(), {values.begin(), values.end()}});
  }
  xla::Floats ids(tokens.begin(), tokens.end()), segments(tokens.size(), 1), positions(kLength);
  ids.resize(kLength, 0);
  segments.resize(kLength, 0);
  std::iota(positions.begin(), positions.end(), 0.0F);
  for (const xla::Floats& row : {ids, segments, positions}) {
    arguments.push_back({{DType::kS32, {1, kLength}}, row});
  }
  const auto out = xla::RunFn(
      [&](std::span<const Value> in) -> xla::Values {
        models::ParamValues values;
        for (size_t i = 0; i < names.size(); ++i) values[names[i]] = in[i];
        const size_t n = names.size();
        const Value hidden = Golden().model->Hidden(
            values, {.tokens_BT = in[n], .segments_BT = in[n + 1], .positions_BT = in[n + 2]}, {});
        return {xla::Linear(xla::Reshape(hidden, {kLength, Golden().model->config().width}),
                            Golden().model->Head(values))};
      },
      arguments);
  return out.empty() ? xla::Floats() : out[0];
}

void ExpectMatchesDefinition(const GenerateRequest& request, const GenerateResult& result) {
  Tokens all = request.prompt;
  all.insert(all.end(), result.tokens.begin(), result.tokens.end());
  const xla::Floats logits = Logits(all);
  const auto vocab = static_cast<size_t>(Golden().model->config().vocab_size);
  ASSERT_EQ(logits.size(), kLength * vocab);
  ASSERT_EQ(result.logprobs.size(), result.tokens.size());
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    const auto row = std::span(logits).subspan((request.prompt.size() - 1 + i) * vocab, vocab);
    const std::vector<double> p =
        ReferenceProbabilities(row, request, std::span(result.tokens).first(i));
    ASSERT_NEAR(result.logprobs[i], std::log(p[static_cast<size_t>(result.tokens[i])]), 1e-4)
        << "token " << i;
    if (request.top_logprobs == 0) continue;
    const auto possible = std::count_if(p.begin(), p.end(), [](double x) { return x > 0; });
    const std::vector<TokenLogprob>& top = result.top_logprobs.at(i);
    ASSERT_EQ(static_cast<int64_t>(top.size()), std::min<int64_t>(request.top_logprobs, possible));
    for (size_t j = 0; j < top.size(); ++j) {
      ASSERT_NEAR(top[j].logprob, std::log(p[static_cast<size_t>(top[j].token)]), 1e-4);
      if (j > 0) {
        ASSERT_LE(top[j].logprob, top[j - 1].logprob) << "best first";
      }
    }
  }
}

std::vector<GenerateRequest> Requests() {
  const GenerateRequest plain{.prompt = RandomPrompt(5, 20), .new_tokens_max = 24, .seed = 17};
  const auto with = [&](auto change) {
    GenerateRequest request = plain;
    change(request);
    return request;
  };
  return {plain,
          with([](auto& r) { r.top_k = 5; }),
          with([](auto& r) { r.top_p = 0.7; }),
          with([](auto& r) { r.min_p = 0.2; }),
          with([](auto& r) { r.repetition_penalty = 1.5; }),
          with([](auto& r) {
            r.presence_penalty = 0.7;
            r.frequency_penalty = 0.4;
          }),
          with([](auto& r) { r.logit_bias = {{7, 6.0F}, {300, -2.0F}}; }),
          with([](auto& r) { r.top_logprobs = kTopLogprobsMax; }),
          with([](auto& r) {
            r.temperature = 0;
            r.repetition_penalty = 1.3;
            r.top_logprobs = 3;
          }),
          with([](auto& r) {
            r.temperature = 0.8;
            r.top_k = 40;
            r.top_p = 0.9;
            r.min_p = 0.02;
            r.repetition_penalty = 1.1;
            r.presence_penalty = 0.1;
            r.frequency_penalty = 0.2;
            r.logit_bias = {{1, 1.0F}};
            r.top_logprobs = 5;
          })};
}

TEST(EngineSamplingTest, T2_EveryRequestsLogprobsAreOfItsOwnDefinition) {
  const std::vector<GenerateRequest> requests = Requests();
  const auto engine = MakeEngine(SmallOptions());
  std::vector<GenerateResult> alone;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const auto result = Generate(*engine, requests[i]);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    ExpectMatchesDefinition(requests[i], *result);
    alone.push_back(*result);
  }
  // All at once, four at a time: nobody's wishes reach a neighbour, and none is a new program (the
  // definitions above are, of the same client).
  const int64_t compiled = engine->stats().recompiles_after_warmup;
  std::vector<std::future<Result<GenerateResult>>> futures;
  for (const GenerateRequest& request : requests) futures.push_back(Ask(*engine, request));
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto result = Get(std::move(futures[i]));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->tokens, alone[i].tokens) << i;
  }
  EXPECT_EQ(engine->stats().recompiles_after_warmup, compiled);
}

TEST(EngineSamplingTest, ATopKOfOneIsGreedyAndCertain) {
  const auto engine = MakeEngine(SmallOptions());
  const Tokens prompt = RandomPrompt(6, 10);
  const auto greedy = Generate(*engine, {.prompt = prompt, .new_tokens_max = 20, .temperature = 0});
  const auto sampled = Generate(*engine, {.prompt = prompt, .new_tokens_max = 20, .top_k = 1});
  ASSERT_TRUE(greedy.ok());
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->tokens, greedy->tokens);
  for (const float logprob : sampled->logprobs) EXPECT_EQ(logprob, 0);
}

TEST(EngineSamplingTest, TokensAreToldOneByOneBeforeTheAnswer) {
  const auto engine = MakeEngine(SmallOptions());
  std::vector<TokenEvent> events;  // the engine's thread, read after the answer
  GenerateRequest request{.prompt = RandomPrompt(7, 30), .new_tokens_max = 15, .seed = 3};
  request.top_logprobs = 2;
  request.on_token = [&](const TokenEvent& event) { events.push_back(event); };
  std::promise<Result<GenerateResult>> promise;
  const uint64_t id = engine->Generate(
      request, [&](Result<GenerateResult> result) { promise.set_value(std::move(result)); });
  const auto result = Get(promise.get_future());
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  ASSERT_EQ(events.size(), result->tokens.size());
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].request, id);
    EXPECT_EQ(events[i].index, static_cast<int64_t>(i));
    EXPECT_EQ(events[i].token, result->tokens[i]);
    EXPECT_EQ(events[i].logprob, result->logprobs[i]);
    EXPECT_EQ(events[i].top_logprobs, result->top_logprobs[i]);
    EXPECT_EQ(events[i].policy_version, 0);
  }
}

TEST(EngineSamplingTest, StopStringsEndASequence) {
  const TinyModel tiny = MakeTinyModel(256);
  const auto engine = MakeEngine(tiny, {.slots = 2, .context = 256, .prefill_chunks = {32}});
  // Letters only, so that every token is text.
  GenerateRequest request{.prompt = {'h', 'i'}, .new_tokens_max = 60, .seed = 9};
  request.logit_bias.clear();
  for (int32_t letter = 'a'; letter <= 'z'; ++letter)
    request.logit_bias.emplace_back(letter, 50.0F);
  const auto full = Generate(*engine, request);
  ASSERT_TRUE(full.ok()) << full.status().ToString();
  ASSERT_EQ(full->tokens.size(), 60U);
  const std::string text(full->tokens.begin(), full->tokens.end());

  const std::string stop = text.substr(20, 3);
  const size_t place = text.find(stop) + stop.size();
  request.stop_strings = {"NEVER", stop};
  const auto stopped = Generate(*engine, request);
  ASSERT_TRUE(stopped.ok()) << stopped.status().ToString();
  EXPECT_EQ(stopped->finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped->stop_string, stop);
  EXPECT_EQ(stopped->stop_token, -1);
  EXPECT_EQ(std::string(stopped->tokens.begin(), stopped->tokens.end()), text.substr(0, place));

  request.stop_strings = {"NEVER"};
  request.stop_tokens = {full->tokens[0]};
  const auto token = Generate(*engine, request);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->tokens.size(), 1U);
  EXPECT_EQ(token->stop_token, full->tokens[0]);
  EXPECT_EQ(token->stop_string, "");
}

TEST(EngineSamplingTest, WrongParametersSayWhatWouldBeRight) {
  const auto engine = MakeEngine(SmallOptions());
  const auto refused = [&](auto change, const char* part) {
    GenerateRequest request{.prompt = {1, 2}};
    change(request);
    const auto result = Generate(*engine, request);
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr(part));
  };
  refused([](auto& r) { r.top_k = -1; }, "top_k");
  refused([](auto& r) { r.top_p = 0; }, "top_p");
  refused([](auto& r) { r.top_p = 1.5; }, "top_p");
  refused([](auto& r) { r.top_p = std::nan(""); }, "top_p");
  refused([](auto& r) { r.min_p = -0.1; }, "min_p");
  refused([](auto& r) { r.repetition_penalty = 0; }, "repetition_penalty");
  refused([](auto& r) { r.presence_penalty = std::nan(""); }, "presence_penalty");
  refused([](auto& r) { r.frequency_penalty = 1e9; }, "frequency_penalty");
  refused([](auto& r) { r.temperature = 1e9; }, "temperature");
  refused([](auto& r) { r.top_logprobs = 21; }, "top_logprobs");
  refused([](auto& r) { r.logit_bias = {{512, 1.0F}}; }, "512");
  refused([](auto& r) { r.logit_bias = {{5, std::nanf("")}}; }, "logit_bias");
  refused([](auto& r) { r.logit_bias = {{5, 1.0F}, {5, 1.0F}}; }, "twice");
  refused([](auto& r) { r.logit_bias.assign(301, {1, 1.0F}); }, "300");
  refused([](auto& r) { r.stop_strings = {"a"}; }, "tokenizer");
  const TinyModel tiny = MakeTinyModel(64);
  const auto text = MakeEngine(tiny, {.slots = 1, .context = 64, .prefill_chunks = {32}});
  for (const auto& stops : {std::vector<std::string>{""}, std::vector<std::string>(17, "x"),
                            std::vector<std::string>{std::string(1025, 'x')}}) {
    GenerateRequest request{.prompt = {1}};
    request.stop_strings = stops;
    EXPECT_EQ(Generate(*text, request).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(EngineSamplingTest, ABf16EngineSamplesNearlyTheSameModel) {
  XlaEngineOptions options = SmallOptions();
  options.weights_dtype = DType::kBF16;
  options.cache_dtype = DType::kBF16;
  const auto engine = MakeEngine(options);
  const GenerateRequest request{
      .prompt = RandomPrompt(8, 40), .new_tokens_max = 20, .temperature = 1, .seed = 2};
  const auto result = Generate(*engine, request);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  Tokens all = request.prompt;
  all.insert(all.end(), result->tokens.begin(), result->tokens.end());
  const xla::Floats logits = Logits(all);
  const auto vocab = static_cast<size_t>(Golden().model->config().vocab_size);
  for (size_t i = 0; i < result->tokens.size(); ++i) {
    const auto row = std::span(logits).subspan((request.prompt.size() - 1 + i) * vocab, vocab);
    const auto p = ReferenceProbabilities(row, request, {});
    EXPECT_NEAR(result->logprobs[i], std::log(p[static_cast<size_t>(result->tokens[i])]), 0.1);
  }
  ASSERT_EQ(PublishAndWait(*engine, OtherWeights(Golden(), 3, 1)), OkStatus());
  EXPECT_TRUE(Generate(*engine, request).ok());
}

}  // namespace
}  // namespace forebay::rollout
