// Appends: what is refused, what waits, what is sent twice, and who is woken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

using testing::HasSubstr;

class AppendTest : public testing::TestWithParam<Durability> {
 protected:
  BufferOptions Options() const {
    return {.folder = folder_.path() + "/log",
            .durability = GetParam(),
            .group_size = 4,
            .max_staleness = 2,
            .segment_bytes = 1 << 16};
  }
  std::unique_ptr<Buffer> Open(const BufferOptions& options) {
    Recovery recovery;
    Result<std::unique_ptr<Buffer>> buffer =
        Buffer::Open(options, 0, events_.Listener(), &recovery);
    EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
    EXPECT_EQ(recovery.next_trajectory_id, 1);
    EXPECT_EQ(recovery.next_group_id, 0);
    return std::move(*buffer);
  }
  TestFolder folder_;
  Events events_;
};

TEST_P(AppendTest, InvalidAndOversizedTrajectoriesAreRefusedAndStayInFlight) {
  BufferOptions options = Options();
  options.record_bytes_max = 2000;
  auto buffer = Open(options);
  ASSERT_TRUE(buffer->Dispatch(TestId(0, 0)).ok());
  Trajectory bad = SimpleTrajectory(TestId(0, 0), 1);
  bad.loss_mask.pop_back();
  EXPECT_EQ(AppendAndWait(*buffer, bad).code(), StatusCode::kInvalidArgument);
  const Status large = AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0), 1, 4000, 4));
  EXPECT_EQ(large.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(large.message(), HasSubstr("record_bytes_max 2000"));
  EXPECT_EQ(buffer->ledger().in_flight, 1);
  EXPECT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0), 1)).ok());
}

// About 16 KiB, so that few of them fill the smallest buffer.
Trajectory Large(const TrajectoryId& id) { return SimpleTrajectory(id, 1, 4000, 4); }

// The smallest buffer there is: five segments of 64 KiB.
constexpr int64_t kSmallestBytes = 5 << 16;
BufferOptions Smallest(BufferOptions options) {
  options.memory_bytes_max = options.disk_bytes_max = 1;
  return options;
}

// Dispatches and appends members of groups of four until there is no room; gives how many fitted.
int32_t FillUp(Buffer& buffer, Status* full) {
  for (int32_t n = 0;; ++n) {
    const TrajectoryId id = TestId(n / 4, n % 4);
    EXPECT_TRUE(buffer.Dispatch(id).ok());
    *full = AppendAndWait(buffer, Large(id), 0.05);
    if (!full->ok()) return n;
  }
}

TEST_P(AppendTest, BackpressureWaitsWithoutAThreadUntilTheDeadlineOrRoom) {
  auto buffer = Open(Smallest(Options()));
  Status full;
  const int32_t fitted = FillUp(*buffer, &full);
  ASSERT_GE(fitted, 4);
  EXPECT_LE(fitted, 16);
  EXPECT_EQ(full.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(full.message(), HasSubstr("of 327680 bytes of"));
  EXPECT_LE(buffer->stats().memory_bytes, kSmallestBytes);
  EXPECT_LE(buffer->stats().disk_bytes, kSmallestBytes);
  EXPECT_EQ(buffer->ledger().in_flight, 1);
  EXPECT_EQ(buffer->ledger().pending, fitted);
  // The attempt is still in flight: this append gets through once a batch was trained on.
  std::atomic<int> done{0};
  buffer->Append(Large(TestId(fitted / 4, fitted % 4)), In(60), [&](const Status& status) {
    EXPECT_TRUE(status.ok()) << status.ToString();
    ++done;
  });
  EXPECT_EQ(done.load(), 0);
  Result<Batch> batch = buffer->Lease(1, 1, In(10));
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(*batch->trajectories[3], Large(TestId(0, 3)));
  ASSERT_TRUE(buffer->MarkTrained(batch->sequence).ok());
  ASSERT_TRUE(buffer->Commit(batch->sequence).ok());
  for (int i = 0; i < 6000 && done.load() == 0; ++i) std::this_thread::sleep_for(FromSeconds(0.01));
  EXPECT_EQ(done.load(), 1);
  EXPECT_GT(buffer->stats().append_wait_seconds, 0);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_P(AppendTest, AnAttemptRejectedWhileItsAppendWaitsIsLate) {
  auto buffer = Open(Smallest(Options()));
  Status full;
  const int32_t fitted = FillUp(*buffer, &full);
  const TrajectoryId id = TestId(fitted / 4, fitted % 4);
  Status answer;
  std::atomic<bool> told{false};
  buffer->Append(Large(id), In(60), [&](const Status& status) {
    answer = status;
    told = true;
  });
  ASSERT_TRUE(buffer->Reject(id, RejectReason::kOutcome).ok());
  for (int i = 0; i < 6000 && !told.load(); ++i) std::this_thread::sleep_for(FromSeconds(0.01));
  EXPECT_EQ(answer.code(), StatusCode::kNotFound);
  EXPECT_EQ(buffer->ledger().late, 1);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_P(AppendTest, CloseWakesEverybodyAndLeavesCommitsPossible) {
  auto buffer = Open(Smallest(Options()));
  Status full;
  const int32_t fitted = FillUp(*buffer, &full);
  const TrajectoryId id = TestId(fitted / 4, fitted % 4);
  std::atomic<int> unavailable{0};
  buffer->Append(Large(id), In(600), [&](const Status& status) {
    if (status.code() == StatusCode::kUnavailable) ++unavailable;
  });
  std::thread learner([&] {
    if (buffer->Lease(100, 1, In(600)).status().code() == StatusCode::kUnavailable) ++unavailable;
  });
  buffer->Close();
  buffer->Close();
  learner.join();
  EXPECT_EQ(unavailable.load(), 2);
  EXPECT_EQ(buffer->Dispatch(TestId(10, 0)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(AppendAndWait(*buffer, Large(id)).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(buffer->Reject(id, RejectReason::kClosed).ok());
  EXPECT_TRUE(buffer->Commit(0).ok());
  EXPECT_TRUE(buffer->ledger().balanced());
}

// An id that is another's but for its attempt or task was once taken for it, and ended the process
// where the log has 16 bits for the attempt.
TEST_P(AppendTest, AnIdIsAllOfIt) {
  auto buffer = Open(Options());
  const TrajectoryId id = TestId(0, 0);
  ASSERT_TRUE(buffer->Dispatch(id).ok());
  for (const TrajectoryId& other : {TrajectoryId{id.trajectory_id, 0, 0, -1, id.task_id},
                                    {id.trajectory_id, 0, 0, 1 << 20, 7},
                                    {id.trajectory_id, 0, 0, 1, id.task_id},
                                    {id.trajectory_id, 0, 0, 0, id.task_id + 1}}) {
    EXPECT_EQ(buffer->Reject(other, RejectReason::kOutcome).code(), StatusCode::kNotFound);
    std::string encoded = Encode(SimpleTrajectory(id, 1));
    std::memcpy(encoded.data() + 48, &other.attempt, sizeof(other.attempt));
    std::memcpy(encoded.data() + 52, &other.task_id, sizeof(other.task_id));
    ASSERT_EQ(PeekId(encoded), other);
    EXPECT_EQ(buffer->AppendEncodedAndWait(encoded, {.deadline = In(60)}).code(),
              StatusCode::kNotFound);
  }
  EXPECT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(id, 1)).ok());
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_P(AppendTest, BytesMustBeThoseOfTheTrajectoryThatTheCallerLookedAt) {
  BufferOptions options = Options();
  options.implied_dispatch = true;
  auto buffer = Open(options);
  const std::string encoded = Encode(SimpleTrajectory(TestId(0, 0), 1));
  const int64_t own = TestId(0, 0).trajectory_id;
  EXPECT_EQ(
      buffer->AppendEncodedAndWait(encoded, {.deadline = In(60), .trajectory_id = own + 1}).code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer->ledger().dispatched, 0);
  // While it waits, another attempt under its number is no repetition of it.
  buffer->Pause(/*appends=*/true, /*readers=*/false);
  std::promise<Status> stored;
  buffer->AppendEncoded(encoded, {.deadline = In(60), .trajectory_id = own},
                        [&](Status status) { stored.set_value(std::move(status)); });
  std::string other = encoded;
  other[48] = 1;  // the attempt
  EXPECT_EQ(buffer->AppendEncodedAndWait(other, {.deadline = In(60)}).code(),
            StatusCode::kInvalidArgument);
  buffer->Pause(false, false);
  EXPECT_TRUE(buffer->AppendEncodedAndWait(encoded, {.deadline = In(60)}).ok());
  EXPECT_TRUE(stored.get_future().get().ok());
  buffer->Close();
}

// Nobody listens, so that appends are acknowledged without the table's lock where they can be.
std::unique_ptr<Buffer> OpenUnheard(BufferOptions options) {
  options.implied_dispatch = true;
  options.group_size = 1;
  Result<std::unique_ptr<Buffer>> buffer = Buffer::Open(options, 0, {}, nullptr);
  EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
  return std::move(*buffer);
}

TEST_P(AppendTest, WhatIsAcknowledgedIsSeenAtOnce) {
  auto buffer = OpenUnheard(Options());
  for (int64_t n = 0; n < 200; ++n) {
    const TrajectoryId id = TestId(n, 0);
    ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(id, 1)).ok());
    switch (n % 4) {
      case 0:
        ASSERT_EQ(buffer->ledger().pending, 1);
        break;
      case 1:
        ASSERT_EQ(buffer->stats().appends, n + 1);
        break;
      case 2:
        ASSERT_EQ(buffer->Inspect(n, 1).at(0).members.at(0), MemberState::kPending);
        break;
      default:
        break;
    }
    const Result<Taken> taken = buffer->Take({.groups = 1, .learner_version = 1}, TimePoint());
    ASSERT_TRUE(taken.ok()) << taken.status().ToString();
    ASSERT_EQ(taken->trajectories.at(0).id, id);
    ASSERT_TRUE(buffer->Acknowledge(taken->take_id).ok());
  }
  EXPECT_TRUE(buffer->ledger().balanced());
}

// A lost wake-up would hang here.
TEST_P(AppendTest, EachAppendWakesTheReaderThatWaitsForIt) {
  auto buffer = OpenUnheard(Options());
  constexpr int64_t kRounds = 500;
  std::atomic<int64_t> taken{0};
  std::thread reader([&] {
    while (taken < kRounds) {
      const Result<Taken> one = buffer->Take({.groups = 1, .learner_version = 1}, In(600));
      ASSERT_TRUE(one.ok()) << one.status().ToString();
      ASSERT_TRUE(buffer->Acknowledge(one->take_id).ok());
      ++taken;
    }
  });
  for (int64_t n = 0; n < kRounds; ++n) {
    ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(n, 0), 1), 600).ok());
    while (taken <= n) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(buffer->ledger().trained, kRounds);
}

// The second waits for the first, and is told what the first was told.
TEST_P(AppendTest, D2_WhatTwoSendAtOnceIsStoredOnceAndBothAreTold) {
  auto buffer = OpenUnheard(Options());
  constexpr int64_t kIds = 300;
  constexpr int kSenders = 3;
  std::vector<std::thread> senders;
  senders.reserve(kSenders);
  for (int i = 0; i < kSenders; ++i) {
    senders.emplace_back([&] {
      for (int64_t n = 0; n < kIds; ++n) {
        const Status told = AppendAndWait(*buffer, SimpleTrajectory(TestId(n, 0), 1), 600);
        ASSERT_TRUE(told.ok()) << told.ToString();
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(buffer->ledger().pending, kIds);
  EXPECT_EQ(buffer->stats().appends, kIds);
  EXPECT_EQ(buffer->stats().duplicates, kIds * (kSenders - 1));
  EXPECT_EQ(buffer->ledger().late, 0);
}

INSTANTIATE_TEST_SUITE_P(Durabilities, AppendTest,
                         testing::Values(Durability::kMemory, Durability::kOs, Durability::kSync),
                         [](const testing::TestParamInfo<Durability>& info) {
                           return std::string(info.param == Durability::kMemory ? "Memory"
                                              : info.param == Durability::kOs   ? "Os"
                                                                                : "Sync");
                         });

}  // namespace
}  // namespace forebay::buffer
