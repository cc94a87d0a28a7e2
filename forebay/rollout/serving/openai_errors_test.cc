// Goal: whatever a client sends, it gets an answer or an error in OpenAI's form that says what is
// wrong; what the engine reports has its code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/openai_server_testing.h"
#include "forebay/rollout/serving/serving_testing.h"

namespace forebay::rollout::serving {
namespace {

struct Wrong {
  std::string target;
  Json more;
  std::string param;
};

TEST_F(OpenAiServerTest, WrongRequestsAreToldWhatIsWrong) {
  const std::vector<Wrong> wrongs = {
      {kChat, {{"messages", nullptr}}, "messages"},
      {kChat, {{"messages", Json::array()}}, "messages"},
      {kChat, {{"messages", {1}}}, "messages"},
      {kChat, {{"messages", {{{"content", "x"}}}}}, "messages"},
      {kChat,
       {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
       "messages"},
      {kChat, {{"temperature", -1}}, "temperature"},
      {kChat, {{"temperature", "hot"}}, "temperature"},
      {kChat, {{"top_p", 0}}, "top_p"},
      {kChat, {{"top_p", 1.5}}, "top_p"},
      {kChat, {{"n", 0}}, "n"},
      {kChat, {{"n", 129}}, "n"},
      {kChat, {{"n", 1.5}}, "n"},
      {kChat, {{"seed", 18446744073709551615ULL}}, "seed"},
      {kChat, {{"max_tokens", 0}}, "max_tokens"},
      {kChat, {{"stop", ""}}, "stop"},
      {kChat, {{"stop", std::vector<std::string>(17, "x")}}, "stop"},
      {kChat, {{"logit_bias", {{"x", 1}}}}, "logit_bias"},
      {kChat, {{"logit_bias", {{"1", 101}}}}, "logit_bias"},
      {kChat, {{"top_logprobs", 3}}, "top_logprobs"},
      {kChat, {{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs"},
      {kChat, {{"stream", 1}}, "stream"},
      {kChat, {{"stream_options", 1}}, "stream_options"},
      {kChat, {{"tools", {1}}}, "tools"},
      {kChat, {{"tool_choice", "required"}}, "tool_choice"},
      {kChat, {{"response_format", {{"type", "json_object"}}}}, "response_format"},
      {kChat, {{"functions", Json::array({1})}}, "functions"},
      {kChat, {{"min_tokens", 3}}, "min_tokens"},
      {kChat,
       {{"continue_final_message", true}, {"add_generation_prompt", true}},
       "continue_final_message"},
      {"/v1/completions", Json::object(), "prompt"},
      {"/v1/completions", {{"prompt", {1, "x"}}}, "prompt"},
      {"/v1/completions", {{"prompt", {-1}}}, "prompt"},
      {"/v1/completions", {{"prompt", ""}}, "prompt"},
      {"/v1/completions", {{"prompt", {"a", "b"}}, {"n", 100}}, "n"},
      {"/v1/completions", {{"prompt", "x"}, {"echo", true}}, "echo"},
      {"/v1/completions", {{"prompt", "x"}, {"best_of", 3}}, "best_of"},
      {"/inference/v1/generate", {{"token_ids", Json::array()}}, "token_ids"},
      {"/inference/v1/generate", {{"token_ids", {1}}, {"sampling_params", 1}}, "sampling_params"},
      {"/inference/v1/generate",
       {{"token_ids", {1}}, {"sampling_params", {{"temperature", -2}}}},
       "sampling_params.temperature"},
  };
  for (const Wrong& wrong : wrongs) {
    const Json ask = wrong.target == kChat ? Ask(wrong.more) : wrong.more;
    const HttpResponse response = bench_.Post(wrong.target, ask);
    EXPECT_EQ(response.status, 400) << ask.dump();
    const Json error = Parsed(response)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error") << ask.dump();
    EXPECT_EQ(error["param"], wrong.param) << ask.dump() << error.dump();
    EXPECT_GT(error["message"].get<std::string>().size(), 10U);
  }
  EXPECT_TRUE(bench_.engine->requests.empty());
}

TEST_F(OpenAiServerTest, NoBodyIsTooStrange) {
  const std::string deep(100'000, '[');
  std::string crowded = "{\"messages\": [], \"a\": {\"b\": 0";  // were hours of a processor
  for (int i = 0; i < 1'000'000; ++i) crowded += ",\"" + std::to_string(i) + "\":0";
  crowded += "}}";
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), deep, crowded,
        "{\"messages\": " + deep, std::string("{\"model\": \"\xff\"}"),
        std::string("{\"model\": \"\\ud800\"}"), std::string(1000, '\0')}) {
    const HttpResponse response = bench_.Send("POST", kChat, body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 50);
    EXPECT_TRUE(Parsed(response)["error"]["message"].is_string());
  }
  // Every field as every kind of value: an answer or an error that says what is wrong, and no
  // crash.
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    1e300,
                                    "",
                                    "x",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({nullptr}),
                                    Json::array({1, "a"}),
                                    Json{{"a", 1}},
                                    INT64_MAX,
                                    Json::array({Json::object()})};
  const std::vector<std::string> names = {"model",
                                          "messages",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "n",
                                          "seed",
                                          "stop",
                                          "stop_token_ids",
                                          "logit_bias",
                                          "logprobs",
                                          "top_logprobs",
                                          "max_tokens",
                                          "stream",
                                          "stream_options",
                                          "tools",
                                          "tool_choice",
                                          "prompt",
                                          "token_ids",
                                          "sampling_params",
                                          "request_id",
                                          "response_format",
                                          "echo",
                                          "return_token_ids",
                                          "presence_penalty",
                                          "ignore_eos",
                                          "priority",
                                          "skip_special_tokens"};
  bench_.engine->say = [](const GenerateRequest&) { return "x"; };
  for (const char* target : {"/v1/chat/completions", "/v1/completions", "/inference/v1/generate"}) {
    for (const std::string& name : names) {
      for (const Json& value : values) {
        Json ask = Ask({{"prompt", "p"}, {"token_ids", {1}}});
        ask[name] = value;
        const HttpResponse response = bench_.Post(target, ask);
        EXPECT_TRUE(response.status == 200 || response.status == 400 || response.status == 404)
            << target << ask.dump();
      }
    }
  }
}

TEST_F(OpenAiServerTest, KnowsItsPathsAndItsModel) {
  EXPECT_EQ(Parsed(bench_.Get("/health"))["status"], "ok");
  const Json list = Parsed(bench_.Get("/v1/models"));
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(list["data"][0]["policy_version"], 3);
  EXPECT_EQ(Parsed(bench_.Get("/v1/models/tiny"))["id"], "tiny");
  EXPECT_EQ(Parsed(bench_.Get("/v1/models/other"))["error"]["code"], "model_not_found");
  EXPECT_EQ(bench_.Get("/v1/none").status, 404);
  EXPECT_EQ(bench_.Get(kChat).status, 405);
  EXPECT_EQ(bench_.Post("/v1/models", Json::object()).status, 405);
  const HttpResponse other = bench_.Post(kChat, Ask({{"model", "other"}}));
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(Parsed(other)["error"]["code"], "model_not_found");
  EXPECT_EQ(bench_.Post(kChat, Ask({{"model", nullptr}})).status, 200);
}

TEST_F(OpenAiServerTest, AsksForItsToken) {
  Serve({.token = "secret"});
  const HttpResponse refused = bench_.Post(kChat, Ask());
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(Parsed(refused)["error"]["code"], "invalid_api_key");
  EXPECT_EQ(bench_.Get("/health").status, 200);
  bench_.key = "secret";
  EXPECT_EQ(bench_.Post(kChat, Ask()).status, 200);
  EXPECT_EQ(server_->stats().refused, 1);
}

TEST_F(OpenAiServerTest, APromptThatIsTooLongIsRefused) {
  bench_.engine->context = 20;
  const HttpResponse response = bench_.Post(kChat, Ask());
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Parsed(response)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(bench_.Post("/v1/completions", {{"prompt", "0123456789012345678"}}).status, 200);
  EXPECT_EQ(bench_.engine->requests[0].new_tokens_max, 1);
}

TEST_F(OpenAiServerTest, TheEnginesErrorsHaveTheirCodes) {
  const auto code = [&](Status status, bool stream) {
    bench_.engine->fails = std::move(status);
    return bench_.Post(kChat, Ask({{"stream", stream}})).status;
  };
  for (const bool stream : {false, true}) {
    EXPECT_EQ(code(InvalidArgument("x"), stream), 400);
    EXPECT_EQ(code(ResourceExhausted("x"), stream), 429);
    EXPECT_EQ(code(DeadlineExceeded("x"), stream), 504);
    EXPECT_EQ(code(Unavailable("x"), stream), 503);
    EXPECT_EQ(code(Internal("x"), stream), 500);
  }
  // One choice that fails is the failure of all, after which nothing runs.
  bench_.engine->fails = Unavailable("gone");
  EXPECT_EQ(bench_.Post(kChat, Ask({{"n", 4}})).status, 503);
  // In the middle of a stream the code is out already.
  bench_.engine->fails_after = 3;
  const std::vector<std::string> events = bench_.Stream(kChat, Ask({{"stream", true}}));
  ASSERT_GE(events.size(), 3U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["message"], "gone");
}

}  // namespace
}  // namespace forebay::rollout::serving
