// One publisher at a time: who gets the gate, and what becomes of the one before.
#include "forebay/rollout/serving/publisher_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"

namespace forebay::rollout::serving {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr Duration kSilence = seconds(15);

TimePoint At(int second) { return TimePoint{} + seconds(second); }

TEST(PublisherGateTest, TheHolderKeepsItsTicket) {
  PublisherGate gate("i", kSilence);
  EXPECT_EQ(gate.Check("i-0", At(0)).code(), StatusCode::kFailedPrecondition);  // nobody has come
  const auto ticket = gate.Enter({"run", 1}, At(0));
  ASSERT_TRUE(ticket.ok());
  EXPECT_TRUE(gate.Check(*ticket, At(1)).ok());
  EXPECT_EQ(*gate.Enter({"run", 1}, At(100)), *ticket);
  EXPECT_TRUE(gate.Check(*ticket, At(200)).ok());
}

TEST(PublisherGateTest, AnotherRunWaitsUntilTheHolderIsSilent) {
  PublisherGate gate("i", kSilence);
  const std::string first = *gate.Enter({"a", 1}, At(0));
  ASSERT_TRUE(gate.Check(first, At(10)).ok());
  const Status held = gate.Enter({"b", 2}, At(20)).status();
  EXPECT_EQ(held.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(held.message(), HasSubstr("'a' gives weights to this server"));
  EXPECT_THAT(held.message(), HasSubstr("10.0 s ago"));
  const auto second = gate.Enter({"b", 2}, At(25));
  ASSERT_TRUE(second.ok());
  const Status fenced = gate.Check(first, At(26));
  EXPECT_EQ(fenced.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(fenced.message(), HasSubstr("'b' gives weights to this server now"));
  EXPECT_TRUE(gate.Check(*second, At(26)).ok());
  EXPECT_EQ(gate.Enter({"a", 1}, At(27)).status().code(), StatusCode::kAlreadyExists);
}

TEST(PublisherGateTest, TheSameRunTakesOverAtOnceAndItsOldProcessIsHeldOffWhileItLives) {
  PublisherGate gate("i", kSilence);
  const std::string killed = *gate.Enter({"run", 1}, At(0));
  const auto resumed = gate.Enter({"run", 2}, At(0));
  ASSERT_TRUE(resumed.ok());
  EXPECT_NE(*resumed, killed);
  EXPECT_EQ(gate.Check(killed, At(1)).code(), StatusCode::kFailedPrecondition);
  const Status held = gate.Enter({"run", 1}, At(1)).status();
  EXPECT_EQ(held.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(held.message(), HasSubstr("a younger process of 'run'"));
  for (int second = 1; second < 1000; second += 14) {
    ASSERT_TRUE(gate.Check(*resumed, At(second)).ok());
    EXPECT_FALSE(gate.Enter({"run", 1}, At(second + 13)).ok());
  }
}

TEST(PublisherGateTest, AProcessWhoseClockWasSetBackTakesOverFromASilentOneOfItsRun) {
  PublisherGate gate("i", kSilence);
  const std::string killed = *gate.Enter({"run", INT64_MAX}, At(0));
  // The attempts of the resumed process are no signs of life of the one before.
  for (const int second : {1, 8, 14}) EXPECT_FALSE(gate.Enter({"run", 7}, At(second)).ok());
  const auto resumed = gate.Enter({"run", 7}, At(15));
  ASSERT_TRUE(resumed.ok()) << resumed.status().ToString();
  EXPECT_TRUE(gate.Check(*resumed, At(15)).ok());
  EXPECT_EQ(gate.Check(killed, At(16)).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(gate.Enter({"run", 8}, At(16)).ok());  // and loses it to a younger one, as ever
}

TEST(PublisherGateTest, ATicketOfAnotherProcessIsKnownForWhatItIs) {
  PublisherGate before("before", kSilence);
  const std::string ticket = *before.Enter({"run", 1}, At(0));
  PublisherGate after("after", kSilence);
  EXPECT_EQ(after.Check(ticket, At(0)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(after.Check("", At(0)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(after.Check("after-99", At(0)).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace forebay::rollout::serving
