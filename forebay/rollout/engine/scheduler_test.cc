// The engine's choices: neither prefill nor decode starves, and every chunk and bucket fits.
#include "forebay/rollout/engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/rollout/engine/waiting.h"

namespace forebay::rollout {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SchedulerTest, ChoosesByLoad) {
  struct Case {
    Load load;
    Action expected;
  };
  const std::vector<Case> cases = {
      {{.prefill_max = 128}, Action::kIdle},
      {{.next_chunk = 64, .prefill_max = 128}, Action::kPrefill},
      {{.next_chunk = 64, .prefilled_since_decode = 900, .prefill_max = 128}, Action::kPrefill},
      {{.decoding = 1, .prefill_max = 128}, Action::kDecode},
      {{.decoding = 1, .next_chunk = 128, .prefill_max = 128}, Action::kPrefill},
      {{.decoding = 1, .next_chunk = 16, .prefilled_since_decode = 128, .prefill_max = 128},
       Action::kDecode},
      {{.decoding = 1, .next_chunk = 64, .prefilled_since_decode = 64, .prefill_max = 128},
       Action::kPrefill},
      {{.decoding = 15, .next_chunk = 128, .prefilled_since_decode = 16, .prefill_max = 128},
       Action::kDecode},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(NextAction(cases[i].load), cases[i].expected) << "case " << i;
  }
}

TEST(SchedulerTest, ChunksHoldWhatRemainsOrAreTheLargest) {
  const std::array<int64_t, 4> sizes = {16, 32, 64, 128};
  EXPECT_EQ(ChunkSize(sizes, 1), 16);
  EXPECT_EQ(ChunkSize(sizes, 16), 16);
  EXPECT_EQ(ChunkSize(sizes, 17), 32);
  EXPECT_EQ(ChunkSize(sizes, 128), 128);
  EXPECT_EQ(ChunkSize(sizes, 500), 128);
}

TEST(SchedulerTest, ChunksEndWithinTheContext) {
  EXPECT_EQ(ChunkStart(100, 16, 512), 100);
  EXPECT_EQ(ChunkStart(496, 16, 512), 496);
  EXPECT_EQ(ChunkStart(500, 16, 512), 496);
  EXPECT_EQ(ChunkStart(3, 16, 16), 0);
}

TEST(SchedulerTest, BucketsCoverTheEntries) {
  const std::array<int64_t, 3> buckets = {128, 256, 512};
  EXPECT_EQ(ContextBucket(buckets, 1), 128);
  EXPECT_EQ(ContextBucket(buckets, 128), 128);
  EXPECT_EQ(ContextBucket(buckets, 129), 256);
  EXPECT_EQ(ContextBucket(buckets, 512), 512);
  EXPECT_DEATH(ContextBucket(buckets, 513), "bucket");
}

TEST(WaitingQueueTest, PriorityThenArrival) {
  WaitingQueue<int> queue;
  queue.Push(5, TimePoint::max(), 1);
  queue.Push(3, TimePoint::max(), 2);
  queue.Push(5, TimePoint::max(), 3);
  queue.Push(-1, TimePoint::max(), 4);
  std::vector<int> order;
  while (!queue.empty()) order.push_back(queue.Pop());
  EXPECT_THAT(order, ElementsAre(4, 2, 1, 3));
}

TEST(WaitingQueueTest, TakesOutWhatHasExpired) {
  WaitingQueue<int> queue;
  const TimePoint start{};
  queue.Push(0, start + std::chrono::seconds(5), 1);
  queue.Push(1, start + std::chrono::seconds(2), 2);
  queue.Push(2, TimePoint::max(), 3);
  EXPECT_THAT(queue.TakeExpired(start + std::chrono::seconds(1)), IsEmpty());
  EXPECT_THAT(queue.TakeExpired(start + std::chrono::seconds(2)), ElementsAre(2));
  EXPECT_THAT(queue.TakeExpired(start + std::chrono::seconds(3)), IsEmpty());
  EXPECT_THAT(queue.TakeExpired(start + std::chrono::hours(1)), ElementsAre(1));
  EXPECT_EQ(queue.size(), 1);
  EXPECT_EQ(queue.Pop(), 3);
}

TEST(WaitingQueueTest, TakesOutWhatIsChosen) {
  WaitingQueue<int> queue;
  for (const int item : {1, 2, 3, 4}) queue.Push(0, TimePoint::max(), item);
  EXPECT_THAT(queue.TakeIf([](int item) { return item % 2 == 0; }), ElementsAre(2, 4));
  EXPECT_THAT(queue.TakeIf([](int item) { return item > 9; }), IsEmpty());
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 3);
}

}  // namespace
}  // namespace forebay::rollout
