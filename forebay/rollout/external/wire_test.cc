// What each kind of server is asked, and what of its answers is believed.
#include "forebay/rollout/external/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::external {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

GenerateRequest Request() {
  return {.prompt = {5, 6}, .new_tokens_max = 4, .seed = 1ULL << 63U | 9U, .stop_tokens = {3}};
}

Json Vllm() {
  return Json::parse(R"({"choices": [{"index": 0, "token_ids": [7, 3], "finish_reason": "stop",
    "stop_reason": 3, "logprobs": {"content": [{"token_id": 7, "logprob": -0.5, "top_logprobs": []},
    {"token": "token_id:3", "logprob": -1.5}]},
    "weight_versions": [{"version": "4", "start": 0, "end": 2}]}]})");
}
Json Sglang() {
  return Json::parse(R"({"text": "x", "output_ids": [7, 3], "meta_info": {"weight_version": "4",
    "finish_reason": {"type": "stop", "matched": 3},
    "output_token_logprobs": [[-0.5, 7, null], [-1.5, 3, null]]}})");
}
Json LlamaCpp() {
  return Json::parse(R"({"content": "x", "tokens": [7, 3], "stop_type": "eos", "truncated": false,
    "completion_probabilities": [{"id": 7, "logprob": -0.5, "top_logprobs": []},
    {"id": 3, "logprob": -1.5, "top_logprobs": []}]})");
}

TEST(Wire, VllmIsAskedForTheTokensAndTheirLogprobs) {
  GenerateRequest request = Request();
  request.top_p = 0.5;
  request.logit_bias = {{9, -1.0F}};
  const Ask ask = MakeVllmWire("policy")->Generate(request, "").value();
  EXPECT_EQ(ask.target, "/inference/v1/generate");
  const Json body = Json::parse(ask.body);
  EXPECT_EQ(body["model"], "policy");
  EXPECT_EQ(body["token_ids"], Json({5, 6}));
  const Json& params = body["sampling_params"];
  EXPECT_EQ(params["logprobs"], 0);
  EXPECT_EQ(params["seed"], 9);  // a signed number there
  EXPECT_EQ(params["ignore_eos"], true);
  EXPECT_EQ(params["stop_token_ids"], Json({3}));
  EXPECT_EQ(params["top_p"], 0.5);
  EXPECT_FALSE(params.contains("top_k"));
  EXPECT_EQ(params["logit_bias"]["9"], -1.0);
}

TEST(Wire, ParametersThatWouldGiveOtherLogprobsAreRefused) {
  GenerateRequest request = Request();
  request.top_k = 5;
  EXPECT_EQ(MakeSglangWire()->Generate(request, "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(MakeLlamaCppWire()->Generate(request, "").ok());
  request.repetition_penalty = 2;
  EXPECT_THAT(MakeLlamaCppWire()->Generate(request, "").status().message(), HasSubstr("penalties"));
  request = Request();
  request.stop_strings = {"x"};
  EXPECT_FALSE(MakeLlamaCppWire()->Generate(request, "").ok());
}

TEST(Wire, EveryKindOfAnswerBecomesTokensAndLogprobs) {
  const GenerateRequest request = Request();
  const std::vector<std::pair<std::unique_ptr<Wire>, Json>> kinds = [] {
    std::vector<std::pair<std::unique_ptr<Wire>, Json>> out;
    out.emplace_back(MakeVllmWire(""), Vllm());
    out.emplace_back(MakeSglangWire(), Sglang());
    out.emplace_back(MakeLlamaCppWire(), LlamaCpp());
    return out;
  }();
  for (const auto& [wire, json] : kinds) {
    SCOPED_TRACE(json.dump());
    const auto answer = wire->Read(json.dump(), request);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    const auto result = CheckAnswer(*answer, request, 10, 2);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_THAT(result->tokens, ElementsAre(7, 3));
    EXPECT_THAT(result->logprobs, ElementsAre(-0.5F, -1.5F));
    EXPECT_THAT(result->versions, ElementsAre(VersionRun{.policy_version = 2, .tokens = 2}));
    EXPECT_EQ(result->finish_reason, FinishReason::kStop);
    EXPECT_EQ(result->stop_token, 3);
  }
}

// Garbage at any place of an answer is an error with a reason, never a result.
TEST(Wire, T7_AnswersWhoseLogprobsAreNotOfTheirTokensAreRefused) {
  const GenerateRequest request = Request();
  const auto refused = [&](const Wire& wire, Json json, const char* pointer, Json value) {
    json[Json::json_pointer(pointer)] = std::move(value);
    const auto answer = wire.Read(json.dump(), request);
    EXPECT_EQ(answer.status().code(), StatusCode::kDataLoss) << json.dump();
    EXPECT_FALSE(answer.status().message().empty());
  };
  const auto vllm = MakeVllmWire("");
  refused(*vllm, Vllm(), "/choices", Json::array());
  refused(*vllm, Vllm(), "/choices", 1);
  refused(*vllm, Vllm(), "/choices/0/token_ids", nullptr);
  refused(*vllm, Vllm(), "/choices/0/token_ids", {7});
  refused(*vllm, Vllm(), "/choices/0/token_ids", {7, 4});
  refused(*vllm, Vllm(), "/choices/0/token_ids/0", -7);
  refused(*vllm, Vllm(), "/choices/0/token_ids/0", 7.5);
  refused(*vllm, Vllm(), "/choices/0/token_ids/0", 1ULL << 40U);
  refused(*vllm, Vllm(), "/choices/0/logprobs", nullptr);
  refused(*vllm, Vllm(), "/choices/0/logprobs/content/0", "x");
  refused(*vllm, Vllm(), "/choices/0/logprobs/content/0/logprob", nullptr);
  refused(*vllm, Vllm(), "/choices/0/logprobs/content/0/logprob", "-1");
  refused(*vllm, Vllm(), "/choices/0/logprobs/content/1/token", "token_id:4x");
  refused(*vllm, Vllm(), "/choices/0/logprobs/content/1/token", "Hi");
  refused(*vllm, Vllm(), "/choices/0/finish_reason", "abort");
  refused(*vllm, Vllm(), "/choices/0/finish_reason", nullptr);
  refused(*vllm, Vllm(), "/choices/0/weight_versions/1", {{"version", "5"}});
  const auto sglang = MakeSglangWire();
  refused(*sglang, Sglang(), "/meta_info", nullptr);
  refused(*sglang, Sglang(), "/output_ids", {7, 4});
  refused(*sglang, Sglang(), "/meta_info/output_token_logprobs/0", {-0.5});
  refused(*sglang, Sglang(), "/meta_info/output_token_logprobs/0", {nullptr, 7, nullptr});
  refused(*sglang, Sglang(), "/meta_info/finish_reason", {{"type", "abort"}});
  const auto llama = MakeLlamaCppWire();
  refused(*llama, LlamaCpp(), "/completion_probabilities", nullptr);
  refused(*llama, LlamaCpp(), "/completion_probabilities", Json::array());
  refused(*llama, LlamaCpp(), "/completion_probabilities/0/id", 8);
  refused(*llama, LlamaCpp(), "/stop_type", "word");
  refused(*llama, LlamaCpp(), "/truncated", true);
  for (const std::string body : {"", "[]", "nothing", "{\"choices\": [", "\xff\xfe"}) {
    for (const Wire* wire : {vllm.get(), sglang.get(), llama.get()}) {
      EXPECT_EQ(wire->Read(body, request).status().code(), StatusCode::kDataLoss) << body;
    }
  }
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(vllm->Read("{\"choices\":" + deep + "}", request).status().code(),
            StatusCode::kDataLoss);
}

TEST(Wire, WhatCannotBeOfTheModelIsRefused) {
  const GenerateRequest request = Request();
  const auto check = [&](std::vector<int32_t> tokens, std::vector<float> logprobs) {
    return CheckAnswer({.tokens = std::move(tokens), .logprobs = std::move(logprobs)}, request, 10,
                       0)
        .status()
        .code();
  };
  EXPECT_EQ(check({1}, {-1}), StatusCode::kOk);
  EXPECT_EQ(check({}, {}), StatusCode::kDataLoss);
  EXPECT_EQ(check({1, 2}, {-1}), StatusCode::kDataLoss);
  EXPECT_EQ(check({10}, {-1}), StatusCode::kDataLoss);
  EXPECT_EQ(check({-1}, {-1}), StatusCode::kDataLoss);
  EXPECT_EQ(check({1}, {0.5}), StatusCode::kDataLoss);
  EXPECT_EQ(check({1}, {-9999}), StatusCode::kDataLoss);
  EXPECT_EQ(check({1}, {std::numeric_limits<float>::quiet_NaN()}), StatusCode::kDataLoss);
  EXPECT_EQ(check({1, 1, 1, 1, 1}, {-1, -1, -1, -1, -1}), StatusCode::kDataLoss);
}

TEST(Wire, WhatComesBehindAStopTokenIsCut) {
  const auto result =
      CheckAnswer({.tokens = {1, 3, 2}, .logprobs = {-1, -2, -3}}, Request(), 10, 0);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->tokens, ElementsAre(1, 3));
  EXPECT_THAT(result->logprobs, ElementsAre(-1, -2));
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
  EXPECT_EQ(result->versions.front().tokens, 2);
}

TEST(Wire, LlamaCppTellsProbabilitiesBehindItsSamplers) {
  GenerateRequest request = Request();
  request.temperature = 0.5;
  const auto llama = MakeLlamaCppWire();
  const Json ask = Json::parse(llama->Generate(request, "")->body);
  EXPECT_EQ(ask["post_sampling_probs"], true);
  EXPECT_EQ(ask["samplers"], Json({"temperature", "min_p", "top_k", "top_p"}));
  Json json = LlamaCpp();
  EXPECT_FALSE(llama->Read(json.dump(), request).ok());  // of the model: not what was asked for
  json["completion_probabilities"] = {{{"id", 7}, {"prob", 0.25}}, {{"id", 3}, {"prob", 1.0}}};
  const auto answer = llama->Read(json.dump(), request);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_THAT(answer->logprobs, ElementsAre(FloatEq(std::log(0.25F)), 0.0F));
}

}  // namespace
}  // namespace forebay::rollout::external
