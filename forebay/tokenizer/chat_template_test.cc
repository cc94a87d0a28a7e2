// ChatTemplate: renders what transformers renders, and refuses hostile templates with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::tokenizer {
namespace {

using ::testing::HasSubstr;

const std::vector<Message> kMessages = {{"system", "Be brief."}, {"user", " Hi é "}};
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f<x>","n":1.0,"tiny":1e-7,"big":1e20,"ok":true,"none":null,"é":[]}}])";

Result<std::string> Render(std::string_view source, const ChatTemplate::Options& options = {}) {
  auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)->Render(kMessages, options);
}

struct Case {
  std::string_view source, expected;
};

// Expected texts are what Jinja2 and transformers' environment give.
TEST(ChatTemplateTest, RendersAsTransformersDoes) {
  const std::vector<Case> cases = {
      {"{% for m in messages %}<|{{ m.role }}|>{{ m['content'] }}{% endfor %}",
       "<|system|>Be brief.<|user|> Hi é "},
      // trim_blocks and lstrip_blocks
      {"a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"},
      {"{{ messages[1].content.strip() | upper }}{{ 'a-b'.split('-')[1] }}", "HI Éb"},
      {"{{ messages[0].role.startswith('sys') }} {{ none }} {{ [1, 'a'] }}", "True None [1, 'a']"},
      {"{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
       "role=system;content=Be brief.;"},
      {"{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor "
       "%}{{ ns.n }}",
       "2"},
      {"{% for m in messages %}{{ loop.index0 }}{% break %}{% endfor %}", "0"},
      {"{{ tools is none }}{{ documents is none }}{{ missing is defined }}", "TrueTrueFalse"},
      {"{{ messages[1:] | length }}{{ messages[-1]['role'] }}", "1user"},
      {"a {%- generation -%} b {%- endgeneration %} c", "ab c"},
      {"{{ '<&>' }}{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}", "<&><s></s>True"},
      {"{{ strftime_now('%d %b %Y %H:%M') }}", "13 Feb 2009 23:31"},
      {"{{ [1.5e300, 0.0001, 1e16, 9999999999999998.0, 0.00001] | tojson }}",
       "[1.5e+300, 0.0001, 1e+16, 9999999999999998.0, 1e-05]"},
      {"{{ messages[0] | tojson }}", R"({"role": "system", "content": "Be brief."})"},
  };
  const ChatTemplate::Options options{.add_generation_prompt = true,
                                      .bos_token = "<s>",
                                      .eos_token = "</s>",
                                      .now_unix_s = 1'234'567'890};
  for (const Case& c : cases) {
    const auto text = Render(c.source, options);
    ASSERT_TRUE(text.ok()) << c.source << ": " << text.status().ToString();
    EXPECT_EQ(*text, c.expected) << c.source;
  }
}

TEST(ChatTemplateTest, ToolsAreWrittenAsPythonWritesThem) {
  const ChatTemplate::Options options{.tools_json = kTools};
  EXPECT_EQ(
      *Render("{{ tools[0] | tojson }}", options),
      R"({"type": "function", "function": {"name": "f<x>", "n": 1.0, "tiny": 1e-07, "big": 1e+20, "ok": true, )"
      R"("none": null, "é": []}})");
  EXPECT_EQ(*Render("{{ {'a': [1, {}], 'b': 'x'} | tojson(indent=2) }}", options),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": \"x\"\n}");
  EXPECT_EQ(
      *Render("{{ {'b': 1, 'a': 'é🙂'} | tojson(sort_keys=true, ensure_ascii=true) }}", options),
      R"({"a": "\u00e9\ud83d\ude42", "b": 1})");
}

TEST(ChatTemplateTest, TheTemplatesOwnErrorReachesTheCaller) {
  const auto text = Render("{{ raise_exception('roles must alternate') }}");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(text.status().message(), HasSubstr("roles must alternate"));
}

TEST(ChatTemplateTest, ATemplateThatDoesNotParseNamesItsLine) {
  const auto parsed = ChatTemplate::Parse("a\nb {% for %}\n");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(parsed.status().message(), HasSubstr(":2"));
  const std::string deep = "{{ " + std::string(100'000, '(') + " }}";
  for (const std::string& bad : {std::string("{% generation"), std::string("{{ a"),
                                 std::string("\xff"), std::string("{% endfor %}"), deep}) {
    EXPECT_FALSE(ChatTemplate::Parse(bad).ok()) << bad.substr(0, 40);
  }
}

TEST(ChatTemplateTest, RunawayTemplatesEnd) {
  for (const std::string_view source :
       {"{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{{ 'x' * 100000000000 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ strftime_now('%Q') }}", "{{ 1 | tojson(indent=1000000000000) }}",
        "{{ messages[9].role.x }}", "{{ 1 // 0 }}"}) {
    const auto text = Render(source);
    ASSERT_FALSE(text.ok()) << source;
    EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument) << source;
  }
}

TEST(ChatTemplateTest, BadInputIsRefused) {
  const auto chat_template = ChatTemplate::Parse("{{ messages[0].content }}");
  ASSERT_TRUE(chat_template.ok());
  const std::vector<Message> not_utf8 = {{"user", "\xff"}};
  EXPECT_EQ((*chat_template)->Render(not_utf8, {}).status().code(), StatusCode::kInvalidArgument);
  for (const char* tools : {"{}", "[", "1", "null"}) {
    const auto text = (*chat_template)->Render(kMessages, {.tools_json = tools});
    ASSERT_FALSE(text.ok()) << tools;
    EXPECT_THAT(text.status().message(), HasSubstr("not a JSON array"));
  }
}

TEST(ChatTemplateTest, VariablesOfItsOwnAreGivenOthersAreReserved) {
  constexpr const char* kSource =
      "{% if think is defined and think is false %}no{% endif %}{{ add_generation_prompt }} "
      "{{ name }} {{ 1 + n }}";
  EXPECT_EQ(*Render(kSource, {.variables_json = R"({"think":false,"name":"é{{ x }}","n":2})"}),
            "noFalse é{{ x }} 3");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token",
                           "strftime_now", "__forebay_now_unix_s"}) {
    EXPECT_TRUE(ChatTemplate::IsReserved(name)) << name;
    const auto text = Render("x", {.variables_json = std::string(R"({")") + name + R"(":1})"});
    ASSERT_FALSE(text.ok()) << name;
    EXPECT_THAT(text.status().message(), HasSubstr(name));
  }
  EXPECT_FALSE(ChatTemplate::IsReserved("enable_thinking"));
  for (const char* bad : {"[]", "{", "1", "null"}) {
    EXPECT_THAT(Render("x", {.variables_json = bad}).status().message(),
                HasSubstr("not a JSON object"));
  }
}

TEST(ChatTemplateTest, MessagesMayHaveMoreThanARoleAndContent) {
  const auto chat_template = ChatTemplate::Parse(
      "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}"
      "{{ c.function | tojson }}{% endfor %}{% endfor %}");
  ASSERT_TRUE(chat_template.ok());
  EXPECT_EQ(*(*chat_template)
                 ->RenderJson(R"([{"role":"a","tool_calls":[{"function":{"z":1,"b":[]}}]},)"
                              R"({"role":"t","content":null}])",
                              {}),
            R"(a{"z": 1, "b": []}t)");
  for (const char* bad : {"{}", "[", "1", ""}) {
    EXPECT_EQ((*chat_template)->RenderJson(bad, {}).status().code(), StatusCode::kInvalidArgument);
  }
}

// Fields a user writes cannot break out of their place: no escaping happens, and none is needed.
TEST(ChatTemplateTest, ContentIsNotATemplate) {
  const auto chat_template = ChatTemplate::Parse("{{ messages[0].content }}");
  ASSERT_TRUE(chat_template.ok());
  const std::vector<Message> messages = {{"user", std::string("{{ 1 + 1 }}{% if %}\0\n", 21)}};
  EXPECT_EQ(*(*chat_template)->Render(messages, {}), messages[0].content);
}

}  // namespace
}  // namespace forebay::tokenizer
