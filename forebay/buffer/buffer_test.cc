// What the Buffer promises to actors and the learner while one process lives, with and without a
// log.
#include "forebay/buffer/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class BufferTest : public testing::TestWithParam<Durability> {
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

TEST_P(BufferTest, GivesOutWholeGroupsSortedWhateverTheOrderOfArrival) {
  auto buffer = Open(Options());
  for (const int32_t member : {2, 0, 3, 1}) {
    for (const int64_t group : {1, 0}) ASSERT_TRUE(buffer->Dispatch(TestId(group, member)).ok());
  }
  EXPECT_EQ(buffer->ledger().in_flight, 8);
  for (const int32_t member : {3, 1, 0, 2}) {
    for (const int64_t group : {1, 0}) {
      ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(group, member), 5)).ok());
      EXPECT_TRUE(buffer->ledger().balanced());
    }
  }
  EXPECT_EQ(buffer->stats().ready_groups, 2);
  EXPECT_EQ(events_.Pending().size(), 8U);
  Result<Batch> batch = buffer->Lease(2, 5, In(10));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->sequence, 1);
  EXPECT_EQ(batch->learner_version, 5);
  EXPECT_FALSE(batch->replay);
  ASSERT_EQ(batch->trajectories.size(), 8U);
  for (int64_t i = 0; i < 8; ++i) {
    const TrajectoryId id = TestId(i / 4, static_cast<int32_t>(i % 4));
    EXPECT_EQ(*batch->trajectories[static_cast<size_t>(i)], SimpleTrajectory(id, 5));
  }
  EXPECT_EQ(buffer->ledger().pending, 8);
  EXPECT_TRUE(buffer->MarkTrained(1).ok());
  EXPECT_TRUE(buffer->MarkTrained(1).ok());
  EXPECT_EQ(buffer->ledger().trained, 8);
  // In memory nothing is ever replayed.
  EXPECT_EQ(buffer->stats().kept_bytes == 0, GetParam() == Durability::kMemory);
  EXPECT_TRUE(buffer->Commit(1).ok());
  EXPECT_TRUE(buffer->Commit(1).ok());
  EXPECT_TRUE(buffer->Commit(0).ok());
  EXPECT_EQ(buffer->Commit(2).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(buffer->MarkTrained(7).code(), StatusCode::kNotFound);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_P(BufferTest, OldestGroupsFirstTiesByGroup) {
  auto buffer = Open(Options());
  ASSERT_TRUE(PlayGroup(*buffer, 0, 4, 4).ok());
  ASSERT_TRUE(PlayGroup(*buffer, 1, 4, 3).ok());
  ASSERT_TRUE(PlayGroup(*buffer, 2, 4, 3).ok());
  std::vector<int64_t> order;
  for (int i = 0; i < 3; ++i) {
    Result<Batch> batch = buffer->Lease(1, 4, In(10));
    ASSERT_TRUE(batch.ok());
    order.push_back(batch->trajectories[0]->id.group_id);
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 0));
}

TEST_P(BufferTest, B1_StaleMembersAreRejectedAloneAndAskedForAgain) {
  auto buffer = Open(Options());
  ASSERT_TRUE(PlayGroup(*buffer, 0, 4, 1).ok());
  for (int32_t member = 0; member < 4; ++member) {
    ASSERT_TRUE(buffer->Dispatch(TestId(1, member)).ok());
    ASSERT_TRUE(
        AppendAndWait(*buffer, SimpleTrajectory(TestId(1, member), member == 2 ? 1 : 4)).ok());
  }
  // At version 3 everything may be trained on; at 4 what was sampled at 1 is too old.
  const Result<Batch> none = buffer->Lease(1, 4, In(0.05));
  EXPECT_EQ(none.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(events_.Rejected(RejectReason::kStale).size(), 5U);
  EXPECT_EQ(buffer->ledger().rejected[0], 5);
  EXPECT_EQ(buffer->ledger().pending, 3);
  EXPECT_TRUE(buffer->ledger().balanced());
  // Only that member is sampled again.
  ASSERT_TRUE(buffer->Dispatch(TestId(1, 2, 1)).ok());
  ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(1, 2, 1), 4)).ok());
  Result<Batch> batch = buffer->Lease(1, 4, In(10));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->trajectories[2]->id, TestId(1, 2, 1));
}

TEST_P(BufferTest, B1_AGroupWhoseMembersGoStaleInTurnIsWaitedFor) {
  auto buffer = Open(Options());
  ASSERT_TRUE(PlayGroup(*buffer, 1, 4, 7).ok());  // another group, ready all the time
  for (int32_t member = 0; member < 4; ++member)
    ASSERT_TRUE(buffer->Dispatch(TestId(0, member)).ok());
  // Member 0 is done long before the others, and too old whenever they are: twice.
  for (int32_t attempt = 0; attempt < 2; ++attempt) {
    ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0, attempt), 4)).ok());
    EXPECT_EQ(buffer->Lease(2, 7, In(0.02)).status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(events_.Rejected(RejectReason::kStale).size(), static_cast<size_t>(attempt) + 1);
    ASSERT_TRUE(buffer->Dispatch(TestId(0, 0, attempt + 1)).ok());
  }
  // The version stands still, although there is a whole group, until group 0 is whole too.
  const Status status = buffer->Lease(1, 7, In(0.02)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("group 0 went stale 2 times and is waited for"));
  for (int32_t member = 0; member < 4; ++member) {
    const TrajectoryId id = TestId(0, member, member == 0 ? 2 : 0);
    ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(id, 6)).ok());
  }
  Result<Batch> batch = buffer->Lease(1, 7, In(10));
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->trajectories[0]->id.group_id, 0);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_P(BufferTest, B1_AnOverdueGroupThatIsClosedHoldsNothingBack) {
  auto buffer = Open(Options());
  ASSERT_TRUE(PlayGroup(*buffer, 1, 4, 7).ok());
  for (int32_t attempt = 0; attempt < 3; ++attempt) {
    ASSERT_TRUE(buffer->Dispatch(TestId(0, 0, attempt)).ok());
    if (attempt == 2) break;
    ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0, attempt), 4)).ok());
    EXPECT_FALSE(buffer->Lease(2, 7, In(0.02)).ok());
  }
  EXPECT_FALSE(buffer->Lease(1, 7, In(0.02)).ok());
  std::thread closer([&] { EXPECT_TRUE(buffer->CloseGroup(0).ok()); });
  EXPECT_TRUE(buffer->Lease(1, 7, In(60)).ok());
  closer.join();
}

TEST_P(BufferTest, B2_B3_AnInfrastructureFailureReplacesOneSampleAndNeverTrains) {
  auto buffer = Open(Options());
  for (int32_t member = 0; member < 4; ++member)
    ASSERT_TRUE(buffer->Dispatch(TestId(0, member)).ok());
  for (int32_t member = 0; member < 4; ++member) {
    Trajectory t = SimpleTrajectory(TestId(0, member), 1);
    if (member == 1) t.outcome = Outcome::kGraderError;
    EXPECT_TRUE(AppendAndWait(*buffer, t).ok());
  }
  EXPECT_THAT(events_.Rejected(RejectReason::kOutcome), ElementsAre(TestId(0, 1)));
  EXPECT_EQ(buffer->ledger().pending, 3);
  EXPECT_EQ(buffer->stats().partial_groups, 1);
  ASSERT_TRUE(buffer->Dispatch(TestId(0, 1, 1)).ok());
  EXPECT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 1, 1), 1)).ok());
  EXPECT_EQ(buffer->stats().ready_groups, 1);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_P(BufferTest, AnAppendThatEndsItsAttemptIsAcknowledgedAgain) {
  BufferOptions options = Options();
  options.implied_dispatch = true;
  auto buffer = Open(options);
  Trajectory failed = SimpleTrajectory(TestId(0, 0), 1);
  failed.outcome = Outcome::kGraderError;
  const Trajectory empty = SimpleTrajectory(TestId(0, 1), 1, 4, 0);  // no loss tokens
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(AppendAndWait(*buffer, failed).ok());
    EXPECT_TRUE(AppendAndWait(*buffer, empty).ok());
  }
  // One that is pending is not rejected by a repetition with another outcome.
  EXPECT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 2), 1)).ok());
  failed.id = TestId(0, 2);
  EXPECT_TRUE(AppendAndWait(*buffer, failed).ok());
  const Ledger ledger = buffer->ledger();
  EXPECT_EQ(ledger.dispatched, 3);
  EXPECT_EQ(ledger.pending, 1);
  EXPECT_EQ(ledger.late, 0);
  EXPECT_TRUE(ledger.balanced());
  EXPECT_EQ(buffer->stats().duplicates, 3);
  buffer->Close();
  EXPECT_FALSE(AppendAndWait(*buffer, empty).ok());
}

TEST_P(BufferTest, B4_NoLossTokensIsNoSample) {
  auto buffer = Open(Options());
  ASSERT_TRUE(buffer->Dispatch(TestId(0, 0)).ok());
  EXPECT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0), 1, 4, 0)).ok());
  EXPECT_THAT(events_.Rejected(RejectReason::kNoLossTokens), ElementsAre(TestId(0, 0)));
  EXPECT_EQ(buffer->ledger().pending, 0);
}

TEST_P(BufferTest, D8_LateResultsAreCountedAndDropped) {
  auto buffer = Open(Options());
  EXPECT_EQ(AppendAndWait(*buffer, SimpleTrajectory(TestId(9, 0), 1)).code(),
            StatusCode::kNotFound);
  ASSERT_TRUE(buffer->Dispatch(TestId(0, 0)).ok());
  ASSERT_TRUE(buffer->Reject(TestId(0, 0), RejectReason::kOutcome).ok());
  ASSERT_TRUE(buffer->Dispatch(TestId(0, 0, 1)).ok());
  EXPECT_EQ(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0), 1)).code(),
            StatusCode::kNotFound);
  Trajectory failed = SimpleTrajectory(TestId(0, 0), 1);
  failed.outcome = Outcome::kEnvError;
  EXPECT_EQ(AppendAndWait(*buffer, failed).code(), StatusCode::kNotFound);
  EXPECT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0, 1), 1)).ok());
  EXPECT_EQ(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0, 1), 1)).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(buffer->ledger().late, 4);
  EXPECT_EQ(buffer->ledger().pending, 1);
  EXPECT_TRUE(buffer->ledger().balanced());
}

TEST_P(BufferTest, DispatchRefusesWhatCannotBe) {
  auto buffer = Open(Options());
  ASSERT_TRUE(buffer->Dispatch(TestId(0, 0)).ok());
  EXPECT_EQ(buffer->Dispatch(TestId(0, 0)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(buffer->Dispatch(TestId(0, 0, 1)).code(), StatusCode::kFailedPrecondition);  // taken
  EXPECT_EQ(buffer->Dispatch(TestId(0, 4)).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(buffer->Reject(TestId(0, 0), RejectReason::kClosed).ok());
  EXPECT_EQ(buffer->Dispatch(TestId(0, 0)).code(), StatusCode::kFailedPrecondition);  // used
  EXPECT_EQ(buffer->Reject(TestId(0, 0), RejectReason::kClosed).code(), StatusCode::kNotFound);
  EXPECT_TRUE(events_.Rejected(RejectReason::kClosed).empty());
  EXPECT_EQ(buffer->ledger().dispatched, 1);
}

TEST_P(BufferTest, B5_AClosedGroupIsCountedAndItsResultsAreLate) {
  auto buffer = Open(Options());
  for (int32_t member = 0; member < 3; ++member)
    ASSERT_TRUE(buffer->Dispatch(TestId(0, member)).ok());
  ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 0), 1)).ok());
  ASSERT_TRUE(buffer->Reject(TestId(0, 1), RejectReason::kOutcome).ok());
  EXPECT_EQ(buffer->CloseGroup(5).code(), StatusCode::kNotFound);
  EXPECT_TRUE(buffer->CloseGroup(0).ok());
  EXPECT_EQ(buffer->ledger().rejected[static_cast<size_t>(RejectReason::kClosed)], 2);
  EXPECT_EQ(AppendAndWait(*buffer, SimpleTrajectory(TestId(0, 2), 1)).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(buffer->Dispatch(TestId(0, 1, 1)).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(buffer->ledger().balanced());
  ASSERT_TRUE(PlayGroup(*buffer, 1, 4, 1).ok());
  ASSERT_TRUE(buffer->Lease(1, 1, In(10)).ok());
  EXPECT_EQ(buffer->CloseGroup(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(buffer->Reject(TestId(1, 1), RejectReason::kStale).code(),
            StatusCode::kFailedPrecondition);
}

TEST_P(BufferTest, L4_ALeaseThatWaitsSaysForWhom) {
  auto buffer = Open(Options());
  ASSERT_TRUE(PlayGroup(*buffer, 16, 4, 1).ok());
  for (int32_t member = 0; member < 4; ++member)
    ASSERT_TRUE(buffer->Dispatch(TestId(17, member)).ok());
  ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(17, 0), 1)).ok());
  ASSERT_TRUE(AppendAndWait(*buffer, SimpleTrajectory(TestId(17, 2), 1)).ok());
  const Status status = buffer->Lease(2, 1, In(0.02)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "waiting for 2 groups: 1 ready, 1 partial (group 17 lacks members 1, 3), 2 in flight");
}

TEST_P(BufferTest, ALeaseWakesWhenItsGroupsAreWhole) {
  auto buffer = Open(Options());
  std::thread actor([&] {
    for (int64_t group = 0; group < 3; ++group) ASSERT_TRUE(PlayGroup(*buffer, group, 4, 1).ok());
  });
  EXPECT_TRUE(buffer->Lease(3, 1, In(60)).ok());
  actor.join();
}

TEST_P(BufferTest, D1_ManyActorsAndALearnerBalanceAtEveryInstant) {
  BufferOptions options = Options();
  options.memory_bytes_max = options.disk_bytes_max = 1;  // backpressure is part of it
  auto buffer = Open(options);
  constexpr int64_t kGroups = 60;
  std::atomic<int64_t> next_group{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> actors;
  for (int a = 0; a < 4; ++a) {
    actors.emplace_back([&] {
      for (int64_t group = next_group++; group < kGroups; group = next_group++) {
        for (int32_t member = 0; member < 4; ++member) {
          EXPECT_TRUE(buffer->Dispatch(TestId(group, member)).ok());
          Trajectory t = SimpleTrajectory(TestId(group, member), 1, 500, 4);
          if ((group + member) % 5 == 0) {
            t.outcome = Outcome::kEnvTimeout;
            EXPECT_TRUE(AppendAndWait(*buffer, t).ok());
            EXPECT_TRUE(buffer->Dispatch(TestId(group, member, 1)).ok());
            t = SimpleTrajectory(TestId(group, member, 1), 1, 500, 4);
          }
          EXPECT_TRUE(AppendAndWait(*buffer, t).ok());
        }
      }
    });
  }
  std::thread watcher([&] {
    while (!stop) EXPECT_TRUE(buffer->ledger().balanced());
  });
  std::set<int64_t> trained;
  for (int64_t step = 1; step <= kGroups / 2; ++step) {
    Result<Batch> batch = buffer->Lease(2, 1, In(60));
    ASSERT_TRUE(batch.ok()) << batch.status().ToString();
    EXPECT_EQ(batch->sequence, step);
    for (const TrajectoryPtr& t : batch->trajectories) {
      EXPECT_TRUE(trained.insert(t->id.trajectory_id).second);
    }
    ASSERT_TRUE(buffer->MarkTrained(step).ok());
    if (step % 3 == 0) {
      EXPECT_TRUE(buffer->Commit(step).ok());
    }
  }
  for (std::thread& actor : actors) actor.join();
  stop = true;
  watcher.join();
  const Ledger ledger = buffer->ledger();
  EXPECT_EQ(ledger.trained, kGroups * 4);
  EXPECT_EQ(ledger.pending + ledger.in_flight, 0);
  EXPECT_EQ(ledger.rejected[static_cast<size_t>(RejectReason::kOutcome)], kGroups * 4 / 5);
}

INSTANTIATE_TEST_SUITE_P(Durabilities, BufferTest,
                         testing::Values(Durability::kMemory, Durability::kOs, Durability::kSync),
                         [](const testing::TestParamInfo<Durability>& info) {
                           return std::string(info.param == Durability::kMemory ? "Memory"
                                              : info.param == Durability::kOs   ? "Os"
                                                                                : "Sync");
                         });

TEST(BufferOptions, NonsenseIsNamed) {
  Recovery recovery;
  for (const BufferOptions& bad :
       {BufferOptions{.durability = Durability::kMemory, .group_size = 0},
        BufferOptions{.durability = Durability::kMemory, .max_staleness = -1},
        BufferOptions{.durability = Durability::kMemory, .memory_bytes_max = 0},
        BufferOptions{.folder = ""}}) {
    EXPECT_EQ(Buffer::Open(bad, 0, {}, &recovery).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(RejectReason, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (int i = 0; i < kRejectReasons; ++i)
    names.insert(RejectReasonName(static_cast<RejectReason>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kRejectReasons));
  EXPECT_EQ(RejectReasonName(RejectReason::kLostInCrash), "lost_in_crash");
}

}  // namespace
}  // namespace forebay::buffer
