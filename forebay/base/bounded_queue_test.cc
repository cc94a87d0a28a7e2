// Goal: the queue bounds, orders and ends as documented, also under several threads.
#include "forebay/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace forebay {
namespace {

TimePoint In(int ms) { return Now() + std::chrono::milliseconds(ms); }

TEST(BoundedQueueTest, RefusesAboveItsCapacityAndKeepsOrder) {
  BoundedQueue<int> queue(2);
  ASSERT_TRUE(queue.TryPush(1).ok());
  ASSERT_TRUE(queue.TryPush(2).ok());
  EXPECT_EQ(queue.TryPush(3).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(queue.Push(3, In(1)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue.Pop(In(1)), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
  EXPECT_EQ(queue.Pop(In(1)), std::nullopt);
}

TEST(BoundedQueueTest, CloseDrainsThenEnds) {
  BoundedQueue<int> queue(2);
  ASSERT_TRUE(queue.TryPush(1).ok());
  queue.Close();
  EXPECT_EQ(queue.TryPush(2).code(), StatusCode::kUnavailable);
  EXPECT_EQ(queue.Push(2, In(1000)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(queue.Pop(In(1000)), 1);
  EXPECT_EQ(queue.Pop(TimePoint::max()), std::nullopt);
}

TEST(BoundedQueueTest, ManyThreadsLoseNothing) {
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(8);
  std::vector<std::thread> producers;
  for (int p = 0; p < 3; ++p) {
    producers.emplace_back([&queue] {
      for (int i = 1; i <= kEach; ++i) ASSERT_TRUE(queue.Push(i, In(60000)).ok());
    });
  }
  int64_t sum = 0;
  for (int i = 0; i < 3 * kEach; ++i) sum += queue.Pop(In(60000)).value_or(-1000000);
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(sum, int64_t{3} * kEach * (kEach + 1) / 2);
}

}  // namespace
}  // namespace forebay
