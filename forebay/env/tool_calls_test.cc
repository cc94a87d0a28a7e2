// What models write, and which calls are in it: files of cases (tests/goldens/tool_calls), the same
// cut anywhere, and hostile texts.
#include "forebay/env/tool_calls.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/rng.h"

namespace forebay::env {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Case {
  std::string name;
  ToolSyntax syntax;
  std::string input, text;
  std::vector<ToolCall> calls;
  std::vector<std::string> broken;
};

ToolSyntax SyntaxOf(std::string_view names) {
  const auto has = [names](std::string_view name) {
    return names.find(name) != std::string_view::npos;
  };
  return {.tags = has("tags"),
          .python_tag = has("python_tag"),
          .bare_json = has("bare_json"),
          .fences = has("fences")};
}

std::vector<Case> ReadCases() {
  std::vector<Case> cases;
  const std::string folder = std::string(FOREBAY_SOURCE_DIR) + "/tests/goldens/tool_calls";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const auto& path : files) {
    std::ifstream file(path);
    std::string line;
    std::string* block = nullptr;
    bool first = true;
    while (std::getline(file, line)) {
      const auto rest = [&line](std::string_view mark) {
        return line.starts_with(mark) ? line.substr(std::min(line.size(), mark.size())) : "";
      };
      if (line.starts_with("=== ")) {
        cases.push_back({.name = path.stem().string() + ": " + rest("=== ")});
        block = nullptr;
      } else if (line == "--- input" || line == "--- text") {
        block = line == "--- input" ? &cases.back().input : &cases.back().text;
        first = true;
      } else if (line.starts_with("--- syntax ")) {
        cases.back().syntax = SyntaxOf(rest("--- syntax "));
      } else if (line.starts_with("--- call ")) {
        const std::string call = rest("--- call ");
        const size_t space = call.find(' ');
        cases.back().calls.push_back(
            {.name = call.substr(0, space), .arguments = call.substr(space + 1)});
      } else if (line.starts_with("--- broken ")) {
        cases.back().broken.push_back(rest("--- broken "));
      } else {
        EXPECT_NE(block, nullptr) << path << ": " << line;
        if (block == nullptr) continue;
        if (!std::exchange(first, false)) block->push_back('\n');
        block->append(line);
      }
    }
  }
  return cases;
}

ToolAnswer Collect(std::vector<ToolEvent> events, ToolAnswer answer = {}) {
  for (ToolEvent& event : events) {
    if (event.kind == ToolEvent::Kind::kText) answer.text += event.text;
    if (event.kind == ToolEvent::Kind::kCall) answer.calls.push_back(event.call);
    if (event.kind == ToolEvent::Kind::kBroken) {
      answer.broken.push_back(
          {.text = event.text, .reason = event.reason, .calls_before = answer.calls.size()});
    }
  }
  return answer;
}

// `piece(rng)` says how many bytes come next.
template <typename Piece>
ToolAnswer InPieces(std::string_view text, const ToolSyntax& syntax, Piece piece) {
  ToolCallParser parser(syntax);
  ToolAnswer answer;
  while (!text.empty()) {
    const size_t bytes = std::min(text.size(), static_cast<size_t>(piece()));
    answer = Collect(parser.Feed(text.substr(0, bytes)), std::move(answer));
    text.remove_prefix(bytes);
  }
  return Collect(parser.Finish(), std::move(answer));
}

void ExpectSame(const ToolAnswer& a, const ToolAnswer& b) {
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.calls, b.calls);
  EXPECT_EQ(a.broken, b.broken);
}

TEST(ToolCallsTest, EveryCaseOfTheFiles) {
  const std::vector<Case> cases = ReadCases();
  EXPECT_GT(cases.size(), 50U);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const ToolAnswer answer = ParseToolAnswer(c.input, c.syntax);
    EXPECT_EQ(answer.text, c.text);
    EXPECT_EQ(answer.calls, c.calls);
    EXPECT_THAT(answer.broken, SizeIs(c.broken.size()));
    for (size_t i = 0; i < std::min(answer.broken.size(), c.broken.size()); ++i) {
      EXPECT_THAT(answer.broken[i].reason, HasSubstr(c.broken[i]));
      EXPECT_THAT(c.input, HasSubstr(answer.broken[i].text));
    }
    for (const ToolCall& call : answer.calls) {
      EXPECT_TRUE(nlohmann::json::parse(call.arguments, nullptr, false).is_object());
    }
  }
}

TEST(ToolCallsTest, PiecesGiveWhatTheWholeGives) {
  for (const Case& c : ReadCases()) {
    SCOPED_TRACE(c.name);
    const ToolAnswer whole = ParseToolAnswer(c.input, c.syntax);
    ExpectSame(InPieces(c.input, c.syntax, [] { return 1; }), whole);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Rng rng(seed);
      ExpectSame(InPieces(c.input, c.syntax, [&rng] { return 1 + rng.Below(9); }), whole);
    }
  }
}

TEST(ToolCallsTest, AnyTextIsAnAnswerHoweverItIsCut) {
  const std::vector<std::string_view> parts = {"<tool_call>",
                                               "</tool_call>",
                                               "<|python_tag|>",
                                               "<|eom_id|>",
                                               "```",
                                               "```json\n",
                                               "\n",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               "\"",
                                               "\\",
                                               ";",
                                               "\"name\"",
                                               ": ",
                                               "\"f\"",
                                               ", ",
                                               "text",
                                               "<",
                                               " ",
                                               "<think>",
                                               "</think>",
                                               "{\"name\": \"f\", \"arguments\": {}}",
                                               "\"arguments\": {}",
                                               "{\"name\"",
                                               "\xc3",
                                               "`",
                                               "tool_call\n"};
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    std::string text;
    const uint64_t length = rng.Below(24);
    for (uint64_t i = 0; i < length; ++i) text += parts[rng.Below(parts.size())];
    SCOPED_TRACE(text);
    const ToolAnswer whole = ParseToolAnswer(text);
    ExpectSame(InPieces(text, {}, [&rng] { return 1 + rng.Below(5); }), whole);
    for (const BrokenToolCall& broken : whole.broken) EXPECT_FALSE(broken.reason.empty());
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ToolCallsTest, TextIsNotHeldBackLongerThanItMayBeACall) {
  ToolCallParser parser;
  const auto text = [&parser](std::string_view piece) { return Collect(parser.Feed(piece)).text; };
  EXPECT_EQ(text("Hello wor"), "Hello wor");
  EXPECT_EQ(text("ld <"), "ld");
  EXPECT_EQ(text("b>"), " <b>");
  EXPECT_EQ(text("\n{\"x"), "");
  EXPECT_EQ(text("yz\": 1"), "\n{\"xyz\": 1");
  EXPECT_EQ(text("} <tool_"), "}");
  EXPECT_THAT(parser.Feed("call>{\"name\": \"f\", "), IsEmpty());
  const std::vector<ToolEvent> events = parser.Feed("\"arguments\": {}}</tool_call>");
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].call.name, "f");
  EXPECT_THAT(parser.Finish(), IsEmpty());
  EXPECT_EQ(parser.calls(), 1U);
}

TEST(ToolCallsTest, CallsAreCountedUpToALimit) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const ToolAnswer answer = ParseToolAnswer(text);
  EXPECT_THAT(answer.calls, SizeIs(kToolCallsMax));
  EXPECT_THAT(answer.text, ::testing::StartsWith("<tool_call>"));
}

TEST(ToolCallsTest, ACallThatIsTooLongIsBroken) {
  const std::string text = R"(<tool_call>{"name": "f", "arguments": {"x": ")" +
                           std::string(kToolCallBytesMax, 'x') + R"("}}</tool_call>)";
  const ToolAnswer whole = ParseToolAnswer(text);
  EXPECT_THAT(whole.calls, IsEmpty());
  ASSERT_THAT(whole.broken, SizeIs(1));
  EXPECT_THAT(whole.broken[0].reason, HasSubstr("longer than"));
  EXPECT_THAT(whole.broken[0].text, SizeIs(kToolCallBytesMax));
  ExpectSame(InPieces(text, {}, [] { return 1000; }), whole);
  const std::string name(kToolNameBytesMax + 1, 'n');
  EXPECT_THAT(ParseToolAnswer(fmt::format(R"(<tool_call>{{"name": "{}"}}</tool_call>)", name))
                  .broken.at(0)
                  .reason,
              HasSubstr("too long"));
}

TEST(ToolCallsTest, DeepOrWideJsonIsRefusedBeforeItIsRead) {
  const std::string deep = R"(<tool_call>{"name": "f", "arguments": {"x": )" +
                           std::string(100'000, '[') + std::string(100'000, ']') + "}}</tool_call>";
  EXPECT_THAT(ParseToolAnswer(deep).broken.at(0).reason, HasSubstr("too large"));
  std::string wide = R"(<tool_call>{"name": "f", "arguments": {)";
  for (int i = 0; i < 60'000; ++i) wide += fmt::format("\"k{}\": 1, ", i);
  wide += "\"last\": 1}}</tool_call>";
  EXPECT_THAT(ParseToolAnswer(wide).broken.at(0).reason, HasSubstr("too large"));
}

}  // namespace
}  // namespace forebay::env
