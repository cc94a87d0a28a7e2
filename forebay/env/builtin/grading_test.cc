// Goal: the built-in rewards say what their rules say, the same as python/forebay/rewards.py, and
// never fail on what a policy wrote but by a typed error.
#include "forebay/env/builtin/grading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Grader Make(const Json& table) {
  auto grader = Grader::Parse(table);
  EXPECT_TRUE(grader.ok()) << grader.status().ToString();
  return std::move(*grader);
}

void ExpectGoldens(const std::string& name) {
  const auto text = ReadFile(std::string(FOREBAY_SOURCE_DIR) + "/tests/goldens/" + name);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const Json cases = Json::parse(*text);
  ASSERT_GT(cases.size(), 100U);
  for (const Json& one : cases) {
    const Grader grader = Make(one["grader"]);
    const auto answer = ParseAnswer(one["answer"]);
    ASSERT_TRUE(answer.ok()) << one.dump();
    EXPECT_TRUE(grader.Check(*answer).ok()) << one.dump();
    const auto score = grader.Score(one["text"].get<std::string>(), *answer);
    ASSERT_TRUE(score.ok()) << one.dump();
    EXPECT_EQ(*score, one["score"].get<double>()) << one.dump();
  }
}

TEST(Grading, EveryGoldenCase) { ExpectGoldens("rewards.json"); }

TEST(Grading, TextsMadeAtRandomScoreAsInPython) { ExpectGoldens("gen_rewards.json"); }

TEST(Grading, ATextThatCannotBeJudgedIsNoZero) {
  const Grader grader = Make({{"kind", "regex"}, {"pattern", "(a+)+$"}});
  const auto score = grader.Score(std::string(200, 'a') + "b", {});
  EXPECT_EQ(score.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(score.status().message(), HasSubstr("(a+)+$"));
}

TEST(Grading, NothingThatAPolicyWritesCrashesIt) {
  std::vector<Grader> graders;
  for (const char* extract :
       {"all", "last_line", "after_think", "hashes", "answer_tag", "boxed", "regex:(.)\\1"}) {
    graders.push_back(Make({{"kind", "exact"}, {"extract", extract}}));
    graders.push_back(Make({{"kind", "numeric"}, {"extract", extract}}));
  }
  for (const char* form : {"bare_number", "think_answer", "boxed", "json", "code_block"}) {
    graders.push_back(Make({{"kind", "format"}, {"form", form}}));
  }
  const std::vector<std::string> parts = {
      "<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "{",
      "####",    "```",      "\n",       "-",         "1",        ",", "/",
      ".",       "e9",       "\u2212",   "\xff",      " "};
  const Answer answer{.texts = {"5"}};
  Rng rng(1);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t n = rng.Below(40); n > 0; --n) text += parts[rng.Below(parts.size())];
    for (const Grader& grader : graders) EXPECT_TRUE(grader.Score(text, answer).ok()) << text;
  }
  for (const char* part : {"9", "{", "\\boxed{", "<think>", "1,", "- ", "```\n", ",111", "\xe2"}) {
    std::string text;
    while (text.size() < 300000) text += part;
    for (const Grader& grader : graders) EXPECT_TRUE(grader.Score(text, answer).ok()) << part;
  }
}

TEST(Grading, WrongTablesNameTheKey) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {Json::array(), "a reward is a table"},
      {Json::object(), "kind is one of exact, numeric, regex, format, not ''"},
      {{{"kind", "close"}}, "not 'close'"},
      {{{"kind", 3}}, "kind must be a text, not 3"},
      {{{"kind", "exact"}, {"wieght", 1}}, "no 'wieght'; it has: kind, name, weight"},
      {{{"kind", "exact"}, {"weight", "1"}}, "weight must be a number"},
      {{{"kind", "exact"}, {"fold", 1}}, "fold must be true or false"},
      {{{"kind", "exact"}, {"name", ""}}, "name has 1 to 128 bytes"},
      {{{"kind", "numeric"}, {"tolerance", -1}}, "tolerance"},
      {{{"kind", "exact"}, {"extract", "box"}}, "extract is one of all, last_line"},
      {{{"kind", "exact"}, {"extract", "regex:("}}, "'(' is no regular expression"},
      {{{"kind", "regex"}, {"pattern", "[a"}}, "'[a' is no regular expression"},
      {{{"kind", "format"}}, "form is one of bare_number"},
  };
  for (const auto& [table, text] : cases) {
    const auto grader = Grader::Parse(table);
    EXPECT_EQ(grader.status().code(), StatusCode::kInvalidArgument) << table.dump();
    EXPECT_THAT(grader.status().message(), HasSubstr(text));
  }
}

TEST(Grading, AnswersThatCannotBeComparedAreRefused) {
  EXPECT_FALSE(ParseAnswer(Json::object()).ok());
  EXPECT_FALSE(ParseAnswer(Json::array()).ok());
  EXPECT_FALSE(ParseAnswer(Json::array({1, nullptr})).ok());
  EXPECT_FALSE(ParseAnswer(true).ok());
  EXPECT_FALSE(Make({{"kind", "exact"}}).Check({}).ok());
  EXPECT_FALSE(Make({{"kind", "numeric"}}).Check({.texts = {"1", "one"}}).ok());
  EXPECT_FALSE(Make({{"kind", "regex"}}).Check({.texts = {"("}}).ok());
  EXPECT_TRUE(Make({{"kind", "regex"}, {"pattern", "x"}}).Check({}).ok());
  EXPECT_TRUE(Make({{"kind", "format"}, {"form", "json"}}).Check({}).ok());
}

}  // namespace
}  // namespace forebay::env
