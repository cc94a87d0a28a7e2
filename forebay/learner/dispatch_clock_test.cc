// Goal: every moment between two completions is either busy or idle, whatever the order in which
// pieces are handed over and completed.
#include "forebay/learner/dispatch_clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

#include "forebay/base/clock.h"

namespace forebay::learner {
namespace {

TimePoint At(double seconds) { return TimePoint() + FromSeconds(seconds); }

TEST(DispatchClockTest, IdleIsBeforeAndBetweenPieces) {
  DispatchClock clock(At(1));
  EXPECT_TRUE(clock.Idle());
  const int64_t a = clock.Enqueued(At(2));
  EXPECT_FALSE(clock.Idle());
  clock.Completed(a, At(5));
  const int64_t b = clock.Enqueued(At(5.5));
  clock.Completed(b, At(7));
  EXPECT_TRUE(clock.Idle());
  const auto spans = clock.Take(b + 1, At(9));
  EXPECT_DOUBLE_EQ(spans.idle_seconds, 1.5);
  EXPECT_DOUBLE_EQ(spans.busy_seconds, 4.5);
}

TEST(DispatchClockTest, WorkHandedOverInTimeLeavesNoGap) {
  DispatchClock clock(At(0));
  const int64_t a = clock.Enqueued(At(0));
  const int64_t b = clock.Enqueued(At(1));
  clock.Completed(a, At(3));
  clock.Completed(b, At(8));
  const auto first = clock.Take(a + 1, At(8));
  EXPECT_DOUBLE_EQ(first.busy_seconds, 3);
  EXPECT_DOUBLE_EQ(first.idle_seconds, 0);
  const auto second = clock.Take(b + 1, At(8));
  EXPECT_DOUBLE_EQ(second.busy_seconds, 5);  // from the completion before
  EXPECT_DOUBLE_EQ(second.idle_seconds, 0);
}

TEST(DispatchClockTest, PiecesThatOverlapAreCountedOnce) {
  DispatchClock clock(At(0));
  const int64_t a = clock.Enqueued(At(0));
  const int64_t b = clock.Enqueued(At(0));
  clock.Completed(b, At(2));  // out of order
  clock.Completed(a, At(3));
  const auto spans = clock.Take(b + 1, At(3));
  EXPECT_DOUBLE_EQ(spans.busy_seconds, 3);
  EXPECT_DOUBLE_EQ(spans.idle_seconds, 0);
}

TEST(DispatchClockTest, APieceThatIsTakenBeforeItsCompletionCountsToThen) {
  DispatchClock clock(At(0));
  const int64_t a = clock.Enqueued(At(1));
  const auto spans = clock.Take(a + 1, At(4));
  EXPECT_DOUBLE_EQ(spans.busy_seconds, 3);
  EXPECT_DOUBLE_EQ(spans.idle_seconds, 1);
  EXPECT_TRUE(clock.Idle());
  clock.Completed(a, At(100));  // late: changes nothing
  const int64_t b = clock.Enqueued(At(6));
  clock.Completed(b, At(7));
  clock.Completed(b, At(70));  // twice: neither
  const auto next = clock.Take(b + 1, At(7));
  EXPECT_DOUBLE_EQ(next.busy_seconds, 1);
  EXPECT_DOUBLE_EQ(next.idle_seconds, 2);
}

TEST(DispatchClockTest, ForgottenIdleTimeIsNobodys) {
  DispatchClock clock(At(0));
  const int64_t a = clock.Enqueued(At(1));
  clock.Completed(a, At(2));
  clock.Take(a + 1, At(2));
  clock.ForgetIdle(At(10));
  clock.ForgetIdle(At(5));  // an earlier one takes nothing back
  const int64_t b = clock.Enqueued(At(10.5));
  clock.Completed(b, At(11));
  const auto spans = clock.Take(b + 1, At(11));
  EXPECT_DOUBLE_EQ(spans.idle_seconds, 0.5);
  EXPECT_DOUBLE_EQ(spans.busy_seconds, 0.5);
}

TEST(DispatchClockTest, AStallCountsFromTheLastPieceThatEnded) {
  DispatchClock clock(At(0));
  EXPECT_DOUBLE_EQ(clock.StalledSeconds(At(100)), 0);  // idle
  const int64_t a = clock.Enqueued(At(100));
  const int64_t b = clock.Enqueued(At(101));
  EXPECT_DOUBLE_EQ(clock.StalledSeconds(At(103)), 3);
  clock.Completed(a, At(104));
  EXPECT_DOUBLE_EQ(clock.StalledSeconds(At(106)), 2);
  EXPECT_TRUE(clock.Await(a, 0));
  EXPECT_FALSE(clock.Await(b, 0));  // at once: it has been no time at all
  clock.Completed(b, At(107));
  EXPECT_DOUBLE_EQ(clock.StalledSeconds(At(200)), 0);
  EXPECT_TRUE(clock.Await(b, 0));
}

TEST(DispatchClockTest, AWaitEndsWithThePieceOrWithTheStall) {
  DispatchClock clock(Now());
  const int64_t a = clock.Enqueued(Now());
  const int64_t b = clock.Enqueued(Now());
  std::thread device([&] { clock.Completed(a, Now()); });
  EXPECT_TRUE(clock.Await(a, 1e6));
  device.join();
  EXPECT_FALSE(clock.Await(b, 0.01));
}

TEST(DispatchClockTest, TakingMoreThanThereIsEndsWithTheLastPiece) {
  DispatchClock clock(At(0));
  EXPECT_DOUBLE_EQ(clock.Take(5, At(1)).busy_seconds, 0);
  const int64_t a = clock.Enqueued(At(1));
  EXPECT_EQ(a, 0);
  clock.Completed(a, At(2));
  EXPECT_DOUBLE_EQ(clock.Take(5, At(2)).busy_seconds, 1);
}

}  // namespace
}  // namespace forebay::learner
