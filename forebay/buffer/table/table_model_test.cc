// The table against a naive reference over random calls: attempts, leases, retention, takes,
// relocation, and restarts from snapshots in both forms, with and without losses.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/buffer/table/table_reference_testing.h"
#include "forebay/buffer/table/take_pool.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

class Model {
 public:
  explicit Model(uint64_t seed)
      : rng_(seed),
        group_size_(static_cast<int32_t>(1 + rng_.Below(4))),
        listed_max_(rng_.Below(3) == 0 ? kListedPendingMax : static_cast<int64_t>(rng_.Below(6))),
        table_(group_size_, listed_max_),
        reference_(group_size_) {}

  void Step() {
    const uint64_t what = rng_.Below(40);
    if (what < 13) return Dispatch();
    if (what < 24) return Pend();
    if (what == 24) return rng_.Below(3) == 0 ? Close() : Reject();
    if (what == 25) return Stale();
    if (what < 29) return rng_.Below(5) == 0 ? ReplayLease() : Lease();
    if (what < 31) return Train();
    if (what == 31) return rng_.Below(2) == 0 ? Release() : Uncommit();
    if (what < 34) return Take();
    if (what < 36) return EndTake();
    if (what == 36) return rng_.Below(5) == 0 ? Consume() : Relocate();
    return rng_.Below(8) == 0 ? Restart() : HandOut();
  }

  void ExpectSame() {
    const Ledger& a = table_.ledger();
    const Ledger& b = reference_.ledger();
    ASSERT_TRUE(a.balanced());
    ASSERT_EQ(a.dispatched, b.dispatched);
    ASSERT_EQ(a.in_flight, b.in_flight);
    ASSERT_EQ(a.pending, b.pending);
    ASSERT_EQ(a.trained, b.trained);
    ASSERT_EQ(a.rejected, b.rejected);
    ASSERT_EQ(a.late, late_);
    ASSERT_EQ(table_.ready_groups(), std::ssize(reference_.Ready()));
    ASSERT_EQ(table_.partial_groups(), reference_.PartialGroups());
    ASSERT_EQ(table_.OverdueGroup(), reference_.OverdueGroup());
    ASSERT_EQ(table_.pending_bytes(), reference_.PendingBytes());
    ASSERT_EQ(table_.SegmentsByLiveBytes(), reference_.SegmentsByLiveBytes());
    ASSERT_EQ(table_.next_batch(), reference_.next_batch());
    ASSERT_EQ(table_.committed_batch(), reference_.committed());
    ASSERT_EQ(table_.released_batch(), reference_.released());
    ASSERT_EQ(table_.next_expiry(), reference_.NextExpiry());
    ASSERT_EQ(table_.InFlightIds(), reference_.Ids(ReferenceTable::State::kInFlight));
    ASSERT_EQ(table_.PendingIds(), reference_.Ids(ReferenceTable::State::kPending));
    ASSERT_EQ(table_.Missing(), reference_.Missing());
    for (int64_t sequence = 1; sequence < table_.next_batch(); ++sequence) {
      const BatchState* batch = table_.FindBatch(sequence);
      const auto expected = reference_.batches().find(sequence);
      ASSERT_EQ(batch != nullptr, expected != reference_.batches().end()) << sequence;
      if (batch == nullptr) continue;
      BatchState same = expected->second;
      same.handed_out = batch->handed_out;  // compared by HandOut
      ASSERT_EQ(*batch, same) << sequence;
      ASSERT_EQ(table_.Members(batch->groups), reference_.Members(batch->groups));
    }
    int64_t taken = 0;
    for (const auto& [take_id, take] : reference_.takes()) {
      ASSERT_NE(table_.FindTake(take_id), nullptr);
      ASSERT_EQ(table_.FindTake(take_id)->groups, take.groups);
      taken += std::ssize(take.groups);
    }
    ASSERT_EQ(table_.taken_groups(), taken);
    ASSERT_NO_FATAL_FAILURE(ExpectSameGroups());
  }

 private:
  void ExpectSameGroups() {
    const auto from = static_cast<int64_t>(rng_.Below(20)) + base_ - 8;
    const auto limit = static_cast<int64_t>(rng_.Below(6));
    const auto a = table_.Inspect(from, limit), b = reference_.Inspect(from, limit);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].group_id, b[i].group_id);
      ASSERT_EQ(a[i].batch, b[i].batch);
      ASSERT_EQ(a[i].take_id, b[i].take_id);
      ASSERT_EQ(a[i].min_version, b[i].min_version);
      ASSERT_EQ(a[i].members, b[i].members);
    }
    const int64_t id = AnyId().trajectory_id;
    ASSERT_EQ(table_.Where(id), reference_.Where(id));
    const auto open = reference_.attempts().find(id);
    const bool there = open != reference_.attempts().end();
    ASSERT_EQ(
        table_.Pending(open == reference_.attempts().end() ? TrajectoryId{} : open->second.id),
        there && open->second.state == ReferenceTable::State::kPending);
  }

  // Of anything that ever was; sometimes with another member.
  TrajectoryId AnyId() {
    if (ids_.empty()) return {};
    TrajectoryId id = ids_[ids_.size() - 1 - rng_.Below(std::min<size_t>(ids_.size(), 40))];
    if (rng_.Below(20) == 0) id.member = (id.member + 1) % 4;
    return id;
  }

  void Dispatch() {
    // Ids of three producers, interleaved; groups in a window that moves on.
    const auto producer = static_cast<int64_t>(rng_.Below(3));
    for (int64_t group = base_; reference_.IsFinished(group); ++group) base_ = group + 1;
    TrajectoryId id{.trajectory_id = (producer << 40) + next_[producer],
                    .group_id = base_ + static_cast<int64_t>(rng_.Below(8)),
                    .member = static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(group_size_)))};
    for (int i = 0; i < 20 && reference_.Occupied(id.group_id, id.member); ++i) {
      id.group_id = base_ + static_cast<int64_t>(rng_.Below(8));
      id.member = static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(group_size_)));
    }
    if (reference_.Occupied(id.group_id, id.member)) ++base_;
    if (rng_.Below(10) == 0) id.trajectory_id = AnyId().trajectory_id;
    if (rng_.Below(40) == 0) id.member = rng_.Below(2) == 0 ? -1 : group_size_;
    if (rng_.Below(40) == 0)
      id.attempt = rng_.Below(2) == 0 ? -1 : kAttemptMax + 1;
    else
      id.attempt = static_cast<int32_t>(rng_.Below(3));
    id.task_id = id.group_id;
    const Status status = table_.Dispatch(id);
    ASSERT_EQ(status.code(), reference_.Dispatch(id)) << status.ToString();
    if (!status.ok()) return;
    if (id.trajectory_id == (producer << 40) + next_[producer]) ++next_[producer];
    ids_.push_back(id);
  }

  void Pend() {
    TrajectoryId id = AnyId();
    const auto in_flight = reference_.Ids(ReferenceTable::State::kInFlight);
    if (!in_flight.empty() && rng_.Below(5) > 0) id = in_flight[rng_.Below(in_flight.size())];
    PendingInfo info{
        .min_version = std::max<int64_t>(0, version_ - static_cast<int64_t>(rng_.Below(4))),
        .priority = static_cast<float>(rng_.Below(3)),
        .segment = static_cast<uint32_t>(rng_.Below(5)),
        .offset_64 = static_cast<uint32_t>(rng_.Next()),
        .payload_bytes = static_cast<uint32_t>(rng_.Below(100))};
    if (rng_.Below(40) == 0) info.min_version = rng_.Below(2) == 0 ? -1 : kVersionMax + 1;
    if (rng_.Below(40) == 0) {
      info.priority = rng_.Below(2) == 0 ? -1.0F : std::numeric_limits<float>::infinity();
    }
    const Status status = table_.Pend(id, info);
    ASSERT_EQ(status.code(), reference_.Pend(id, info)) << status.ToString();
    if (!status.ok()) table_.CountLate(), ++late_;
  }

  void Reject() {
    const TrajectoryId id = AnyId();
    ASSERT_EQ(table_.Reject(id, RejectReason::kOutcome).code(),
              reference_.Reject(id, RejectReason::kOutcome));
  }

  void Close() {
    const int64_t group_id = base_ + static_cast<int64_t>(rng_.Below(10)) - 2;
    std::vector<TrajectoryId> closed, expected;
    ASSERT_EQ(table_.CloseGroup(group_id, &closed).code(),
              reference_.CloseGroup(group_id, &expected));
    ASSERT_EQ(closed, expected);
  }

  void Stale() {
    if (rng_.Below(3) == 0) ++version_;
    ASSERT_EQ(table_.RejectStale(version_, 2), reference_.RejectStale(version_, 2));
  }

  void Lease() {
    const auto ready = reference_.Ready();
    if (ready.empty()) return;
    const auto groups = static_cast<int64_t>(1 + rng_.Below(ready.size()));
    const BatchState batch = table_.Lease(groups, version_);
    ASSERT_EQ(batch, reference_.Lease(groups, version_));
    if (rng_.Below(8) == 0) {
      table_.UnleaseFrom(batch.sequence);
      reference_.UnleaseFrom(batch.sequence);
      handed_out_ = std::min(handed_out_, batch.sequence - 1);
    }
  }

  void ReplayLease() {
    std::vector<int64_t> ids;
    for (const auto& [version, group_id] : reference_.Ready()) {
      if (rng_.Below(2) == 0) continue;
      for (const Placed& p : reference_.Members({group_id})) ids.push_back(p.id.trajectory_id);
    }
    if (rng_.Below(4) == 0) ids.push_back(AnyId().trajectory_id);
    if (rng_.Below(4) == 0 && !ids.empty()) ids.pop_back();
    const int64_t sequence = reference_.next_batch() - (rng_.Below(4) == 0 ? 1 : 0);
    const auto last = reference_.batches().find(sequence);
    if (last != reference_.batches().end() && last->second.trained && !last->second.retained)
      return;
    ASSERT_EQ(table_.ReplayLease(sequence, version_, ids).code(),
              reference_.ReplayLease(sequence, version_, ids));
    // Recovery marks every batch when it is done.
    table_.MarkReplays();
    for (auto& [number, batch] : reference_.batches()) {
      if (!batch.retained) const_cast<BatchState&>(batch).replay = true;
    }
    handed_out_ = 0;
  }

  void HandOut() {
    const BatchState* expected = nullptr;
    for (const auto& [sequence, batch] : reference_.batches()) {
      if (batch.retained || batch.trained || sequence <= handed_out_) continue;
      expected = &batch;
      break;
    }
    BatchState* next = table_.NextToHandOut();
    ASSERT_EQ(next != nullptr, expected != nullptr);
    if (next == nullptr) return;
    ASSERT_EQ(next->sequence, expected->sequence);
    next->handed_out = true;
    handed_out_ = next->sequence;
  }

  void Train() {
    const auto sequence = static_cast<int64_t>(
        rng_.Below(static_cast<uint64_t>(reference_.next_batch() + 1 - reference_.committed())) +
        static_cast<uint64_t>(reference_.committed()));
    if (rng_.Below(2) == 0) {
      ASSERT_EQ(table_.MarkTrained(sequence).code(), reference_.MarkTrained(sequence));
    } else {
      ASSERT_EQ(table_.Commit(sequence).code(), reference_.Commit(sequence));
    }
  }

  void Release() {
    const auto sequence =
        static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(reference_.committed() + 2)));
    table_.Release(sequence);
    reference_.Release(sequence);
  }

  void Uncommit() {
    const int64_t to =
        std::max<int64_t>(0, reference_.committed() + 1 - static_cast<int64_t>(rng_.Below(4)));
    const Result<int64_t> back = table_.Uncommit(to);
    const auto expected = reference_.Uncommit(to);
    ASSERT_EQ(back.ok(), expected.has_value());
    if (back.ok()) {
      ASSERT_EQ(*back, *expected);
      handed_out_ = std::min(handed_out_, reference_.committed());
      // What is after it may have been handed out before; the reference knows only a line.
      table_.MarkReplays();
      for (auto& [number, batch] : reference_.batches()) {
        if (!batch.retained) const_cast<BatchState&>(batch).replay = true;
      }
    } else {
      ASSERT_EQ(back.status().code(), StatusCode::kFailedPrecondition);
    }
  }

  void Take() {
    const auto ready = reference_.Ready();
    const auto groups = static_cast<int64_t>(1 + rng_.Below(3));
    const auto selector = static_cast<Selector>(rng_.Below(3));
    const TimePoint expires = now_ + std::chrono::seconds(rng_.Below(20));
    const auto take_id = table_.Take(groups, selector, expires, rng_);
    ASSERT_EQ(take_id.has_value(), groups <= std::ssize(ready));
    if (!take_id) return;
    const std::vector<int64_t> taken = table_.FindTake(*take_id)->groups;
    ASSERT_EQ(std::ssize(taken), groups);
    std::vector<int64_t> can, oldest;
    for (const auto& [version, group_id] : ready) {
      can.push_back(group_id);
      if (std::ssize(oldest) < groups) oldest.push_back(group_id);
    }
    std::ranges::sort(can);
    std::ranges::sort(oldest);
    ASSERT_TRUE(std::ranges::includes(can, taken));
    if (selector == Selector::kOldest) {
      ASSERT_EQ(taken, oldest);
    }
    ASSERT_TRUE(take_ids_.insert(*take_id).second) << "ids are never used twice";
    reference_.Take(*take_id, taken, expires);
    ASSERT_EQ(table_.Members(taken), reference_.Members(taken));
  }

  void EndTake() {
    now_ += std::chrono::seconds(rng_.Below(4));
    if (rng_.Below(4) == 0) {
      ASSERT_EQ(table_.ExpireTakes(now_), reference_.ExpireTakes(now_));
      return;
    }
    int64_t take_id = static_cast<int64_t>(rng_.Below(9)) - 1;
    if (!take_ids_.empty()) {
      auto it = take_ids_.end();
      std::advance(it,
                   -1 - static_cast<int64_t>(rng_.Below(std::min<size_t>(take_ids_.size(), 4))));
      take_id = *it;
    }
    if (rng_.Below(3) == 0) {
      ASSERT_EQ(table_.GiveBackTake(take_id).code(), reference_.GiveBackTake(take_id));
    } else {
      ASSERT_EQ(table_.AcknowledgeTake(take_id).code(), reference_.AcknowledgeTake(take_id));
    }
  }

  void Consume() {
    const int64_t group_id = base_ + static_cast<int64_t>(rng_.Below(8));
    ASSERT_EQ(table_.Consume(group_id), reference_.Consume(group_id));
  }

  void Relocate() {
    const int64_t id = AnyId().trajectory_id;
    const auto segment = static_cast<uint32_t>(rng_.Below(7));
    ASSERT_EQ(table_.Relocate(id, segment, 77), reference_.Relocate(id, segment, 77));
  }

  void Restart() {
    const std::string bytes = table_.EncodeSnapshot();
    const Table copy = table_;
    ASSERT_EQ(copy.EncodeSnapshot(), bytes);
    Result<Table> back = Table::DecodeSnapshot(bytes, listed_max_);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    reference_.Restart();
    if (back->Restoring()) {
      ++restored_;
      ASSERT_NO_FATAL_FAILURE(Restore(*back));
    } else {
      ASSERT_EQ(back->EncodeSnapshot(), bytes);
      ASSERT_EQ(back->FinishRestore(), 0);
    }
    back->SkipTakeSerials(serial_ += 1000);
    table_ = std::move(*back);
    handed_out_ = table_.next_batch() - 1;
  }

  void Restore(Table& table) {
    std::vector<Placed> records = reference_.Present();
    std::set<int64_t> lost;
    const bool loses = rng_.Below(2) == 0;
    for (size_t i = records.size(); i-- > 0;) {
      std::swap(records[i], records[rng_.Below(i + 1)]);
      ASSERT_TRUE(table.Awaits(records[i].id.trajectory_id));
    }
    for (const Placed& p : records) {
      if (loses && rng_.Below(6) == 0) {
        lost.insert(p.id.trajectory_id);
        continue;
      }
      ASSERT_TRUE(table.Restore(p.id, p.info)) << p.id.trajectory_id;
      ASSERT_FALSE(table.Restore(p.id, p.info)) << "a second copy of its record";
    }
    ASSERT_FALSE(table.Restore({.trajectory_id = next_[0] + 5}, {}));
    ASSERT_EQ(table.FinishRestore(), std::ssize(lost));
    reference_.Lose(lost);
  }

  Rng rng_;
  int32_t group_size_;
  int64_t listed_max_;
  Table table_;
  ReferenceTable reference_;
  std::vector<TrajectoryId> ids_;
  std::set<int64_t> take_ids_;
  int64_t next_[3] = {1, 1, 1};
  int64_t base_ = 8, version_ = 3, late_ = 0, handed_out_ = 0, serial_ = 1;
  TimePoint now_{};

 public:
  int64_t restored_ = 0;
};

TEST(TableModel, AgreesWithANaiveReference) {
  int64_t restored = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Model model(seed);
    for (int step = 0; step < 600; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      model.Step();
      if (testing::Test::HasFatalFailure()) return;
      model.ExpectSame();
      if (testing::Test::HasFatalFailure()) return;
    }
    restored += model.restored_;
  }
  EXPECT_GT(restored, 50) << "of snapshots without details";
}

}  // namespace
}  // namespace forebay::buffer
