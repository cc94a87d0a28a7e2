#include "forebay/buffer/core/simulation_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/file_testing.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {
namespace {

constexpr int kProcesses = 6;

size_t At(RejectReason reason) { return static_cast<size_t>(reason); }

}  // namespace

void SimulationCounts::Add(const SimulationCounts& more) {
  acknowledged += more.acknowledged;
  duplicates += more.duplicates;
  replays += more.replays;
  taken += more.taken;
  expired += more.expired;
  uncommitted += more.uncommitted;
  faults += more.faults;
  crashes += more.crashes;
  crashes_in_open += more.crashes_in_open;
  flips += more.flips;
  full += more.full;
  drained += more.drained;
}

std::string SimulationCounts::ToString() const {
  return fmt::format(
      "acknowledged {}, duplicates {}, replays {}, taken {}, expired {}, uncommitted {}, faults "
      "{}, "
      "crashes {} ({} in Open), flips {}, logs without room for a note {}, drained {}",
      acknowledged, duplicates, replays, taken, expired, uncommitted, faults, crashes,
      crashes_in_open, flips, full, drained);
}

Simulation::Simulation(uint64_t seed) : rng_(seed), disk_(DeriveSeed(seed, 1)) {
  options_ = {.folder = "log",
              .durability = rng_.Below(2) == 0 ? Durability::kOs : Durability::kSync,
              .group_size = static_cast<int32_t>(1 + rng_.Below(3)),
              .max_staleness = static_cast<int64_t>(rng_.Below(4)),
              .segment_bytes = int64_t{64} << 10,
              .memory_bytes_max = static_cast<int64_t>(100000U << rng_.Below(3)),
              .disk_bytes_max = static_cast<int64_t>((5 + rng_.Below(8)) << 16),
              .record_bytes_max = 30000,
              .implied_dispatch = rng_.Below(3) == 0,
              .retain_committed = rng_.Below(3) == 0};
}

// A failed test may leave a process behind.
Simulation::~Simulation() {
  dying_ = true;
  takes_.clear();
  core_.reset();
}

void Simulation::Run() {
  for (int process = 0; process < kProcesses && !testing::Test::HasFailure(); ++process) {
    if (Open()) {
      if (testing::Test::HasFailure()) return;
      if (rng_.Below(2) == 0) {
        const DiskFaults faults{.write_error = rng_.Below(3),
                                .write_full = rng_.Below(3),
                                .sync_error = rng_.Below(8),
                                .create_full = rng_.Below(2) * rng_.Below(500),
                                .read_error = rng_.Below(6) == 0 ? rng_.Below(30) : 0};
        disk_.SetFaults(faults);
        ever_flipped_ = ever_flipped_ || faults.read_error > 0;
      }
      if (rng_.Below(3) == 0) ArmCrash(rng_.Below(200));
      for (uint64_t steps = rng_.Below(250); steps > 0 && !disk_.dead(); --steps) {
        Step();
        CheckStep();
        if (testing::Test::HasFailure()) return;
      }
      if (rng_.Below(3) == 0 && !disk_.dead()) Drain();
    }
    if (testing::Test::HasFailure()) return;
    End();
  }
  counts_.faults = disk_.faults_made();
}

void Simulation::ArmCrash(uint64_t operations) {
  if (options_.durability == Durability::kSync && rng_.Below(2) == 0) {
    disk_.PowerLossIn(operations);
  } else {
    disk_.KillIn(operations);
  }
}

// The manifest of the checkpoint that is restored says what was trained on.
void Simulation::ChooseCheckpoint() {
  if (checkpoints_.size() > 1 && rng_.Below(5) == 0) {
    checkpoints_.resize(1 + rng_.Below(checkpoints_.size() - 1));
  }
  if (checkpoints_.back() < checkpoint_) {
    ++counts_.uncommitted;
    history_ += fmt::format("; back from checkpoint {} to {}, {} are released", checkpoint_,
                            checkpoints_.back(), released_);
  }
  checkpoint_ = checkpoints_.back();
  consumed_ = read_;
  for (const auto& [sequence, lease] : leases_) {
    if (sequence <= checkpoint_) consumed_.insert(lease.ids.begin(), lease.ids.end());
  }
  // What only the weights that are gone were trained on may be gone with them.
  if (released_ <= checkpoint_) return;
  for (auto it = leases_.upper_bound(checkpoint_); it != leases_.end(); it = leases_.erase(it)) {
    spent_.insert(it->second.ids.begin(), it->second.ids.end());
  }
}

Status Simulation::TryOpen(Recovery* recovery) {
  BufferListener listener;
  listener.on_rejected = [this](const TrajectoryId& id, RejectReason reason) {
    if (dead() || (reason != RejectReason::kStale && reason != RejectReason::kQuarantined)) return;
    EXPECT_TRUE(reason == RejectReason::kStale || ever_flipped_)
        << "trajectory " << id.trajectory_id << " is damaged";
    rejected_.insert(id.trajectory_id);
    vacant_.push_back({id.group_id, id.member, id.attempt + 1, id.task_id});
  };
  listener.on_failure = [this](const Status& why) {
    if (why.message().find("no room for a note") != std::string::npos) ++counts_.full;
  };
  Result<std::unique_ptr<Core>> core =
      Core::Open(&disk_, options_, checkpoint_, listener, recovery, true);
  if (core.ok()) core_ = std::move(*core);
  return core.status();
}

// False: the process died in it.
bool Simulation::Open() {
  ChooseCheckpoint();
  Recovery recovery;
  const uint64_t how = rng_.Below(6);
  if (how == 0) ArmCrash(rng_.Below(25));
  if (how == 1) {
    disk_.SetFaults({.write_error = rng_.Below(200),
                     .write_full = rng_.Below(200),
                     .sync_error = rng_.Below(200),
                     .create_full = rng_.Below(200)});
  }
  Status opened = TryOpen(&recovery);
  if (!opened.ok() && how == 1) {
    disk_.SetFaults({});
    start_failed_ = true;
    recovery = Recovery();
    history_ += "; a start that failed: " + opened.ToString();
    opened = TryOpen(&recovery);
  }
  disk_.SetFaults({});
  if (disk_.dead()) {
    history_ += "; a crash in recovery";
    ++counts_.crashes_in_open;
    start_failed_ = true;
    return false;
  }
  EXPECT_TRUE(opened.ok()) << opened.ToString() << " after " << history_;
  if (opened.ok()) AfterOpen(recovery);
  return true;
}

void Simulation::AfterOpen(const Recovery& recovery) {
  const Table table = core_->table();
  const Ledger ledger = table.ledger();
  ASSERT_TRUE(ledger.balanced());
  EXPECT_EQ(ledger.in_flight, 0);
  EXPECT_LT(ledger.dispatched, next_id_);
  for (const std::string& note : recovery.notes) history_ += "; " + note;
  CheckAcknowledged(table, recovery);
  CheckReplays(table);
  // With implied dispatch an append to an attempt that was closed is acknowledged and not stored.
  if (!ever_flipped_ && !implied()) {
    EXPECT_GE(recovery.next_trajectory_id, last_acknowledged_ + 1) << history_;
  }
  vacant_.clear();
  held_ids_.clear();
  std::set<std::pair<int64_t, int32_t>> repeated;
  if (implied()) {  // the clients are still there, and append again
    for (auto& [id, job] : asked_) in_flight_.push_back(std::move(job));
    for (const Job& job : in_flight_) repeated.emplace(job.id.group_id, job.id.member);
  } else {
    in_flight_.clear();
  }
  asked_.clear();
  for (const MissingMember& m : recovery.missing) {
    if (repeated.count({m.group_id, m.member}) == 0) vacant_.push_back(m);
  }
  next_group_ = std::max(next_group_, recovery.next_group_id);
  learner_version_ = checkpoint_;
  trained_ = checkpoint_;
  flipped_ = start_failed_ = false;
}

// Acknowledged, not rejected, not trained on in the weights: pending.
void Simulation::CheckAcknowledged(const Table& table, const Recovery& recovery) {
  std::set<int64_t> pending;
  for (const TrajectoryId& id : table.PendingIds()) {
    pending.insert(id.trajectory_id);
    EXPECT_EQ(consumed_.count(id.trajectory_id), 0U)
        << "trajectory " << id.trajectory_id << " was trained on, and is pending again, after "
        << history_;
  }
  int64_t lost = 0;
  std::string names;
  const auto ended = [this](int64_t id) {
    return consumed_.count(id) + rejected_.count(id) + spent_.count(id) + read_unsure_.count(id) >
           0;
  };
  for (const int64_t id : acknowledged_) {
    if (ended(id) || pending.count(id) > 0) continue;
    ++lost;
    names += std::to_string(id) + " ";
    for (const auto& [sequence, lease] : leases_) {
      if (std::ranges::count(lease.ids, id) > 0) names += fmt::format("(of batch {}) ", sequence);
    }
  }
  if (flipped_ && implied()) {
    // An append that was not acknowledged looks the same, so they are not counted, but reported
    // (by the start that found it, if that one came to its end).
    EXPECT_TRUE(lost == 0 || start_failed_ || !recovery.notes.empty())
        << names << "after " << history_;
  } else if (flipped_) {
    EXPECT_LE(lost, table.ledger().rejected[At(RejectReason::kQuarantined)] +
                        table.ledger().rejected[At(RejectReason::kLostInCrash)])
        << names << "after " << history_;
  } else {
    EXPECT_EQ(lost, 0) << "acknowledged and lost: " << names << "after " << history_;
  }
  // What was damaged is known to be gone from here on.
  std::erase_if(acknowledged_, [&](int64_t id) { return pending.count(id) == 0; });
  // Written, and the process died before it could say so: as good as acknowledged.
  acknowledged_.insert(pending.begin(), pending.end());
  // A rejection or a reading that was not flushed is undone.
  std::erase_if(rejected_, [&](int64_t id) { return pending.count(id) > 0; });
  std::erase_if(spent_, [&](int64_t id) { return pending.count(id) > 0; });
  for (const int64_t id : read_unsure_) {
    if (pending.count(id) == 0) read_.insert(id);
  }
  read_unsure_.clear();
  // A power loss can leave a hole before a later record of the same, unacknowledged, write.
  if (!ever_torn_ && !ever_flipped_) {
    EXPECT_EQ(recovery.quarantined_records, 0) << history_;
  }
}

void Simulation::CheckReplays(const Table& table) {
  for (auto it = leases_.upper_bound(checkpoint_); it != leases_.end(); ++it) {
    const auto& [sequence, lease] = *it;
    const BatchState* batch = table.FindBatch(sequence);
    if (batch == nullptr) {
      // Damage to what is only kept for replays shows when it is needed.
      EXPECT_TRUE(ever_flipped_) << "batch " << sequence << " is not replayed after " << history_;
      leases_.erase(it, leases_.end());
      return;
    }
    EXPECT_TRUE(batch->replay) << sequence << " after " << history_;
    EXPECT_EQ(batch->learner_version, lease.learner_version);
    const std::vector<Placed> members = table.Members(batch->groups);
    EXPECT_EQ(members.size(), lease.ids.size());
    for (size_t i = 0; i < std::min(members.size(), lease.ids.size()); ++i) {
      EXPECT_EQ(members[i].id.trajectory_id, lease.ids[i]);
    }
    const Result<Batch> read = core_->ReadBatch(sequence, 0, 1);
    ASSERT_TRUE(read.ok()) << read.status().ToString() << " after " << history_;
    for (const TrajectoryPtr& t : read->trajectories) {
      EXPECT_TRUE(Encode(*t) == content_.at(t->id.trajectory_id)) << t->id.trajectory_id;
    }
    ++counts_.replays;
  }
}

void Simulation::End() {
  history_.clear();
  if (core_ != nullptr) released_ = core_->table().released_batch();
  dying_ = true;
  if (disk_.dead()) {
    history_ = "a crash in the middle of something";
    ++counts_.crashes;
    ever_torn_ = true;
  } else if (rng_.Below(4) == 0) {
    disk_.SetFaults({});
    history_ = "a clean end";
    core_->Close();
  } else if (options_.durability == Durability::kSync && rng_.Below(2) == 0) {
    disk_.PowerLoss();
    history_ = "a power loss";
    ++counts_.crashes;
    ever_torn_ = true;
  } else {
    disk_.Kill();
    history_ = "a kill";
    ++counts_.crashes;
  }
  takes_.clear();
  core_.reset();
  disk_.Restart();
  dying_ = false;
  if (rng_.Below(4) == 0) {
    const auto where = static_cast<SimDisk::Where>(rng_.Below(5));
    if (disk_.FlipBit(where)) {
      ++counts_.flips;
      flipped_ = ever_flipped_ = true;
      history_ += fmt::format("; a bit flipped ({})", static_cast<int>(where));
    }
  }
}

// Everything is trained on, read or closed: then there is room again.
void Simulation::Drain() {
  disk_.SetFaults({});
  core_->Pause(false, false);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) LeaseOne();
    for (int i = 0; i < 4; ++i) TrainOne();
    CheckpointOne();
    while (!takes_.empty()) EndTake();
    PumpNow();
    if (disk_.dead() || testing::Test::HasFailure()) return;
  }
  for (int64_t group = 0; group < next_group_; ++group) {
    Close(group);
    if (group % 8 == 0) PumpNow();
  }
  vacant_.clear();
  core_->Commit(checkpoint_).ok();  // CheckpointOne may not have told it
  // Without room the first ones end at their deadline, and that makes some.
  bool done = false;
  for (int attempt = 0; attempt < 20 && !done; ++attempt) {
    PumpNow();
    const TrajectoryId id{.trajectory_id = next_id_++, .group_id = next_group_++};
    if (!implied() && !core_->Dispatch(id).ok()) return;  // the log failed before
    Job job{.id = id, .encoded = Encode(SimpleTrajectory(id, learner_version_, 4, 2000))};
    content_[id.trajectory_id] = job.encoded;
    Ask(std::move(job));
    PumpNow();
    PumpNow();
    if (disk_.dead()) return;
    done = acknowledged_.count(id.trajectory_id) > 0;
    std::erase_if(in_flight_, [&](const Job& j) { return j.id == id; });
    if (!done && core_->Reject(id, RejectReason::kOutcome).code() == StatusCode::kUnavailable)
      return;
  }
  EXPECT_TRUE(done) << "everything was let go, and there is no room; " << core_->stats().disk_bytes
                    << " bytes in " << core_->stats().segments << " segments";
  ++counts_.drained;
}

}  // namespace forebay::buffer
