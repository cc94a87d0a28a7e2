// Goal: with a chat template that knows no tools nothing of a request's tools, calls and results is
// dropped; with one that does nothing changes.
#include "forebay/rollout/serving/plain_tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {
namespace {

using ::testing::HasSubstr;

const char* const kTools =
    R"([{"type": "function", "function": {"name": "add", "description": "Adds.", "strict": true,
         "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}])";

TEST(PlainToolsTest, ToolsStandInTheSystemMessage) {
  Json messages = Json::parse(WithPlainTools(R"([{"role": "user", "content": "Hi"}])", kTools));
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0]["role"], "system");
  const auto text = messages[0]["content"].get<std::string>();
  EXPECT_THAT(text,
              HasSubstr(R"("name":"add","description":"Adds.","parameters":{"type":"object")"));
  EXPECT_THAT(text, HasSubstr("<tool_call>"));
  messages = Json::parse(WithPlainTools(
      R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])", kTools));
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0]["content"], "Be kind.\n\n" + text);
}

TEST(PlainToolsTest, CallsAndResultsAreText) {
  const Json messages = Json::parse(WithPlainTools(R"([
    {"role": "user", "content": "2 + 3 and 4 + 5?"},
    {"role": "assistant", "content": "I add.", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}},
      {"id": "2", "type": "function", "function": {"name": "add", "arguments": "no object"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "5"},
    {"role": "tool", "tool_call_id": "2", "content": "9"},
    {"role": "assistant", "content": "", "tool_calls": [
      {"id": "3", "type": "function", "function": {"name": "say", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "3", "content": ""}])",
                                                   ""));
  ASSERT_EQ(messages.size(), 5U);
  EXPECT_EQ(messages[1]["content"],
            "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":2}}\n</tool_call>\n"
            "<tool_call>\n{\"name\": \"add\", \"arguments\": no object}\n</tool_call>");
  EXPECT_FALSE(messages[1].contains("tool_calls"));
  EXPECT_EQ(messages[2],
            (Json{{"role", "user"},
                  {"content",
                   "<tool_response>\n5\n</tool_response>\n<tool_response>\n9\n</tool_response>"}}));
  EXPECT_EQ(messages[3]["content"],
            "<tool_call>\n{\"name\": \"say\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(messages[4]["content"], "<tool_response>\n\n</tool_response>");
}

TEST(PlainToolsTest, OnlyWhatMentionsToolsChanges) {
  EXPECT_FALSE(MentionsTools(R"([{"role": "user", "content": "Hi"}])", ""));
  EXPECT_TRUE(MentionsTools(R"([{"role": "user", "content": "Hi"}])", kTools));
  EXPECT_TRUE(MentionsTools(R"([{"role": "tool", "content": "Hi"}])", ""));
  EXPECT_TRUE(MentionsTools(
      R"([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}])",
      ""));
}

TEST(PlainToolsTest, ATemplateThatWritesToolsKnowsThem) {
  Bench bench;
  ServedModel model = bench.model();
  EXPECT_FALSE(KnowsTools(model));
  const auto knows = [&](const std::string& source) {
    const auto chat = tokenizer::ChatTemplate::Parse(source).value();
    model.chat = chat.get();
    return KnowsTools(model);
  };
  EXPECT_TRUE(knows("{% for t in tools %}{{ t.function.name }}{% endfor %}"));
  EXPECT_TRUE(knows("{{ tools | tojson }}"));
  EXPECT_TRUE(knows("{{ raise_exception('a conversation begins with a system message') }}"));
  EXPECT_FALSE(knows("{% if tools %}There are tools.{% endif %}"));
  model.chat = nullptr;
  EXPECT_FALSE(KnowsTools(model));
}

}  // namespace
}  // namespace forebay::rollout::serving
