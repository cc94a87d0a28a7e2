// Goal: the details that OpenAI's own clients rely on, as its reference states them: usage and
// indexes in streams, legacy log-probabilities, one call only, fields that are ignored, and fields
// that are refused because ignoring them would look like following them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/openai_server_testing.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout::serving {
namespace {

using ::testing::HasSubstr;

const std::string kCompletions = "/v1/completions";
const Json kTools = Json::parse(
    R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}])");

class ApiDetailsTest : public OpenAiServerTest {
 protected:
  // The chunks of a stream, which ends with [DONE].
  std::vector<Json> Chunks(const std::string& target, Json ask) {
    ask["stream"] = true;
    std::vector<Json> out;
    std::vector<std::string> events = bench_.Stream(target, ask);
    EXPECT_EQ(events.empty() ? "" : events.back(), "[DONE]");
    if (!events.empty()) events.pop_back();
    for (const std::string& event : events) out.push_back(Json::parse(event));
    return out;
  }
};

TEST_F(ApiDetailsTest, UsageIsTheLastChunkAndNullInAllOthers) {
  const Json usage = {{"include_usage", true}};
  for (const std::string& target : {kChat, kCompletions}) {
    for (const bool ids : {false, true}) {
      const Json ask = Ask({{"prompt", "p"},
                            {"n", 2},
                            {"stream_options", usage},
                            {"return_token_ids", ids},
                            {"logprobs", target == kChat ? Json(true) : Json(1)}});
      const std::vector<Json> chunks = Chunks(target, ask);
      ASSERT_GE(chunks.size(), 5U);
      for (size_t i = 0; i + 1 < chunks.size(); ++i) {
        EXPECT_TRUE(chunks[i].contains("usage") && chunks[i]["usage"].is_null()) << chunks[i];
        EXPECT_EQ(chunks[i]["choices"].size(), 1U) << chunks[i];
        EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
        EXPECT_EQ(chunks[i]["object"],
                  target == kChat ? "chat.completion.chunk" : "text_completion");
      }
      const Json& last = chunks.back();
      EXPECT_TRUE(last["choices"].is_array() && last["choices"].empty());
      EXPECT_EQ(last["usage"]["completion_tokens"], 14);
      EXPECT_EQ(last["usage"]["total_tokens"].get<int>(),
                last["usage"]["prompt_tokens"].get<int>() + 14);
    }
    for (const Json& chunk : Chunks(target, Ask({{"prompt", "p"}}))) {
      EXPECT_FALSE(chunk.contains("usage"));
      EXPECT_EQ(chunk["choices"].size(), 1U);
    }
  }
}

TEST_F(ApiDetailsTest, EachChoiceOfAStreamIsWhole) {
  bench_.engine->say = [&](const GenerateRequest&) {
    return "answer " + std::to_string(bench_.engine->requests.size());
  };
  std::map<int, std::string> text, finish;
  std::map<int, int> roles;
  for (const Json& chunk : Chunks(kChat, Ask({{"n", 3}, {"stop", {"3", "zzz"}}}))) {
    const Json& choice = chunk["choices"][0];
    const int index = choice["index"];
    EXPECT_TRUE(finish[index].empty()) << "nothing comes after the end of a choice";
    text[index] += choice["delta"].value("content", "");
    roles[index] += choice["delta"].contains("role") ? 1 : 0;
    if (choice["finish_reason"].is_string()) finish[index] = choice["finish_reason"];
  }
  EXPECT_EQ(text, (std::map<int, std::string>{{0, "answer 1"}, {1, "answer 2"}, {2, "answer "}}));
  EXPECT_EQ(finish, (std::map<int, std::string>{{0, "stop"}, {1, "stop"}, {2, "stop"}}));
  EXPECT_EQ(roles, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST_F(ApiDetailsTest, CallsOfAStreamHaveIndexesAndIdsOfTheirOwn) {
  bench_.engine->say = [](const GenerateRequest&) {
    return R"(<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)"
           R"(<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>)";
  };
  std::map<std::string, std::string> arguments;  // by choice and index
  std::map<std::string, int> ids;
  std::map<int, std::string> finish;
  for (const Json& chunk : Chunks(kChat, Ask({{"tools", kTools}, {"n", 2}}))) {
    const Json& choice = chunk["choices"][0];
    const int index = choice["index"];
    for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
      ++ids[call["id"]];
      EXPECT_EQ(call["type"], "function");
      EXPECT_EQ(call["function"]["name"], "add");
      arguments[std::to_string(index) + "." + call["index"].dump()] +=
          call["function"]["arguments"].get<std::string>();
    }
    if (choice["finish_reason"].is_string()) finish[index] = choice["finish_reason"];
  }
  EXPECT_EQ(
      arguments,
      (std::map<std::string, std::string>{
          {"0.0", "{\"a\":1}"}, {"0.1", "{\"a\":2}"}, {"1.0", "{\"a\":1}"}, {"1.1", "{\"a\":2}"}}));
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_EQ(finish, (std::map<int, std::string>{{0, "tool_calls"}, {1, "tool_calls"}}));

  const Json one = Ask({{"tools", kTools}, {"parallel_tool_calls", false}});
  const Json whole = Parsed(bench_.Post(kChat, one))["choices"][0];
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
  size_t calls = 0;
  for (const Json& chunk : Chunks(kChat, one)) {
    calls += chunk["choices"][0]["delta"].value("tool_calls", Json::array()).size();
  }
  EXPECT_EQ(calls, 1U);
}

TEST_F(ApiDetailsTest, LogprobsOfAStreamAreThoseOfTheWholeAnswer) {
  bench_.engine->say = [](const GenerateRequest&) { return "h\u00e9llo"; };
  const auto joined = [](std::vector<Json> chunks, const char* key) {
    Json out = Json::array();
    for (const Json& chunk : chunks) {
      const Json& logprobs = chunk["choices"][0]["logprobs"];
      if (logprobs.is_null()) continue;
      for (const Json& entry : logprobs[key]) out.push_back(entry);
    }
    return out;
  };
  const Json chat = Ask({{"logprobs", true}, {"top_logprobs", 2}});
  const Json whole = Parsed(bench_.Post(kChat, chat))["choices"][0]["logprobs"];
  EXPECT_TRUE(whole["refusal"].is_null() && whole.contains("refusal"));
  EXPECT_EQ(whole["content"].size(), 7U);
  EXPECT_EQ(joined(Chunks(kChat, chat), "content"), whole["content"]);

  const Json text = {{"prompt", "p"}, {"logprobs", 0}};
  const Json legacy = Parsed(bench_.Post(kCompletions, text))["choices"][0]["logprobs"];
  // Offsets count characters, each half of one as one; the sampled token is always among the top.
  EXPECT_EQ(legacy["text_offset"].dump(), "[0,1,2,3,4,5,6]");
  EXPECT_EQ(legacy["top_logprobs"][0].dump(), R"({"h":-0.25})");
  const std::vector<Json> chunks = Chunks(kCompletions, text);
  for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(joined(chunks, key), legacy[key]) << key;
  }
}

// Models have more rows of logits than their tokenizers have tokens.
TEST_F(ApiDetailsTest, ATokenWithoutATextIsNoReasonToEnd) {
  const int32_t unknown = static_cast<int32_t>(bench_.tokenizer->vocab_size()) + 3;
  bench_.engine->say_tokens = [&](const GenerateRequest&) {
    return std::vector<int32_t>{'H', unknown, 'i', weights::kTinyEnd};
  };
  for (const bool stream : {false, true}) {
    const Json ask = Ask({{"logprobs", true}, {"top_logprobs", 20}, {"return_token_ids", true}});
    if (stream) {
      std::string text;
      for (const Json& chunk : Chunks(kChat, ask)) {
        text += chunk["choices"][0]["delta"].value("content", "");
      }
      EXPECT_EQ(text, "Hi");
      continue;
    }
    const Json choice = Parsed(bench_.Post(kChat, ask))["choices"][0];
    EXPECT_EQ(choice["message"]["content"], "Hi");
    EXPECT_EQ(choice["token_ids"][1], unknown);
    EXPECT_EQ(choice["logprobs"]["content"][1]["token"], "");
  }
  const Json legacy = Parsed(bench_.Post(kCompletions, {{"prompt", "p"}, {"logprobs", 20}}));
  EXPECT_EQ(legacy["choices"][0]["logprobs"]["tokens"][1], "");
}

TEST_F(ApiDetailsTest, ATemperatureNextToNothingIsGreedy) {
  for (const double temperature : {0.0, 2e-38, 1e-6, 0.00099}) {
    bench_.Post(kChat, Ask({{"temperature", temperature}}));
    EXPECT_EQ(bench_.engine->requests.back().temperature, 0);
  }
  bench_.Post(kChat, Ask({{"temperature", 0.001}}));
  EXPECT_EQ(bench_.engine->requests.back().temperature, 0.001);
}

TEST_F(ApiDetailsTest, WhatDoesNotChangeTheAnswerIsIgnored) {
  const Json harmless = {{"user", "me"},
                         {"metadata", {{"a", "b"}}},
                         {"store", true},
                         {"service_tier", "auto"},
                         {"safety_identifier", "x"},
                         {"prompt_cache_key", "y"},
                         {"reasoning_effort", "low"},
                         {"verbosity", "low"},
                         {"modalities", {"text"}},
                         {"something_new", {1, 2}},
                         {"response_format", {{"type", "text"}}},
                         {"chat_template_kwargs", Json::object()},
                         {"guided_json", nullptr},
                         {"functions", Json::array()},
                         {"tools", Json::array()},
                         {"prompt_logprobs", nullptr},
                         {"stop", nullptr},
                         {"stop_token_ids", Json::array()},
                         {"stream_options", nullptr},
                         {"parallel_tool_calls", true}};
  EXPECT_EQ(bench_.Post(kChat, Ask(harmless)).status, 200);
  EXPECT_EQ(bench_
                .Post(kCompletions, {{"prompt", "p"},
                                     {"echo", false},
                                     {"suffix", ""},
                                     {"best_of", 1},
                                     {"user", "me"},
                                     {"logprobs", nullptr}})
                .status,
            200);
}

TEST_F(ApiDetailsTest, WhatWouldChangeTheAnswerIsRefusedWithAReason) {
  struct Refused {
    const char* name;
    Json value;
    const char* why;
  };
  const std::vector<Refused> chat = {
      {"response_format", {{"type", "json_object"}}, "constrains"},
      {"response_format", {{"type", "json_schema"}, {"json_schema", Json::object()}}, "constrains"},
      {"structured_outputs", {{"regex", "a*"}}, "constrains"},
      {"guided_choice", {"a", "b"}, "constrains"},
      {"grammar", "root ::= x", "constrains"},
      {"chat_template", "{{ messages }}", "chat template"},
      {"web_search_options", {{"user_location", "here"}}, "searched"},
      {"prompt_logprobs", 1, "sampled"},
      {"bad_words", {"x"}, "logit_bias"},
  };
  const std::vector<Refused> text = {{"echo", true, "in front"}, {"suffix", "end", "forward"}};
  const auto refused = [&](const std::string& target, Json ask, const Refused& one) {
    ask[one.name] = one.value;
    const HttpResponse response = bench_.Post(target, ask);
    EXPECT_EQ(response.status, 400) << one.name;
    const Json error = Parsed(response)["error"];
    EXPECT_EQ(error["param"], one.name);
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(one.why));
  };
  for (const Refused& one : chat) refused(kChat, Ask(), one);
  for (const Refused& one : text) refused(kCompletions, {{"prompt", "p"}}, one);
  EXPECT_TRUE(bench_.engine->requests.empty());
}

}  // namespace
}  // namespace forebay::rollout::serving
