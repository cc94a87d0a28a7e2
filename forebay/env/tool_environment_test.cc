// Who gets what the model writes: the tools their calls, the environment the rest.
#include "forebay/env/tool_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/calculator.h"
#include "forebay/env/environment.h"
#include "forebay/env/sandbox_tools.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"
#include "forebay/env/tools/text.h"
#include "forebay/env/tools_testing.h"

namespace forebay::env {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Result<ToolResult> Echo(const ToolCall& call) {
  if (call.name == "refuse") return ToolResult{.text = "not today", .error = true};
  if (call.name == "die") return Unavailable("the tool's server has gone");
  return ToolResult{.text = call.name + call.arguments};
}

std::string CallOf(const std::string& name, const std::string& arguments = "{}") {
  return "<tool_call>{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}</tool_call>";
}

class ToolEnvironmentTest : public ::testing::Test {
 public:
  void Open(std::vector<std::unique_ptr<ToolProvider>> providers,
            ToolEnvironmentOptions options = {}, std::vector<Message> first = {{"user", "Go."}}) {
    auto pool =
        MakeToolEnvironment(*loop_, AnswerPool(std::move(first)), std::move(providers), options);
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    pool_ = std::move(*pool);
    environment_ = std::move(*Await(*loop_, pool_->Acquire(Soon())));
    messages_ = Await(*loop_, environment_->Reset({}, Soon()));
  }
  void Open(ToolEnvironmentOptions options = {}, std::vector<Message> first = {{"user", "Go."}}) {
    std::vector<std::unique_ptr<ToolProvider>> providers;
    providers.push_back(FunctionTools({"a", "refuse", "die"}, Echo));
    providers.push_back(FunctionTools({"b"}, Echo));
    Open(std::move(providers), options, std::move(first));
  }
  Result<StepResult> Step(std::string action) {
    return Await(*loop_, environment_->Step(std::move(action), Soon()));
  }
  TimePoint Soon() const { return loop_->Now() + seconds(60); }

  std::unique_ptr<Loop> loop_ = MakeLoop();
  std::unique_ptr<EnvironmentPool> pool_;
  std::unique_ptr<Environment> environment_;
  Result<std::vector<Message>> messages_ = Internal("no reset yet");
};

TEST_F(ToolEnvironmentTest, CallsGoToTheirToolsAndAnAnswerToTheEnvironment) {
  Open();
  const auto step = Step("Let me see." + CallOf("b", R"({"x": 1})") + CallOf("a"));
  ASSERT_TRUE(step.ok());
  EXPECT_THAT(step->messages, ElementsAre(Message{"tool", R"(b{"x":1})"}, Message{"tool", "a{}"}));
  EXPECT_FALSE(step->done);
  EXPECT_THAT(step->rewards, IsEmpty());
  EXPECT_EQ(step->tool, "b");
  const auto end = Step("right");
  EXPECT_TRUE(end->done);
  EXPECT_EQ(end->rewards.at("answer"), 1);
}

TEST_F(ToolEnvironmentTest, WhatTheModelDoesWrongIsToldToIt) {
  Open();
  const auto step = Step(CallOf("c") + CallOf("refuse") + "<tool_call>{oops</tool_call>");
  ASSERT_THAT(step->messages, SizeIs(3));
  EXPECT_EQ(step->messages[0].content, "error: there is no tool 'c'; there are: a, refuse, die, b");
  EXPECT_EQ(step->messages[1].content, "error: not today");
  EXPECT_THAT(step->messages[2].content, HasSubstr("cannot be read"));
  EXPECT_THAT(step->messages[2].content, HasSubstr("{oops"));
  EXPECT_FALSE(step->done);
}

TEST_F(ToolEnvironmentTest, AToolThatFailsIsNotTheModelsFault) {
  Open();
  EXPECT_EQ(Step(CallOf("a") + CallOf("die")).status().code(), StatusCode::kUnavailable);
}

TEST_F(ToolEnvironmentTest, TheTemplateIsToldOfTheTools) {
  Open();
  const auto tools = nlohmann::json::parse(environment_->tools_json());
  ASSERT_EQ(tools.size(), 4U);
  EXPECT_EQ(tools[0]["type"], "function");
  EXPECT_EQ(tools[3]["function"]["name"], "b");
  EXPECT_EQ(tools[3]["function"]["description"], "the tool b");
  EXPECT_EQ(tools[3]["function"]["parameters"]["type"], "object");
  EXPECT_THAT(*messages_, ElementsAre(Message{"user", "Go."}));
}

TEST_F(ToolEnvironmentTest, OrTheModelIsToldInASystemMessage) {
  const ToolEnvironmentOptions options{.prompt = ToolEnvironmentOptions::Prompt::kSystem};
  Open(options);
  EXPECT_EQ(environment_->tools_json(), "");
  ASSERT_THAT(*messages_, SizeIs(2));
  EXPECT_EQ((*messages_)[0].role, "system");
  EXPECT_THAT((*messages_)[0].content, HasSubstr(R"("name":"refuse")"));
  EXPECT_EQ(Step(CallOf("a"))->messages[0],
            (Message{"user", "<tool_response>\na{}\n</tool_response>"}));
  // Behind a system message that is there.
  Open(options, {{"system", "Be brief."}, {"user", "Go."}});
  ASSERT_THAT(*messages_, SizeIs(2));
  EXPECT_THAT((*messages_)[0].content, ::testing::StartsWith("Be brief.\n\n"));
}

TEST_F(ToolEnvironmentTest, CallsAndResultsAreBounded) {
  std::vector<std::unique_ptr<ToolProvider>> providers;
  providers.push_back(FunctionTools({"big"}, [](const ToolCall&) {
    return ToolResult{.text = "<" + std::string(100'000, 'x') + "\xff>"};
  }));
  Open(std::move(providers), {.calls_per_turn_max = 2, .result_bytes_max = 100});
  const auto step = Step(CallOf("big") + CallOf("big") + CallOf("big"));
  ASSERT_THAT(step->messages, SizeIs(3));
  EXPECT_LT(step->messages[1].content.size(), 200U);
  EXPECT_THAT(step->messages[1].content, HasSubstr("bytes left out"));
  EXPECT_THAT(step->messages[1].content, ::testing::EndsWith("\xef\xbf\xbd>"));
  EXPECT_EQ(step->messages[2].content, "error: at most 2 calls in one turn are answered");
}

TEST_F(ToolEnvironmentTest, ResultsComeInTheOrderInWhichTheModelAskedForThem) {
  Open(ToolEnvironmentOptions{.calls_per_turn_max = 4});
  const std::string broken = "<tool_call>{\"name\": </tool_call>";
  const auto step =
      Step(CallOf("a") + broken + CallOf("b") + CallOf("nothing") + broken + CallOf("a"));
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  ASSERT_THAT(step->messages, SizeIs(6));
  const std::vector<std::string> says = {"a{}",        "cannot be read", "b{}",
                                         "no tool 'n", "at most 4",      "at most 4"};
  for (size_t i = 0; i < says.size(); ++i) {
    EXPECT_THAT(step->messages[i].content, HasSubstr(says[i])) << i;
  }
}

TEST_F(ToolEnvironmentTest, TwoToolsOfOneNameFailTheReset) {
  std::vector<std::unique_ptr<ToolProvider>> providers;
  providers.push_back(FunctionTools({"a"}, Echo));
  providers.push_back(FunctionTools({"a"}, Echo));
  Open(std::move(providers));
  EXPECT_EQ(messages_.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(messages_.status().message(), HasSubstr("'a'"));
}

TEST_F(ToolEnvironmentTest, WrongOptionsAreRefused) {
  const auto make = [this](size_t tools, const ToolEnvironmentOptions& options) {
    std::vector<std::unique_ptr<ToolProvider>> providers;
    for (size_t i = 0; i < tools; ++i) providers.push_back(MakeCalculator());
    return MakeToolEnvironment(*loop_, AnswerPool({}), std::move(providers), options)
        .status()
        .code();
  };
  EXPECT_EQ(make(0, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(1, {.calls_per_turn_max = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(1, {.result_bytes_max = 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(1, {.call_deadline = seconds(0)}), StatusCode::kInvalidArgument);
}

TEST_F(ToolEnvironmentTest, TheCalculatorCalculates) {
  std::vector<std::unique_ptr<ToolProvider>> providers;
  providers.push_back(MakeCalculator());
  Open(std::move(providers));
  const auto ask = [this](const std::string& arguments) {
    return Step(CallOf("calculator", arguments))->messages[0].content;
  };
  EXPECT_EQ(ask(R"j({"expression": "12 * (3 + 4)"})j"), "84");
  EXPECT_EQ(ask(R"({"expression": "1 / 0"})"), "error: division by zero");
  EXPECT_THAT(ask(R"({"expr": "1"})"), HasSubstr("needs the argument"));
  EXPECT_THAT(ask(R"({"expression": 7})"), HasSubstr("needs the argument"));
}

TEST_F(ToolEnvironmentTest, PythonAndShellRunInTheSandbox) {
  auto tools = MakeSandboxTools(*loop_, {.shell = true, .sandbox = {.wall_max = seconds(20)}});
  ASSERT_TRUE(tools.ok()) << tools.status().ToString();
  std::vector<std::unique_ptr<ToolProvider>> providers;
  providers.push_back(std::move(*tools));
  Open(std::move(providers));
  const auto ask = [this](const std::string& name, const nlohmann::json& arguments) {
    return Step(CallOf(name, arguments.dump()))->messages[0].content;
  };
  EXPECT_EQ(ask("python", {{"code", "print(6 * 7)"}}), "42\n");
  EXPECT_EQ(ask("shell", {{"command", "echo a; echo b >&2; exit 4"}}), "a\nb\n[exit code 4]");
  EXPECT_THAT(ask("python", {{"code", "1 / 0"}}), HasSubstr("ZeroDivisionError"));
  EXPECT_THAT(ask("python", {{"code", "x = 1"}}), HasSubstr("no output"));
  EXPECT_THAT(ask("python", {{"code", 1}}), HasSubstr("needs the argument"));
  EXPECT_THAT(ask("shell", {{"command", std::string(200'000, 'x')}}), HasSubstr("too long"));
  EXPECT_EQ(MakeSandboxTools(*loop_, {.python = false}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(CalculatorTest, ExpressionsAndWhatIsWrongWithThem) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1+2*3", "7"},
      {" ( 1 + 2 ) * 3 ", "9"},
      {"2**3**2", "512"},
      {"-2**2", "-4"},
      {"2**-1", "0.5"},
      {"7//2", "3"},
      {"-7//2", "-4"},
      {"-7%3", "2"},
      {"0.1+0.2", "0.30000000000000004"},
      {"1e3", "1000"},
      {"10/4", "2.5"},
      {"3 - -2", "5"},
      {"123456789*987654321", "121932631112635270"},
      {"2^10", "1024"}};
  for (const auto& [expression, value] : cases) {
    const Result<std::string> result = Calculate(expression);
    ASSERT_TRUE(result.ok()) << expression << ": " << result.status().ToString();
    EXPECT_NEAR(std::stod(*result), std::stod(value), 1e-12 * std::abs(std::stod(value)))
        << expression;
    if (value.size() < 15) {
      EXPECT_EQ(*result, value);
    }
  }
  for (const std::string& wrong :
       {std::string(), std::string("1+"), std::string("(1"), std::string("1)"), std::string("a"),
        std::string("1 2"), std::string("1//0"), std::string("5%0"), std::string("10**1000"),
        std::string("1e999"), std::string("nan"), std::string("(-1)**0.5"), std::string(500, '('),
        std::string(900, '-') + "1", std::string(2000, '1')}) {
    const Result<std::string> result = Calculate(wrong);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(PrintableTextTest, BytesThatAreNoTextAreReplaced) {
  EXPECT_EQ(PrintableText("a\xff"
                          "b",
                          100),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(PrintableText("é漢😀", 100), "é漢😀");
  EXPECT_EQ(PrintableText("\xc3", 100), "\xef\xbf\xbd");
  EXPECT_EQ(PrintableText("\xed\xa0\x80", 100), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(PrintableText("\xc0\xaf", 100), "\xef\xbf\xbd\xef\xbf\xbd");
  std::string long_text;
  for (int i = 0; i < 100; ++i) long_text += "漢";
  EXPECT_EQ(PrintableText(long_text, 20), "漢漢漢\n[... 282 bytes left out ...]\n漢漢漢");
}

}  // namespace
}  // namespace forebay::env
