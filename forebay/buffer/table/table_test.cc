// What the model does not reach: limits, errors, memory, order among many, damaged snapshots.
#include "forebay/buffer/table/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TrajectoryId Id(int64_t n, int32_t group_size = 1) {
  return {.trajectory_id = n,
          .group_id = n / group_size,
          .member = static_cast<int32_t>(n % group_size),
          .attempt = 0,
          .task_id = n / group_size};
}

void Add(Table& table, const TrajectoryId& id, const PendingInfo& info = {}) {
  const Status dispatched = table.Dispatch(id);
  ASSERT_TRUE(dispatched.ok()) << dispatched.ToString();
  const Status pended = table.Pend(id, info);
  ASSERT_TRUE(pended.ok()) << pended.ToString();
}

void Fill(Table& table, int64_t from, int64_t to, int64_t version = 0) {
  for (int64_t n = from; n < to; ++n) {
    Add(table, Id(n, table.group_size()),
        {.min_version = version, .segment = static_cast<uint32_t>(n / 100), .payload_bytes = 10});
  }
}

TEST(Table, NumbersOutsideOfTheirLimitsAreNamed) {
  Table table(2);
  for (const TrajectoryId& id :
       {TrajectoryId{.trajectory_id = -1}, TrajectoryId{.group_id = -1}, TrajectoryId{.member = -1},
        TrajectoryId{.member = 2}, TrajectoryId{.attempt = -1}, TrajectoryId{.attempt = 65536}}) {
    EXPECT_EQ(table.Dispatch(id).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(table.Dispatch({.member = 2}).message(), HasSubstr("members 0 to 1"));
  EXPECT_EQ(table.ledger().dispatched, 0);
  const TrajectoryId id{.attempt = 65535};
  ASSERT_TRUE(table.Dispatch(id).ok());
  for (const PendingInfo& info :
       {PendingInfo{.min_version = -1}, PendingInfo{.min_version = kVersionMax + 1},
        PendingInfo{.priority = -1}, PendingInfo{.priority = std::nanf("")},
        PendingInfo{.priority = INFINITY}}) {
    EXPECT_EQ(table.Pend(id, info).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(table.InFlight(id)) << "it may be tried again";
  }
  const PendingInfo most{.min_version = kVersionMax,
                         .priority = 3e38F,
                         .segment = UINT32_MAX,
                         .offset_64 = UINT32_MAX,
                         .payload_bytes = UINT32_MAX};
  ASSERT_TRUE(table.Pend(id, most).ok());
  EXPECT_EQ(table.Where(0), most);
  EXPECT_EQ(table.pending_bytes(), int64_t{UINT32_MAX});
  ASSERT_TRUE(table.Reject(id, RejectReason::kOutcome).ok());
  EXPECT_EQ(table.Missing().front().next_attempt, 65536) << "which Dispatch refuses by name";
  EXPECT_EQ(table.Dispatch({.trajectory_id = 9, .attempt = 65536}).code(),
            StatusCode::kInvalidArgument);
}

TEST(Table, RefusalsLeaveNothingBehind) {
  Table table(1);
  Fill(table, 0, 1);
  EXPECT_EQ(table.Dispatch({.trajectory_id = 0, .group_id = 5}).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.next_group_id(), 1) << "group 5 was not made";
  EXPECT_THAT(table.Missing(), IsEmpty());
  EXPECT_EQ(table.Dispatch({.trajectory_id = 7, .group_id = 0}).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_FALSE(table.Dispatched(7)) << "its id may still be used";
}

TEST(Table, WhatIsHeldSaysByWhom) {
  Table table(1);
  Fill(table, 0, 2);
  Rng rng(1);
  table.Lease(1, 3);
  const auto take_id = table.Take(1, Selector::kOldest, TimePoint{}, rng);
  ASSERT_TRUE(take_id.has_value());
  EXPECT_THAT(table.Reject(Id(0), RejectReason::kOutcome).message(),
              HasSubstr("leased in batch 1"));
  EXPECT_THAT(table.Reject(Id(1), RejectReason::kOutcome).message(),
              HasSubstr("held by take " + std::to_string(*take_id)));
  std::vector<TrajectoryId> closed;
  EXPECT_EQ(table.CloseGroup(1, &closed).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(table.RejectStale(1000, 0), IsEmpty()) << "what is held cannot become stale";
  EXPECT_EQ(table.BatchOf(Id(0)), 1);
  EXPECT_EQ(table.BatchOf(Id(1)), 0);
  ASSERT_TRUE(table.GiveBackTake(*take_id).ok());
  EXPECT_EQ(table.AcknowledgeTake(*take_id).code(), StatusCode::kNotFound);
  EXPECT_THAT(table.RejectStale(1000, 0), ElementsAre(Id(1)));
}

TEST(Table, DescribeNamesTheLowestPartialGroups) {
  Table table(3);
  for (const int64_t group : {50, 20, 40, 30, 10}) {
    Add(table, {.trajectory_id = group, .group_id = group, .member = 1});
  }
  Fill(table, 300, 303);
  ASSERT_TRUE(table.Dispatch({.trajectory_id = 1, .group_id = 10, .member = 0}).ok());
  EXPECT_EQ(
      table.Describe(),
      "1 ready, 5 partial (group 10 lacks members 0, 2; group 20 lacks members 0, 2; group 30 "
      "lacks members 0, 2; ...), 1 in flight");
}

TEST(Table, RetainedBatchesKeepTheirPlaceUntilTheirRelease) {
  Table table(2);
  Fill(table, 0, 8);
  table.Lease(2, 0);
  table.Lease(2, 0);
  ASSERT_TRUE(table.Commit(2).ok());
  EXPECT_EQ(table.ledger().trained, 8);
  EXPECT_FALSE(table.Pending(Id(0, 2)));
  EXPECT_EQ(table.Reject(Id(0, 2), RejectReason::kOutcome).code(), StatusCode::kNotFound);
  EXPECT_THAT(table.Inspect(0, 10), IsEmpty());
  ASSERT_NE(table.FindBatch(1), nullptr);
  EXPECT_TRUE(table.FindBatch(1)->retained);
  EXPECT_EQ(table.Members(table.FindBatch(1)->groups).size(), 4U);
  EXPECT_TRUE(table.SegmentIsLive(0));
  EXPECT_EQ(table.live_bytes(0), 80);
  EXPECT_TRUE(table.Relocate(1, 9, 4));
  EXPECT_EQ(table.live_bytes(9), 10);
  table.Release(1);
  table.Release(1);
  EXPECT_EQ(table.released_batch(), 1);
  EXPECT_EQ(table.FindBatch(1), nullptr);
  EXPECT_FALSE(table.SegmentIsLive(9));
  EXPECT_FALSE(table.Where(0).has_value());
  EXPECT_EQ(table.Uncommit(0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.committed_batch(), 2) << "nothing changed";
  ASSERT_EQ(*table.Uncommit(1), 1);
  EXPECT_EQ(table.ledger().pending, 4);
  EXPECT_TRUE(table.Pending(Id(4, 2)));
  const BatchState* next = table.NextToHandOut();
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(next->sequence == 2 && next->replay);
  EXPECT_EQ(table.next_batch(), 3);
  table.Release(99);
  EXPECT_EQ(table.released_batch(), 1) << "only what is committed is released";
}

TEST(Table, SelectorsDrawWholeGroupsByTheirLargestPriority) {
  constexpr int kGroups = 20;
  Table table(2);
  for (int64_t n = 0; n < 2 * kGroups; ++n) {
    Add(table, Id(n, 2), {.priority = static_cast<float>(n % 2 == 0 ? 0 : n / 2)});
  }
  Rng rng(6);
  const auto chi = [&](Selector selector) {
    std::vector<double> counts(kGroups);
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) {
      const auto take_id = table.Take(1, selector, TimePoint{}, rng);
      ++counts[static_cast<size_t>(table.FindTake(*take_id)->groups[0])];
      EXPECT_TRUE(table.GiveBackTake(*take_id).ok());
    }
    double sum = 0;
    for (int group = 0; group < kGroups; ++group) {
      const double expected = selector == Selector::kUniform
                                  ? double{kDraws} / kGroups
                                  : double{kDraws} * group / (kGroups * (kGroups - 1) / 2.0);
      const double off = counts[static_cast<size_t>(group)] - expected;
      sum += expected > 0 ? off * off / expected : off * 1e9;
    }
    return sum;
  };
  EXPECT_LT(chi(Selector::kUniform), 20 + 4 * 6.4 + 8);
  EXPECT_LT(chi(Selector::kPriority), 20 + 4 * 6.4 + 8);
  // All at once: each exactly once.
  const auto all = table.Take(kGroups, Selector::kPriority, TimePoint{}, rng);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(table.ready_groups(), 0);
  EXPECT_FALSE(table.Take(1, Selector::kUniform, TimePoint{}, rng).has_value());
  EXPECT_THAT(table.ExpireTakes(TimePoint{}), ElementsAre(*all));
  EXPECT_EQ(table.ready_groups(), kGroups);
}

TEST(Table, APendingTrajectoryCostsAbout115Bytes) {
  Table table(1);
  constexpr int64_t kCount = 300000;
  int64_t peak = 0;
  for (int64_t n = 0; n < kCount; ++n) {
    Fill(table, n, n + 1, n / 10000);
    if (n % 1000 == 0 && n > kCount / 10) {
      peak = std::max(peak, table.memory_bytes() * 10 / n);  // tenths of a byte each
    }
  }
  EXPECT_LT(table.memory_bytes() / kCount, 120);
  EXPECT_LT(peak, 1350) << "no growth step takes much more";
  EXPECT_LT(table.EncodeSnapshot().size(), 1000U) << "ids in order take no room";
}

TEST(Table, GarbageStaysBoundedWhenMillionsFlowThroughOneVersion) {
  Table table(2);
  Rng rng(7);
  Fill(table, 0, 200);
  int64_t bytes = 0;
  for (int64_t n = 200; n < 60200; n += 2) {
    Fill(table, n, n + 2);
    // The oldest stays for ever: entries behind it are only removed by a filter.
    const auto take_id = table.Take(1, Selector::kUniform, TimePoint{}, rng);
    ASSERT_TRUE(n % 3 == 0 ? table.AcknowledgeTake(*take_id).ok()
                           : table.GiveBackTake(*take_id).ok());
    if (n % 3 != 0) {
      std::vector<TrajectoryId> closed;
      ASSERT_TRUE(table.CloseGroup(n / 2, &closed).ok());
    }
    // Members come and go without their group leaving.
    const TrajectoryId again{.trajectory_id = 1000000 + n / 2, .group_id = 100000, .member = 0};
    Add(table, again);
    ASSERT_TRUE(table.Reject(again, RejectReason::kOutcome).ok());
    if (n == 3200) bytes = table.memory_bytes();
  }
  EXPECT_LT(table.ready_groups(), 220);

  EXPECT_LT(table.memory_bytes(), bytes + bytes / 4);
}

TEST(Table, TenThousandUncommittedBatchesAreHandedOutInOrder) {
  Table table(1);
  Fill(table, 0, 10000);
  for (int64_t i = 0; i < 10000; ++i) table.Lease(1, 0);
  for (int64_t i = 1; i <= 10000; ++i) {
    BatchState* next = table.NextToHandOut();
    ASSERT_NE(next, nullptr);
    ASSERT_EQ(next->sequence, i);
    ASSERT_EQ(table.NextToHandOut(), next) << "until it is";
    next->handed_out = true;
  }
  EXPECT_EQ(table.NextToHandOut(), nullptr);
  table.UnleaseFrom(9001);
  EXPECT_EQ(table.ready_groups(), 1000);
  table.Lease(1000, 0);
  EXPECT_EQ(table.NextToHandOut()->sequence, 9001);
  EXPECT_EQ(table.FindBatch(9001)->groups.size(), 1000U);
}

TEST(Table, VanishedGroupsAreMissingAsAWhole) {
  Table table(2, 0);
  Fill(table, 0, 12);
  table.Lease(2, 0);
  ASSERT_TRUE(table.Commit(1).ok());
  ASSERT_TRUE(table.Dispatch({.trajectory_id = 99, .group_id = 9, .member = 1}).ok());
  Result<Table> back = Table::DecodeSnapshot(table.EncodeSnapshot(), 0);
  ASSERT_TRUE(back.ok());
  ASSERT_TRUE(back->Restoring());
  EXPECT_FALSE(back->Restore({.trajectory_id = 4, .group_id = 77, .member = 0}, {}))
      << "a group that never was";
  EXPECT_FALSE(back->Restore({.trajectory_id = 4, .group_id = 2, .member = 2}, {}));
  EXPECT_FALSE(back->Restore({.trajectory_id = 4, .group_id = 9, .member = 0}, {}))
      << "a member that was not pending";
  // Group 2 comes back whole, group 3 by half, groups 4 and 5 not at all; group 0 was consumed.
  for (const int64_t n : {0, 2, 3, 4, 5, 6}) ASSERT_TRUE(back->Restore(Id(n, 2), {})) << n;
  EXPECT_EQ(back->FinishRestore(), 6);
  EXPECT_TRUE(back->ledger().balanced());
  EXPECT_EQ(back->ledger().rejected[static_cast<size_t>(RejectReason::kQuarantined)], 5);
  EXPECT_EQ(back->ledger().trained, 4) << "what was consumed stays so, whatever its content";
  EXPECT_EQ(back->FindBatch(1), nullptr) << "it lost a member: it cannot be read again";
  EXPECT_EQ(back->ready_groups(), 1);
  const std::vector<MissingMember> missing = {
      {.group_id = 3, .member = 1, .next_attempt = 1, .task_id = 3},
      {.group_id = 4, .member = 0, .next_attempt = 1, .task_id = 4},
      {.group_id = 4, .member = 1, .next_attempt = 1, .task_id = 4},
      {.group_id = 5, .member = 0, .next_attempt = 1, .task_id = 5},
      {.group_id = 5, .member = 1, .next_attempt = 1, .task_id = 5},
      {.group_id = 9, .member = 0, .next_attempt = 0, .task_id = 0}};
  EXPECT_EQ(back->Missing(), missing);
  EXPECT_EQ(back->next_group_id(), 10);
  // They survive another restart, and a policy may close them.
  Result<Table> again = Table::DecodeSnapshot(back->EncodeSnapshot());
  ASSERT_TRUE(again.ok());
  for (const int64_t n : {4, 5, 6}) ASSERT_TRUE(again->Restore(Id(n, 2), {})) << n;
  EXPECT_EQ(again->FinishRestore(), 0);
  EXPECT_EQ(again->Missing(), missing);
  std::vector<TrajectoryId> closed;
  EXPECT_EQ(again->CloseGroup(4, &closed).code(), StatusCode::kNotFound);
  EXPECT_EQ(again->Missing().size(), 4U);
}

// Both forms, with everything that a snapshot can hold.
Table Rich(int64_t listed_pending_max) {
  Table table(2, listed_pending_max);
  Fill(table, 0, 20, 5);
  table.Lease(2, 5);
  table.Lease(1, 6);
  table.Lease(1, 6);
  EXPECT_TRUE(table.Commit(2).ok());
  table.Release(1);
  EXPECT_TRUE(table.MarkTrained(3).ok());
  Add(table, {.trajectory_id = 50, .group_id = 30, .member = 1, .attempt = 2}, {.min_version = 4});
  EXPECT_TRUE(table.Dispatch({.trajectory_id = 51, .group_id = 30, .member = 0}).ok());
  EXPECT_TRUE(table.Dispatch({.trajectory_id = 52, .group_id = 31, .member = 0}).ok());
  EXPECT_TRUE(
      table.Reject({.trajectory_id = 52, .group_id = 31, .member = 0}, RejectReason::kOutcome)
          .ok());
  table.CountLate();
  return table;
}

TEST(Table, SnapshotsRefuseDamageAndWhatTheyLetPassIsSound) {
  for (const int64_t listed_pending_max : {int64_t{0}, kListedPendingMax}) {
    const Table table = Rich(listed_pending_max);
    const std::string good = table.EncodeSnapshot();
    const Result<Table> same = Table::DecodeSnapshot(good, listed_pending_max);
    ASSERT_TRUE(same.ok()) << same.status().ToString();
    EXPECT_EQ(same->Restoring(), listed_pending_max == 0);
    EXPECT_EQ(same->ledger().late, 1);
    EXPECT_EQ(same->released_batch(), 1);
    EXPECT_EQ(same->ledger().trained, 6) << "batch 3 is not committed";
    for (size_t n = 0; n < good.size(); ++n) {
      EXPECT_EQ(Table::DecodeSnapshot(std::string_view(good).substr(0, n)).status().code(),
                StatusCode::kDataLoss)
          << n;
    }
    EXPECT_FALSE(Table::DecodeSnapshot(good + 'x').ok());
    int passed = 0;
    Rng rng(8);
    for (size_t bit = 0; bit < good.size() * 8 + 3000; ++bit) {
      std::string bad = good;
      const size_t first = bit < good.size() * 8 ? bit : rng.Below(good.size() * 8);
      bad[first / 8] = static_cast<char>(bad[first / 8] ^ (1 << (first % 8)));
      if (first != bit) bad[rng.Below(bad.size())] = static_cast<char>(rng.Next());
      Result<Table> back = Table::DecodeSnapshot(bad, listed_pending_max);  // never crashes
      if (!back.ok()) continue;
      ++passed;
      // Whatever it says, the table holds together.
      for (int64_t n = 0; n < 20; ++n) back->Restore(Id(n, 2), {.min_version = n});
      back->Restore({.trajectory_id = 50, .group_id = 30, .member = 1, .attempt = 2}, {});
      back->FinishRestore();
      ASSERT_TRUE(back->ledger().balanced());
      ASSERT_GE(back->ledger().pending, 0);
      back->Describe();
      if (back->Missing().size() > 1000) continue;  // an id set said that there were millions
      const Result<Table> again = Table::DecodeSnapshot(back->EncodeSnapshot());
      ASSERT_TRUE(again.ok()) << again.status().ToString();
      back->MarkReplays();
      while (BatchState* next = back->NextToHandOut()) next->handed_out = true;
      if (back->committed_batch() < back->next_batch()) {
        ASSERT_TRUE(back->Commit(back->next_batch() - 1).ok());
      }
      back->Release(back->next_batch() - 1);
      if (back->ready_groups() > 0) back->Lease(back->ready_groups(), 9);
      ASSERT_TRUE(back->Commit(back->next_batch() - 1).ok() ||
                  back->committed_batch() >= back->next_batch());
      back->Release(back->next_batch() - 1);
      back->RejectStale(int64_t{1} << 33, 0);
      ASSERT_TRUE(back->ledger().balanced());
    }
    EXPECT_GT(passed, 10) << "some bits are numbers that may be anything";
  }
}

TEST(Table, SnapshotsOfOtherFormatsAndSizesAreRefused) {
  Table table(1);
  std::string bytes = table.EncodeSnapshot();
  bytes[0] = 1;
  EXPECT_THAT(Table::DecodeSnapshot(bytes).status().message(), HasSubstr("unknown format"));
  EXPECT_FALSE(Table::DecodeSnapshot("").ok());
  EXPECT_EQ(Table::DecodeSnapshot(Table(65536).EncodeSnapshot())->group_size(), 65536);
}

TEST(Table, ALargeListStaysQuickToReadAndSmall) {
  Table table(1);
  Fill(table, 0, kListedPendingMax);
  const std::string listed = table.EncodeSnapshot();
  EXPECT_LT(listed.size(), kListedPendingMax * 50U);
  EXPECT_FALSE(Table::DecodeSnapshot(listed)->Restoring());
  Fill(table, kListedPendingMax, kListedPendingMax + 1);
  const std::string ids = table.EncodeSnapshot();
  EXPECT_LT(ids.size(), 300U);
  EXPECT_TRUE(Table::DecodeSnapshot(ids)->Restoring());
  table.Lease(1, 0);
  ASSERT_TRUE(table.Commit(1).ok());
  EXPECT_TRUE(Table::DecodeSnapshot(table.EncodeSnapshot())->Restoring()) << "retained ones count";
  table.Release(1);
  EXPECT_FALSE(Table::DecodeSnapshot(table.EncodeSnapshot())->Restoring());
}

}  // namespace
}  // namespace forebay::buffer
