// Goal: whoever sends JSON that is none learns what is wrong and at which byte.
#include "forebay/rollout/serving/bounded_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace forebay::rollout::serving {
namespace {

using ::testing::HasSubstr;

std::string Problem(const std::string& text) {
  std::string problem;
  EXPECT_FALSE(ParseBounded(text, &problem).has_value()) << text.substr(0, 100);
  EXPECT_LT(problem.size(), 400U);
  EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
  return problem;
}

TEST(BoundedJsonTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string text, what;
  };
  const std::vector<Case> cases = {
      {"", "is empty"},
      {" \n", "is empty"},
      {R"({"a": 1)", "at byte 7, after '{\"a\": 1': the text ends too early"},
      {R"({"a": "b)", "at byte 8, after '{\"a\": \"b': the text ends within a string"},
      {"{\"a\": \"\xff\"}", "at byte 7, after '{\"a\": \"': a byte is not UTF-8"},
      {"{\"a\": \"\xe4\xbd\"}", "a byte is not UTF-8"},
      {R"({"a": 1} x)", "at byte 9, after '{\"a\": 1} ': there is more text after the end"},
      {"{}{}", "at byte 2, after '{}': there is more text after the end"},
      {R"({"a": 1e999})", "at byte 6, after '{\"a\": ': the number 1e999 is out of the range"},
      {R"({"a": NaN})", "invalid literal"},
      {R"({'a': 1})", "at byte 1, after '{': invalid literal; expected string literal"},
      {R"({"a": 1,})", "at byte 8"},
      {"{\"a\": \"x\ny\"}", "control character U+000A (LF) must be escaped"},
      {R"({"a": "\ud800"})", "surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF"},
      {std::string(4, '\0'), "at byte 0: a NUL byte"},
      {std::string("{\"a\": \0}", 8), "at byte 6, after '{\"a\": ': a NUL byte"},
      {std::string(65, '['),
       "at byte 64, after '" + std::string(24, '[') + "': values are nested more than 64 deep"},
  };
  for (const Case& one : cases) EXPECT_THAT(Problem(one.text), HasSubstr(one.what)) << one.text;

  std::string crowded = "{";
  for (int i = 0; i <= 1024; ++i) crowded += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_THAT(Problem(crowded + "}"), HasSubstr("an object has more than 1024 members"));
  // What is quoted is short, whatever stands there.
  Problem("{\"" + std::string(100'000, 'k') + "\": " + std::string(100'000, '9') + "x}");
  Problem("[" + std::string(100'000, '9') + "]");
  Problem("[\"" + std::string(100'000, 'k') + "\xff");
}

TEST(BoundedJsonTest, ReadsWhatIsJson) {
  EXPECT_EQ(ParseBounded(" [1, \"\u00e9\"] ")->dump(), "[1,\"\u00e9\"]");
  EXPECT_EQ(ParseBounded(R"({"a": 1, "a": 2})")->dump(), R"({"a":2})");
  EXPECT_TRUE(ParseBounded(std::string(64, '[') + std::string(64, ']')).has_value());
}

}  // namespace
}  // namespace forebay::rollout::serving
