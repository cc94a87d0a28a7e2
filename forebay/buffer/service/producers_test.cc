// Goal: a name has one holder at a time, over restarts, and no id is ever given twice.
#include "forebay/buffer/service/producers.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
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

TEST(SameSecret, Compares) {
  EXPECT_TRUE(SameSecret("token", "token"));
  EXPECT_FALSE(SameSecret("token", "tokem"));
  EXPECT_FALSE(SameSecret("token", "token2"));
  EXPECT_FALSE(SameSecret("", "t"));
  EXPECT_TRUE(SameSecret("", ""));
}

}  // namespace
}  // namespace forebay::buffer
