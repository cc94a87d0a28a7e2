// Goal: the server speaks OpenAI's API (and vLLM's additions) to the letter: whole and streamed
// answers, errors with their codes, and a client that goes away frees the engine.
#include "forebay/rollout/openai_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/http_testing.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/openai_server_testing.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(OpenAiServerTest, AnswersAChat) {
  const HttpResponse response = bench_.Post(kChat, Ask());
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.Get("content-type"), "application/json");
  const Json body = Parsed(response);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(body["model"], "tiny");
  ASSERT_EQ(body["choices"].size(), 1U);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "Hello.");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_FALSE(choice.contains("token_ids"));
  const std::string prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  ASSERT_EQ(bench_.engine->requests.size(), 1U);
  EXPECT_EQ(bench_.engine->requests[0].prompt, bench_.tokenizer->Encode(prompt).value());
  EXPECT_EQ(bench_.engine->requests[0].temperature, 1.0);
  EXPECT_EQ(body["usage"]["prompt_tokens"], bench_.engine->requests[0].prompt.size());
  EXPECT_EQ(body["usage"]["completion_tokens"], 7);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST_F(OpenAiServerTest, StreamsAChat) {
  bench_.engine->say = [](const GenerateRequest&) { return "Zoë 🙂!"; };
  const std::vector<std::string> events =
      bench_.Stream(kChat, Ask({{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  ASSERT_GE(events.size(), 5U);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  std::string finish;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_TRUE(chunk["usage"].is_null());
    const Json& choice = chunk["choices"][0];
    if (i == 0) {
      EXPECT_EQ(choice["delta"]["role"], "assistant");
    }
    const std::string piece = choice["delta"].value("content", "");
    EXPECT_THAT(piece, testing::Not(HasSubstr("\xEF\xBF\xBD")));
    text += piece;
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(text, "Zoë 🙂!");
  EXPECT_EQ(finish, "stop");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 11);
}

TEST_F(OpenAiServerTest, StopStringsAreNotShown) {
  bench_.engine->say = [](const GenerateRequest&) { return "one END two"; };
  const Json body = Parsed(bench_.Post(kChat, Ask({{"stop", {"END", "nothing"}}})));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "END");
  std::string text;
  for (const std::string& event : bench_.Stream(kChat, Ask({{"stop", "END"}, {"stream", true}}))) {
    if (event == "[DONE]") continue;
    text += Json::parse(event)["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "one ");  // "E" and "EN" were held back
  // What only began like a stop string is shown at the end.
  bench_.engine->say = [](const GenerateRequest&) { return "one EN"; };
  text.clear();
  for (const std::string& event : bench_.Stream(kChat, Ask({{"stop", "END"}, {"stream", true}}))) {
    if (event == "[DONE]") continue;
    text += Json::parse(event)["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "one EN");
}

TEST_F(OpenAiServerTest, PassesSamplingParametersOn) {
  bench_.Post(kChat, Ask({{"temperature", 0.5},
                          {"top_p", 0.9},
                          {"top_k", 7},
                          {"min_p", 0.1},
                          {"repetition_penalty", 1.2},
                          {"presence_penalty", -1},
                          {"frequency_penalty", 2},
                          {"logit_bias", {{"65", -100}, {"66", 1.5}}},
                          {"max_tokens", 5},
                          {"max_completion_tokens", 3},
                          {"stop_token_ids", {10}},
                          {"seed", 11},
                          {"n", 3}}));
  ASSERT_EQ(bench_.engine->requests.size(), 3U);
  const GenerateRequest r = bench_.engine->requests[0];
  EXPECT_EQ(r.temperature, 0.5);
  EXPECT_EQ(r.top_p, 0.9);
  EXPECT_EQ(r.top_k, 7);
  EXPECT_EQ(r.min_p, 0.1);
  EXPECT_EQ(r.repetition_penalty, 1.2);
  EXPECT_EQ(r.presence_penalty, -1);
  EXPECT_EQ(r.frequency_penalty, 2);
  EXPECT_EQ(r.logit_bias, (std::vector<std::pair<int32_t, float>>{{65, -100.0F}, {66, 1.5F}}));
  EXPECT_EQ(r.new_tokens_max, 3);
  EXPECT_THAT(r.stop_tokens, ElementsAre(10, weights::kTinyEnd));
  EXPECT_NE(r.seed, bench_.engine->requests[1].seed);
  EXPECT_NE(r.seed, bench_.engine->requests[2].seed);
  // The same seed asks for the same; none, or ignore_eos, does not.
  bench_.Post(kChat, Ask({{"seed", 11}}));
  EXPECT_EQ(bench_.engine->requests[3].seed, r.seed);
  bench_.Post(kChat, Ask({{"ignore_eos", true}}));
  bench_.Post(kChat, Ask({{"top_k", -1}, {"seed", -5}}));
  EXPECT_NE(bench_.engine->requests[4].seed, bench_.engine->requests[5].seed);
  EXPECT_TRUE(bench_.engine->requests[4].stop_tokens.empty());
  EXPECT_EQ(bench_.engine->requests[5].top_k, 0);
  // Without a limit: what the context has room for.
  EXPECT_EQ(r.prompt.size() + static_cast<size_t>(bench_.engine->requests[5].new_tokens_max),
            4096U);
}

TEST_F(OpenAiServerTest, GivesTokensAndLogprobsForTraining) {
  const Json ask = Ask({{"logprobs", true},
                        {"top_logprobs", 2},
                        {"return_token_ids", true},
                        {"n", 2},
                        {"max_tokens", 2}});
  const Json body = Parsed(bench_.Post(kChat, ask));
  const std::vector<int32_t> prompt = bench_.engine->requests[0].prompt;
  EXPECT_EQ(body["prompt_token_ids"].get<std::vector<int32_t>>(), prompt);
  ASSERT_EQ(body["choices"].size(), 2U);
  const Json& choice = body["choices"][1];
  EXPECT_EQ(choice["index"], 1);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_THAT(choice["token_ids"].get<std::vector<int32_t>>(), ElementsAre('H', 'e'));
  EXPECT_EQ(choice["policy_versions"].dump(), R"([{"policy_version":3,"tokens":2}])");
  const Json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[1]["token"], "e");
  EXPECT_EQ(content[1]["logprob"], -0.5);
  EXPECT_EQ(content[1]["bytes"].dump(), "[101]");
  EXPECT_EQ(content[1]["top_logprobs"][1]["token"], "f");
  // The same in a stream, in pieces.
  Json streamed = ask;
  streamed["stream"] = true;
  streamed["n"] = 1;
  std::vector<int32_t> ids;
  std::vector<double> logprobs;
  for (const std::string& event : bench_.Stream(kChat, streamed)) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    if (ids.empty() && chunk.contains("prompt_token_ids")) {
      EXPECT_EQ(chunk["prompt_token_ids"].get<std::vector<int32_t>>(), prompt);
    }
    const Json& c = chunk["choices"][0];
    for (const Json& id : c.value("token_ids", Json::array())) ids.push_back(id);
    if (c["logprobs"].is_null()) continue;
    for (const Json& entry : c["logprobs"]["content"]) logprobs.push_back(entry["logprob"]);
  }
  EXPECT_THAT(ids, ElementsAre('H', 'e'));
  EXPECT_THAT(logprobs, ElementsAre(-0.25, -0.5));
  // Half a character has no bytes of its own to show.
  bench_.engine->say = [](const GenerateRequest&) { return "é"; };
  const Json half = Parsed(bench_.Post(kChat, ask));
  EXPECT_TRUE(half["choices"][0]["logprobs"]["content"][0]["bytes"].is_null());
}

TEST_F(OpenAiServerTest, CompletesTextsAndTokens) {
  Json body = Parsed(bench_.Post(
      "/v1/completions",
      {{"prompt", "Say"}, {"max_tokens", 3}, {"logprobs", 1}, {"return_token_ids", true}}));
  EXPECT_EQ(body["object"], "text_completion");
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "Hel");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["prompt_token_ids"].dump(), "[83,97,121]");
  EXPECT_EQ(choice["logprobs"]["tokens"].dump(), R"(["H","e","l"])");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"].dump(), "[-0.25,-0.5,-0.75]");
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].dump(), R"({"H":-0.25})");
  EXPECT_EQ(choice["logprobs"]["text_offset"].dump(), "[0,1,2]");
  bench_.engine->requests.clear();
  body = Parsed(bench_.Post("/v1/completions", {{"prompt", {{1, 2}, {3}}}, {"n", 2}}));
  ASSERT_EQ(body["choices"].size(), 4U);
  EXPECT_THAT(bench_.engine->requests[1].prompt, ElementsAre(1, 2));
  EXPECT_THAT(bench_.engine->requests[2].prompt, ElementsAre(3));
  EXPECT_EQ(bench_.engine->requests[0].new_tokens_max, 16);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  body = Parsed(bench_.Post("/v1/completions", {{"prompt", {"a", "b"}}}));
  EXPECT_EQ(body["choices"].size(), 2U);
  std::string text;
  for (const std::string& event :
       bench_.Stream("/v1/completions", {{"prompt", "x"}, {"stream", true}})) {
    if (event != "[DONE]") text += Json::parse(event)["choices"][0]["text"];
  }
  EXPECT_EQ(text, "Hello.");
}

TEST_F(OpenAiServerTest, TakesTokensAndGivesTokens) {
  const Json ask = {{"request_id", "mine"},
                    {"token_ids", {5, 6, 7}},
                    {"sampling_params", {{"max_tokens", 2}, {"logprobs", 1}, {"temperature", 0}}}};
  const Json body = Parsed(bench_.Post("/inference/v1/generate", ask));
  EXPECT_EQ(body["request_id"], "mine");
  EXPECT_EQ(body["choices"][0]["token_ids"].dump(), "[72,101]");
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"][0]["token"], "token_id:72");
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"][1]["logprob"], -0.5);
  EXPECT_EQ(body["choices"][0]["policy_versions"][0]["policy_version"], 3);
  EXPECT_THAT(bench_.engine->requests[0].prompt, ElementsAre(5, 6, 7));
  EXPECT_EQ(bench_.engine->requests[0].temperature, 0);
}

const Json kTools = Json::parse(
    R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}])");

TEST_F(OpenAiServerTest, TakesToolCallsOutOfTheText) {
  bench_.engine->say = [](const GenerateRequest&) {
    return R"(Let me see. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)"
           R"(<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>)";
  };
  const Json body = Parsed(bench_.Post(kChat, Ask({{"tools", kTools}})));
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2U);
  EXPECT_EQ(choice["message"]["tool_calls"][1]["type"], "function");
  EXPECT_EQ(choice["message"]["tool_calls"][1]["function"]["name"], "add");
  EXPECT_EQ(
      Json::parse(choice["message"]["tool_calls"][1]["function"]["arguments"].get<std::string>()),
      Json({{"a", 2}}));
  EXPECT_NE(choice["message"]["tool_calls"][0]["id"], choice["message"]["tool_calls"][1]["id"]);
  std::vector<Json> calls;
  std::string text;
  for (const std::string& event :
       bench_.Stream(kChat, Ask({{"tools", kTools}, {"stream", true}}))) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    const Json& delta = chunk["choices"][0]["delta"];
    text += delta.value("content", "");
    for (const Json& call : delta.value("tool_calls", Json::array())) calls.push_back(call);
  }
  EXPECT_EQ(text, "Let me see.");
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[1]["index"], 1);
  // Not looked for when nobody offers tools or wants calls.
  for (const Json& more : {Json::object(), Json{{"tools", kTools}, {"tool_choice", "none"}}}) {
    const Json plain = Parsed(bench_.Post(kChat, Ask(more)));
    EXPECT_THAT(plain["choices"][0]["message"]["content"].get<std::string>(),
                HasSubstr("<tool_call>"));
    EXPECT_EQ(plain["choices"][0]["finish_reason"], "stop");
  }
}

TEST_F(OpenAiServerTest, MessagesOfEveryKindReachTheTemplate) {
  const Json messages = Json::parse(R"([
    {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null,
     "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "42", "unknown": 1}])");
  EXPECT_EQ(bench_.Post(kChat, {{"messages", messages}}).status, 200);
  EXPECT_EQ(bench_.tokenizer->Decode(bench_.engine->requests[0].prompt, false).value(),
            "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
            "{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
            "<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
  const Json begun = {
      {"messages",
       {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "Hel"}}}},
      {"continue_final_message", true}};
  EXPECT_EQ(bench_.Post(kChat, begun).status, 200);
  EXPECT_EQ(bench_.tokenizer->Decode(bench_.engine->requests[1].prompt, false).value(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHel");
}

TEST_F(OpenAiServerTest, AClientThatGoesAwayFreesTheEngine) {
  bench_.engine->say = [](const GenerateRequest&) { return std::string(4000, 'x'); };
  bench_.engine->hangs_after =
      3000;  // it does not end by itself, however long the first event takes
  bench_.StreamAndLeave(kChat, Ask({{"stream", true}, {"n", 2}}));
  bench_.Until([&] { return bench_.engine->cancelled == 2; });
  bench_.Until([&] { return server_->stats().cancelled == 1; });
  // Before anything was sent, too.
  bench_.engine->hangs = true;
  std::optional<RawConnection> client(std::in_place, ParseUrl(bench_.base)->port);
  const std::string body = Ask().dump();
  client->Send("POST " + kChat + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body);
  bench_.Until([&] { return bench_.engine->requests.size() == 3; });
  client.reset();
  bench_.Until([&] { return bench_.engine->cancelled == 3; });
  bench_.Until([&] { return server_->stats().cancelled == 2; });
}

TEST_F(OpenAiServerTest, StopCancelsWhatDoesNotEnd) {
  bench_.engine->hangs = true;
  HttpCall call{.request = {.method = "POST", .url = bench_.base + kChat, .body = Ask().dump()},
                .deadline = Now() + std::chrono::seconds(120)};
  Status status;
  const auto ask = [&]() -> Task<void> {
    Task<Result<HttpResponse>> sending = bench_.client->Send(call);
    const Result<HttpResponse> response = co_await std::move(sending);
    status = response.status();
  };
  bench_.loop->Spawn(ask());
  bench_.Until([&] { return bench_.engine->requests.size() == 1; });
  End();
  EXPECT_EQ(bench_.engine->cancelled, 1);
  bench_.Until([&] { return status.code() == StatusCode::kUnavailable; });
}

}  // namespace
}  // namespace forebay::rollout::serving
