// Goal: a call that a client forces is begun in the model's own form, what begins it is never taken
// for something that was sampled, and where no form is known that is said.
#include "forebay/rollout/serving/begun_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/openai_server_testing.h"
#include "forebay/rollout/serving/recording_proxy_testing.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string TemplateThatWrites(const std::string& calls) {
  return "{%- for t in tools or [] -%}<{{ t.function.name }}>{%- endfor -%}"
         "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}"
         "{%- for c in m.tool_calls or [] -%}{%- set c = c.function -%}" +
         calls +
         "{%- endfor -%}<|im_end|>\n{% endfor -%}"
         "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";
}

const std::string kHermes = TemplateThatWrites(
    R"({{ '\n<tool_call>\n{"name": "' + c.name + '", "arguments": ' }}{{ c.arguments | tojson }})"
    R"({{ '}\n</tool_call>' }})");
const std::string kLlama = TemplateThatWrites(
    R"({{ '\n\n{"name": "' + c.name + '", "parameters": ' }}{{ c.arguments | tojson }}{{ '}' }})");
const std::string kPythonTag = TemplateThatWrites(
    R"({{ '<|python_tag|>{"name":"' + c.name + '","parameters":' }}{{ c.arguments | tojson }})"
    R"({{ '}<|eom_id|>' }})");
const std::string kFence = TemplateThatWrites(
    R"({{ '```json\n{"name": "' + c.name + '", "arguments": ' }}{{ c.arguments | tojson }})"
    R"({{ '}\n```' }})");
const std::string kMarkup = TemplateThatWrites(R"({{ '\n<function=' + c.name + '>' }})");
const std::string kKnowsNoCalls = TemplateThatWrites("");

const Json kTools = Json::parse(
    R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "a \"b\""}}])");

Json Named(const std::string& name) {
  return {{"type", "function"}, {"function", {{"name", name}}}};
}

class BegunCallTest : public OpenAiServerTest {
 protected:
  void Use(const std::string& chat) {
    bench_.chat = tokenizer::ChatTemplate::Parse(chat).value();
    Serve({});
  }
  // What the prompt of the newest request ends with, behind the generation prompt.
  std::string Begun() {
    const std::string prompt =
        bench_.tokenizer->Decode(bench_.engine->requests.back().prompt, false).value();
    const std::string opening = "<|im_start|>assistant\n";
    return prompt.substr(prompt.rfind(opening) + opening.size());
  }
  std::string BegunBy(const std::string& chat, const Json& choice) {
    Use(chat);
    const HttpResponse response =
        bench_.Post(kChat, Ask({{"tools", kTools}, {"tool_choice", choice}}));
    EXPECT_EQ(response.status, 200) << response.body;
    return response.status == 200 ? Begun() : response.body;
  }
};

TEST_F(BegunCallTest, EachTemplatesOwnForm) {
  EXPECT_EQ(BegunBy(kHermes, Named("add")), "<tool_call>\n{\"name\": \"add\", \"arguments\":");
  EXPECT_EQ(BegunBy(kLlama, Named("add")), "{\"name\": \"add\", \"parameters\":");
  EXPECT_EQ(BegunBy(kPythonTag, Named("add")), "<|python_tag|>{\"name\":\"add\",\"parameters\":");
  EXPECT_EQ(BegunBy(kFence, Named("add")), "```json\n{\"name\": \"add\", \"arguments\":");
  // The model chooses which.
  EXPECT_EQ(BegunBy(kHermes, "required"), "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(BegunBy(kLlama, "required"), "{\"name\": \"");
  // A name is written as JSON writes it.
  EXPECT_EQ(BegunBy(kHermes, Named("a \"b\"")),
            "<tool_call>\n{\"name\": \"a \\\"b\\\"\", \"arguments\":");
  for (const Json& free : {Json("auto"), Json("none"), Json(nullptr)}) {
    EXPECT_EQ(BegunBy(kHermes, free), "");
  }
}

// Such a template carries the calls as text (plain_tools.h), so they can be begun as text.
TEST_F(BegunCallTest, ATemplateThatKnowsNoToolsTakesThePlainForm) {
  const std::string chat =
      "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}"
      "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";
  EXPECT_EQ(BegunBy(chat, Named("add")), "<tool_call>\n{\"name\": \"add\", \"arguments\":");
  EXPECT_THAT(bench_.tokenizer->Decode(bench_.engine->requests.back().prompt, false).value(),
              HasSubstr("You may call these tools"));
}

TEST_F(BegunCallTest, OneToolThatIsRequiredIsNamed) {
  Use(kHermes);
  const Json one = Json::array({kTools[0]});
  EXPECT_EQ(bench_.Post(kChat, Ask({{"tools", one}, {"tool_choice", "required"}})).status, 200);
  EXPECT_THAT(Begun(), EndsWith("\"add\", \"arguments\":"));
}

TEST_F(BegunCallTest, TheAnswerIsTheWholeCallAndTheTokensAreTheSampledOnes) {
  Use(kHermes);
  const std::string said = " {\"a\": 1}}\n</tool_call>";
  bench_.engine->say = [&](const GenerateRequest&) { return said; };
  const Json ask =
      Ask({{"tools", kTools}, {"tool_choice", Named("add")}, {"return_token_ids", true}});
  const Json body = Parsed(bench_.Post(kChat, ask));
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
  EXPECT_EQ(choice["token_ids"].size(), said.size() + 1);
  EXPECT_EQ(body["usage"]["completion_tokens"], said.size() + 1);
  EXPECT_EQ(body["prompt_token_ids"].size(), bench_.engine->requests.back().prompt.size());

  Json streaming = ask;
  streaming["stream"] = true;
  Json calls = Json::array();
  std::string text;
  for (const std::string& event : bench_.Stream(kChat, streaming)) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    const Json& delta = chunk["choices"][0]["delta"];
    text += delta.value("content", "");
    for (const Json& call : delta.value("tool_calls", Json::array())) calls.push_back(call);
  }
  EXPECT_EQ(text, "");
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0]["function"], choice["message"]["tool_calls"][0]["function"]);
}

TEST_F(BegunCallTest, WhatBecomesNoCallIsText) {
  Use(kHermes);
  bench_.engine->say = [](const GenerateRequest&) { return " nonsense"; };
  const Json body =
      Parsed(bench_.Post(kChat, Ask({{"tools", kTools}, {"tool_choice", Named("add")}})));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["message"]["content"],
            "<tool_call>\n{\"name\": \"add\", \"arguments\": nonsense");
}

TEST_F(BegunCallTest, WhatCannotBeForcedIsSaid) {
  const auto refused = [&](const Json& more) {
    const HttpResponse response = bench_.Post(kChat, Ask(more));
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_EQ(Parsed(response)["error"]["param"], "tool_choice") << response.body;
    return Parsed(response)["error"]["message"].get<std::string>();
  };
  for (const std::string& chat : {kMarkup, kKnowsNoCalls}) {
    Use(chat);
    EXPECT_THAT(refused({{"tools", kTools}, {"tool_choice", "required"}}),
                HasSubstr("chat template"));
  }
  Use(kHermes);
  EXPECT_THAT(refused({{"tools", kTools}, {"tool_choice", Named("sub")}}), HasSubstr("\"sub\""));
  EXPECT_THAT(refused({{"tool_choice", "required"}}), HasSubstr("no 'tools'"));
  for (const Json& odd :
       {Json("always"), Json(3), Json::object(), Json{{"type", "function"}},
        Json{{"type", "function"}, {"function", {{"name", 1}}}},
        Json{{"type", "allowed_tools"}, {"allowed_tools", Json::object()}}, Json::array()}) {
    EXPECT_THAT(refused({{"tools", kTools}, {"tool_choice", odd}}), HasSubstr("must be")) << odd;
  }
  EXPECT_THAT(refused({{"tools", kTools},
                       {"tool_choice", "required"},
                       {"messages", {Message("user", "Hi"), Message("assistant", "He")}},
                       {"continue_final_message", true}}),
              HasSubstr("continue_final_message"));
  EXPECT_TRUE(bench_.engine->requests.empty());
}

class RecordedBegunCallTest : public RecordingProxyTest {
 protected:
  void SetUp() override {
    bench_.chat = tokenizer::ChatTemplate::Parse(kHermes).value();
    RecordingProxyTest::SetUp();
  }
};

TEST_F(RecordedBegunCallTest, WhatBeginsACallIsGivenAndTheConversationGoesOn) {
  const std::string said = " {\"a\": 1}}\n</tool_call>";
  bench_.engine->say = [&](const GenerateRequest&) { return said; };
  Open();
  std::vector<Json> messages = {Message("user", "x")};
  const Json forced = {{"tools", kTools}, {"tool_choice", Named("add")}};
  for (int i = 0; i < 2; ++i) {
    const Json answer = Ask(messages, forced);
    ASSERT_EQ(answer["tool_calls"].size(), 1U) << answer;
    messages.push_back(answer);
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", answer["tool_calls"][0]["id"]}, {"content", "42"}});
  }
  bench_.engine->say = [](const GenerateRequest&) { return "done"; };
  Ask(messages, {{"tools", kTools}});
  PostReward(1);
  const Trajectory t = Close();
  EXPECT_EQ(t.outcome, Outcome::kDone) << reason_.ToString();
  ASSERT_EQ(Branches(t).size(), 1U) << Text(t);
  EXPECT_EQ(Sampled(t), said + "<|im_end|>|" + said + "<|im_end|>|done<|im_end|>|");
  const std::string begun = "<tool_call>\n{\"name\": \"add\", \"arguments\":";
  EXPECT_EQ(Text(t), "<add><a \"b\"><|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n" +
                         begun + said +
                         "<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n" +
                         begun + said +
                         "<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
                         "done<|im_end|>");
  EXPECT_EQ(bench_.engine->requests[2].prompt.size() + 5, t.tokens.size());
  EXPECT_EQ(t.turns[1].tool, "add");
}

}  // namespace
}  // namespace forebay::rollout::serving
