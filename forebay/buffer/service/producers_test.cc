// Goal: a name has one holder at a time, over restarts, and no id is ever given twice.
#include "forebay/buffer/service/producers.h"

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "fmt/core.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/fake_buffer_testing.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

TEST(Producers, RegisteringAgainFencesTheOlderHolder) {
  const auto producers = Producers::Open("");
  ASSERT_TRUE(producers.ok());
  const auto first = (*producers)->Register("actor-1");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->epoch, 1);
  EXPECT_TRUE((*producers)->Resume("actor-1", first->secret).ok());
  const auto second = (*producers)->Register("actor-1");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->epoch, 2);
  EXPECT_NE(second->number, first->number);
  const Status fenced = (*producers)->Resume("actor-1", first->secret).status();
  EXPECT_EQ(fenced.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(fenced.message().find("actor-1"), std::string::npos);
  const auto resumed = (*producers)->Resume("actor-1", second->secret);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(resumed->number, second->number);
  EXPECT_FALSE((*producers)->Resume("actor-2", second->secret).ok());
}

TEST(Producers, OnlyItsOwnerReadsTheSecrets) {
  const TempFolder folder;
  const auto producers = Producers::Open(folder.path());
  ASSERT_TRUE(producers.ok());
  const std::string path = folder.path() + "/producers.json";
  ASSERT_TRUE(WriteFileAtomic(path + ".tmp", "left by an older build").ok());
  ASSERT_TRUE((*producers)->Register("a").ok());
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(Producers, SurvivesARestart) {
  const TempFolder folder;
  Producer old;
  Producer kept;
  {
    const auto producers = Producers::Open(folder.path());
    ASSERT_TRUE(producers.ok());
    old = *(*producers)->Register("a");
    kept = *(*producers)->Register("a");
  }
  const auto producers = Producers::Open(folder.path());
  ASSERT_TRUE(producers.ok()) << producers.status().message();
  EXPECT_TRUE((*producers)->Resume("a", kept.secret).ok());
  EXPECT_FALSE((*producers)->Resume("a", old.secret).ok());
  const auto next = (*producers)->Register("b");
  ASSERT_TRUE(next.ok());
  EXPECT_GT(next->number, kept.number);
}

TEST(Producers, TwoServersDoNotGiveTheSameIdsOut) {
  const TempFolder folder;
  auto first = Producers::Open(folder.path());
  ASSERT_TRUE(first.ok());
  const Status second = Producers::Open(folder.path()).status();
  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find("another process"), std::string::npos) << second.message();
  first->reset();
  EXPECT_TRUE(Producers::Open(folder.path()).ok());
}

// Ids that are given out again would be taken for repeated appends: acknowledged, and dropped.
TEST(Producers, WithoutItsFileNoIdOfTheBuffersIsGivenAgain) {
  const TempFolder folder;
  const int64_t last = (int64_t{7} << kProducerShift) + 5;
  const auto producers = Producers::Open(folder.path(), last + 1);
  ASSERT_TRUE(producers.ok());
  EXPECT_EQ((*producers)->Register("a")->number, 8);
  // An empty buffer.
  EXPECT_EQ((*Producers::Open("", 1))->Register("a")->number, 1);
}

TEST(Producers, ADamagedFileIsNotTakenForNone) {
  const TempFolder folder;
  for (const std::string content :
       {"", "{", "[]", R"({"next_number": 1})", R"({"next_number":2,"producers":{"a":1}})",
        R"({"next_number":1,"producers":{"a":{"number":1,"epoch":1,"secret":"00"}}})"}) {
    ASSERT_TRUE(WriteFileAtomic(folder.path() + "/producers.json", content).ok());
    EXPECT_EQ(Producers::Open(folder.path()).status().code(), StatusCode::kDataLoss) << content;
  }
}

TEST(Producers, WhatCannotBeKeptIsNotRegistered) {
  const TempFolder folder;
  const auto producers = Producers::Open(folder.path() + "/sub");
  ASSERT_TRUE(producers.ok());
  const auto first = (*producers)->Register("a");
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(std::system(("rm -r " + folder.path() + "/sub").c_str()), 0);
  EXPECT_FALSE((*producers)->Register("a").ok());
  // Whoever held it before still does.
  EXPECT_TRUE((*producers)->Resume("a", first->secret).ok());
}

TEST(Producers, ManyNamesStayBounded) {
  const auto producers = Producers::Open("");
  std::set<int64_t> numbers;
  Producer first;
  for (int i = 0; i < 10'050; ++i) {
    const auto producer = (*producers)->Register("p" + std::to_string(i));
    ASSERT_TRUE(producer.ok());
    if (i == 0) first = *producer;
    numbers.insert(producer->number);
  }
  EXPECT_EQ(numbers.size(), 10'050U);
  // The oldest is forgotten: refused, never mistaken.
  EXPECT_FALSE((*producers)->Resume("p0", first.secret).ok());
}

// Its epochs begin again, but whoever held it before the server forgot it must not append any more.
TEST(Producers, AForgottenNameIsFencedWhenItIsRegisteredAgain) {
  const TempFolder folder;
  const auto entry = [](int number, int epoch) {
    return fmt::format(R"({{"number":{},"epoch":{},"secret":"{:032x}"}})", number, epoch, number);
  };
  std::string names = R"("actor":)" + entry(1, 7);
  for (int i = 2; i <= 10'000; ++i) names += fmt::format(R"(,"p{}":{})", i, entry(i, 1));
  ASSERT_TRUE(WriteFileAtomic(folder.path() + "/producers.json",
                              R"({"next_number":10001,"producers":{)" + names + "}}")
                  .ok());
  FakeBuffer buffer({});
  ServerOptions options;
  options.listen = {"unix:" + folder.path() + "/s.sock"};
  options.folder = folder.path();
  const auto server = Server::Start({{"train", {.buffer = &buffer, .group_size = 1}}}, options);
  ASSERT_TRUE(server.ok()) << server.status().ToString();

  RawClient old(options.listen[0]);
  SessionSecret secret{};
  secret.back() = 1;
  ASSERT_TRUE(old.Send(
      HelloBytes({.version_min = 1, .version_max = 1, .producer = "actor", .secret = secret})));
  const auto welcome = old.Next();
  ASSERT_TRUE(welcome && welcome->header.type == FrameType::kWelcome);
  EXPECT_EQ(ParseWelcome(welcome->payload)->epoch, 7);
  RawClient another(options.listen[0]), again(options.listen[0]);
  ASSERT_TRUE(another.Greet("another"));  // "actor" was the oldest
  ASSERT_TRUE(again.Greet("actor"));
  EXPECT_EQ(again.welcome().epoch, 1);

  ASSERT_TRUE(old.Send(FrameBytes({.type = FrameType::kAppend, .request = 1, .argument = 1000},
                                  Record(int64_t{1} << kProducerShift, 1))));
  const auto answer = old.Next();
  ASSERT_TRUE(answer && answer->header.type == FrameType::kFailed);
  EXPECT_EQ(answer->header.argument, static_cast<uint32_t>(StatusCode::kFailedPrecondition));
  EXPECT_EQ(buffer.stored(), 0);
  ASSERT_TRUE(again.Send(FrameBytes({.type = FrameType::kAppend, .request = 1, .argument = 1000},
                                    Record(again.welcome().producer_number << kProducerShift, 1))));
  const auto accepted = again.Next();
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(accepted->header.type, FrameType::kAppended);
}

TEST(SameSecret, Compares) {
  EXPECT_TRUE(SameSecret("token", "token"));
  EXPECT_FALSE(SameSecret("token", "tokem"));
  EXPECT_FALSE(SameSecret("token", "token2"));
  EXPECT_FALSE(SameSecret("", "t"));
  EXPECT_TRUE(SameSecret("", ""));
}

}  // namespace
}  // namespace forebay::buffer
