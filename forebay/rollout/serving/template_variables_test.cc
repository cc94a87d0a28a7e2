// Goal: what a client sends as chat_template_kwargs reaches the model's own chat template, as vLLM
// and SGLang do it, and nothing else does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/openai_server_testing.h"
#include "forebay/rollout/serving/recording_proxy_testing.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {
namespace {

using ::testing::HasSubstr;

// As Qwen3's ends: no thinking unless it is left out.
constexpr const char* kThinks =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}{{ mood }}";

class TemplateVariablesTest : public OpenAiServerTest {
 protected:
  void SetUp() override {
    bench_.chat = tokenizer::ChatTemplate::Parse(kThinks).value();
    Serve({});
  }
  static Json With(const Json& variables, Json more = Json::object()) {
    more["chat_template_kwargs"] = variables;
    return Ask(more);
  }
  std::string Prompt(const Json& variables) {
    const HttpResponse response = bench_.Post(kChat, With(variables));
    EXPECT_EQ(response.status, 200) << response.body;
    return bench_.tokenizer->Decode(bench_.engine->requests.back().prompt, false).value();
  }
};

TEST_F(TemplateVariablesTest, TheTemplateSeesThem) {
  const std::string plain = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(Prompt(nullptr), plain);
  EXPECT_EQ(Prompt(Json::object()), plain);
  EXPECT_EQ(Prompt({{"enable_thinking", true}}), plain);
  EXPECT_EQ(Prompt({{"enable_thinking", false}}), plain + "<think>\n\n</think>\n\n");
  EXPECT_EQ(Prompt({{"mood", "{{ messages }} é"}}), plain + "{{ messages }} é");
  EXPECT_EQ(Prompt({{"mood", 7}}), plain + "7");
  EXPECT_EQ(Prompt({{"mood", nullptr}, {"unknown_to_it", 1}}), plain + "None");
}

TEST_F(TemplateVariablesTest, WhatIsNoVariableOfTheTemplatesOwnIsRefused) {
  Json many = Json::object();
  for (int i = 0; i < 33; ++i) many["v" + std::to_string(i)] = i;
  const std::vector<std::pair<Json, std::string>> bad = {
      {{{"messages", "x"}}, "cannot set 'messages'"},
      {{{"tools", nullptr}}, "cannot set 'tools'"},
      {{{"add_generation_prompt", false}}, "cannot set 'add_generation_prompt'"},
      {{{"continue_final_message", true}}, "cannot set 'continue_final_message'"},
      {{{"chat_template", "x"}}, "cannot set 'chat_template'"},
      {{{"bos_token", "x"}}, "cannot set 'bos_token'"},
      {{{"raise_exception", 1}}, "cannot set 'raise_exception'"},
      {{{"__forebay_now_unix_s", 1}}, "cannot set '__forebay_now_unix_s'"},
      {{{"", 1}}, "1 to 64 bytes"},
      {{{std::string(65, 'n'), 1}}, "1 to 64 bytes"},
      {{{"mood", Json::array({1})}}, "a number or a text"},
      {{{"mood", Json::object()}}, "a number or a text"},
      {{{"mood", std::string(4097, 'x')}}, "at most 4096 bytes"},
      {many, "at most 32 variables"},
      {Json::array({1}), "must be an object"},
      {"enable_thinking", "must be an object"},
  };
  for (const auto& [variables, why] : bad) {
    const HttpResponse response = bench_.Post(kChat, With(variables));
    EXPECT_EQ(response.status, 400) << variables;
    const Json error = Parsed(response)["error"];
    EXPECT_EQ(error["param"], "chat_template_kwargs");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(why));
  }
  // A completion has no template.
  const HttpResponse completion = bench_.Post(
      "/v1/completions", {{"prompt", "p"}, {"chat_template_kwargs", {{"enable_thinking", false}}}});
  EXPECT_EQ(completion.status, 400);
  EXPECT_TRUE(bench_.engine->requests.empty());
}

class RecordedTemplateVariablesTest : public RecordingProxyTest {
 protected:
  void SetUp() override {
    bench_.chat = tokenizer::ChatTemplate::Parse(kThinks).value();
    RecordingProxyTest::SetUp();
  }
};

TEST_F(RecordedTemplateVariablesTest, AConversationGoesOnUnderTheSameVariablesAlone) {
  const Json quiet = {{"chat_template_kwargs", {{"mood", "calm"}}}};
  bench_.engine->say = [](const GenerateRequest&) { return "so"; };
  Open();
  std::vector<Json> messages = {Message("user", "x")};
  messages.push_back(Ask(messages, quiet));
  messages.push_back(Message("user", "y"));
  // The template writes its variable at the end alone, so that the text before differs.
  Ask(messages);
  PostReward(1);
  Trajectory t = Close();
  EXPECT_EQ(Branches(t).size(), 2U);

  Open();
  messages = {Message("user", "x")};
  const Json thinking = {{"chat_template_kwargs", {{"enable_thinking", true}}}};
  messages.push_back(Ask(messages, thinking));
  messages.push_back(Message("user", "y"));
  Ask(messages, thinking);
  PostReward(1);
  t = Close();
  EXPECT_EQ(Branches(t).size(), 1U);
}

class BaseModelTest : public OpenAiServerTest {
 protected:
  void SetUp() override {
    bench_.chat.reset();
    Serve({});
  }
};

TEST_F(BaseModelTest, CompletionsAreAnsweredAndChatIsRefused) {
  EXPECT_EQ(bench_.Post("/v1/completions", {{"prompt", "p"}}).status, 200);
  EXPECT_EQ(bench_.Post("/inference/v1/generate", {{"token_ids", {1, 2}}}).status, 200);
  for (const Json& more : std::vector<Json>{
           Json::object(),
           {{"stream", true}},
           {{"tools", Json::parse(R"([{"type": "function", "function": {"name": "f"}}])")},
            {"tool_choice", "required"}}}) {
    const HttpResponse chat = bench_.Post(kChat, Ask(more));
    EXPECT_EQ(chat.status, 400);
    EXPECT_THAT(Parsed(chat)["error"]["message"].get<std::string>(),
                HasSubstr("no chat template (a base model)"));
  }
  EXPECT_EQ(bench_.engine->requests.size(), 2U);
}

}  // namespace
}  // namespace forebay::rollout::serving
