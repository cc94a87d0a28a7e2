// Goal: every line of the protocol is read as what it says or refused with a reason; the stream is
// bounded.
#include "forebay/env/subprocess/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env {
namespace {

using ::testing::HasSubstr;

TEST(Wire, RequestsAreOneJsonObjectALine) {
  const std::string reset = ResetLine(7, 3, {.task_id = 12, .split = "eval", .seed = UINT64_MAX},
                                      std::chrono::milliseconds(1500));
  EXPECT_EQ(reset.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(reset);
  EXPECT_EQ(json["op"], "reset");
  EXPECT_EQ(json["id"], 7);
  EXPECT_EQ(json["episode"], 3);
  EXPECT_EQ(json["task"], 12);
  EXPECT_EQ(json["split"], "eval");
  EXPECT_EQ(json["seed"].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(json["deadline_s"], 1.5);
  EXPECT_EQ(nlohmann::json::parse(CloseLine(3)), nlohmann::json({{"op", "close"}, {"episode", 3}}));
}

TEST(Wire, AnActionMayHoldNewlinesAndBytesThatAreNotText) {
  const std::string line = StepLine(1, 1, "a\nb\xff\"", std::chrono::seconds(1));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(line)["action"], "a\nb\xEF\xBF\xBD\"");
}

TEST(Wire, AnswerWithEverything) {
  const auto reply = ParseReply(
      R"({"id":9,"messages":[{"role":"tool","content":"no"}],"rewards":{"a":1,"b":-0.5},"done":true,"tool":"t",)"
      R"("reward_us":12,"unknown":[1]})");
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  const auto& answer = std::get<AnswerReply>(*reply);
  EXPECT_EQ(answer.id, 9U);
  EXPECT_EQ(answer.result.messages, (std::vector<Message>{{"tool", "no"}}));
  EXPECT_EQ(answer.result.rewards.at("a"), 1.0);
  EXPECT_EQ(answer.result.rewards.at("b"), -0.5);
  EXPECT_TRUE(answer.result.done);
  EXPECT_EQ(answer.result.tool, "t");
  EXPECT_EQ(answer.result.reward_us, 12);
}

TEST(Wire, B2_ErrorsSayWhoseFaultItIs) {
  const auto environment = ParseReply(R"({"id":1,"error":"environment","message":"boom"})");
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(std::get<ErrorReply>(*environment).status, Internal("boom"));
  const auto grader = ParseReply(R"({"id":1,"error":"grader","message":"boom","rewards":{"r":0}})");
  ASSERT_TRUE(grader.ok());
  EXPECT_EQ(std::get<ErrorReply>(*grader).status, FailedPrecondition("boom"));
}

TEST(Wire, AnotherProtocolVersionIsNotGarbage) {
  EXPECT_TRUE(ParseReply(R"({"forebay_env":1,"name":"x"})").ok());
  EXPECT_EQ(ParseReply(R"({"forebay_env":2})").status().code(), StatusCode::kUnimplemented);
}

TEST(Wire, GarbageIsDataLossWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"hello", "not JSON"},
      {"{\"id\":1", "not JSON"},
      {"\xff\xfe", "not JSON"},
      {std::string(100000, '['), "not JSON"},
      {"[1]", "not a JSON object"},
      {"{}", "none of"},
      {R"({"id":-1})", "'id'"},
      {R"({"id":"1"})", "'id'"},
      {R"({"id":1.5})", "'id'"},
      {R"({"closed":"x"})", "'closed'"},
      {R"({"forebay_env":"1"})", "'forebay_env'"},
      {R"({"id":1,"messages":"hi"})", "'messages'"},
      {R"({"id":1,"messages":[1]})", "'messages'"},
      {R"({"id":1,"messages":[{"role":"user"}]})", "'messages'"},
      {R"({"id":1,"messages":[{"role":"developer","content":""}]})", "role"},
      {R"({"id":1,"rewards":1.0})", "'rewards'"},
      {R"({"id":1,"rewards":{"a":"1"}})", "'a'"},
      {R"({"id":1,"rewards":{"a":null}})", "'a'"},
      {R"({"id":1,"rewards":{"a":1e999}})", "not JSON"},
      {R"({"id":1,"rewards":{"a":NaN}})", "not JSON"},
      {R"({"id":1,"rewards":{"":1}})", "name"},
      {R"({"id":1,"done":1})", "'done'"},
      {R"({"id":1,"tool":7})", "'tool'"},
      {R"({"id":1,"reward_us":-5})", "'reward_us'"},
      {R"({"id":1,"error":"user","message":"x"})", "environment or grader"},
      {R"({"id":1,"error":"grader"})", "'message'"},
      {R"({"id":1,"error":7,"message":"x"})", "'error'"},
  };
  for (const auto& [line, why] : cases) {
    const auto reply = ParseReply(line);
    ASSERT_FALSE(reply.ok()) << line;
    EXPECT_EQ(reply.status().code(), StatusCode::kDataLoss) << line;
    EXPECT_THAT(reply.status().message(), HasSubstr(why)) << line.substr(0, 80);
    EXPECT_LT(reply.status().message().size(), 400U);
  }
}

TEST(Wire, TooManyMessagesOrComponentsAreRefused) {
  nlohmann::json json = {{"id", 1}};
  for (size_t i = 0; i <= kMessagesMax; ++i)
    json["messages"].push_back({{"role", "user"}, {"content", ""}});
  EXPECT_EQ(ParseReply(json.dump()).status().code(), StatusCode::kDataLoss);
  json = {{"id", 1}};
  for (size_t i = 0; i <= kRewardsMax; ++i) json["rewards"][std::to_string(i)] = 1;
  EXPECT_EQ(ParseReply(json.dump()).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(ParseReply(R"({"id":1,"tool":")" + std::string(kNameBytesMax + 1, 'x') + "\"}")
                .status()
                .code(),
            StatusCode::kDataLoss);
}

std::vector<std::string> Lines(LineSplitter& lines) {
  std::vector<std::string> all;
  while (true) {
    const auto line = lines.Next();
    if (!line.ok()) return {line.status().ToString()};
    if (!line->has_value()) return all;
    all.emplace_back(**line);
  }
}

TEST(Wire, LinesComeOutWhateverTheChunks) {
  const std::string stream = "one\n\nthree\nrest";
  for (size_t chunk = 1; chunk <= stream.size(); ++chunk) {
    LineSplitter lines(16);
    std::vector<std::string> all;
    for (size_t i = 0; i < stream.size(); i += chunk) {
      lines.Feed(stream.substr(i, chunk));
      for (auto& line : Lines(lines)) all.push_back(line);
    }
    EXPECT_EQ(all, (std::vector<std::string>{"one", "", "three"})) << chunk;
  }
}

TEST(Wire, ALineThatIsTakenLeavesTheOthersWhole) {
  const std::string stream = "one\n\n0123456789\nfour\nrest";
  for (size_t chunk = 1; chunk <= stream.size(); ++chunk) {
    LineSplitter lines(16);
    std::vector<std::string> all;
    for (size_t i = 0; i < stream.size(); i += chunk) {
      lines.Feed(stream.substr(i, chunk));
      for (auto line = lines.Next(); line.ok() && line->has_value(); line = lines.Next()) {
        all.push_back(lines.TakeLine());
      }
    }
    lines.Feed("\n");
    EXPECT_TRUE(lines.Next().ok());
    all.push_back(lines.TakeLine());
    EXPECT_EQ(all, (std::vector<std::string>{"one", "", "0123456789", "four", "rest"})) << chunk;
  }
}

TEST(Wire, ALineTooLongIsRefusedWithAndWithoutItsEnd) {
  LineSplitter open(8);
  open.Feed("12345678");
  EXPECT_TRUE(open.Next().ok());
  open.Feed("9");
  EXPECT_EQ(open.Next().status().code(), StatusCode::kDataLoss);
  LineSplitter whole(8);
  whole.Feed("123456789\n");
  EXPECT_EQ(whole.Next().status().code(), StatusCode::kDataLoss);
  LineSplitter fits(8);
  fits.Feed("12345678\n");
  EXPECT_EQ(Lines(fits), (std::vector<std::string>{"12345678"}));
}

}  // namespace
}  // namespace forebay::env
