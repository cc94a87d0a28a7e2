// A seeded simulator: actors, a learner and checkpoints over a disk that fails, process after
// process, against a naive record of what was promised. A failing schedule is named by its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : rng_(seed), disk_(DeriveSeed(seed, 1)) {
    options_ = {.folder = "log",
                .durability = rng_.Below(2) == 0 ? Durability::kOs : Durability::kSync,
                .group_size = static_cast<int32_t>(1 + rng_.Below(3)),
                .max_staleness = static_cast<int64_t>(rng_.Below(4)),
                .segment_bytes = static_cast<int64_t>(2048U << rng_.Below(4)),
                .memory_bytes_max = static_cast<int64_t>(4000U << rng_.Below(6)),
                .disk_bytes_max = static_cast<int64_t>(65536U << rng_.Below(3))};
  }

  void Run() {
    for (int process = 0; process < 5 && !testing::Test::HasFailure(); ++process) {
      Open();
      if (testing::Test::HasFailure()) return;
      if (rng_.Below(2) == 0) {
        disk_.SetFaults({.write_error = rng_.Below(8),
                         .write_full = rng_.Below(40),
                         .sync_error = rng_.Below(8),
                         .create_full = rng_.Below(200)});
      }
      for (uint64_t steps = rng_.Below(160); steps > 0; --steps) {
        Step();
        ASSERT_TRUE(core_->ledger().balanced());
      }
      End();
    }
  }

  int64_t acknowledged() const { return acknowledged_total_; }
  int64_t replays() const { return replays_; }
  int64_t faults() const { return disk_.faults_made(); }

 private:
  struct Lease {
    std::vector<Trajectory> content;
    int64_t learner_version;
  };

  void Open() {
    Recovery recovery;
    BufferListener listener;
    listener.on_rejected = [this](const TrajectoryId& id, RejectReason reason) {
      if (reason != RejectReason::kStale || dying_) return;
      rejected_.insert(id.trajectory_id);
      vacant_.push_back({id.group_id, id.member, id.attempt + 1, id.task_id});
    };
    Result<std::unique_ptr<Core>> core =
        Core::Open(&disk_, options_, checkpoint_, listener, &recovery, true);
    ASSERT_TRUE(core.ok()) << core.status().ToString();
    core_ = std::move(*core);
    const Table table = core_->table();
    const Ledger ledger = table.ledger();
    ASSERT_TRUE(ledger.balanced());
    EXPECT_EQ(ledger.in_flight, 0);
    EXPECT_LE(ledger.dispatched, dispatched_);
    CheckAcknowledged(table, recovery);
    CheckReplays(table);
    EXPECT_GE(recovery.next_trajectory_id, last_acknowledged_ + 1);
    in_flight_.clear();
    vacant_.clear();
    for (const MissingMember& m : recovery.missing) vacant_.push_back(m);
    next_group_ = std::max(next_group_, recovery.next_group_id);
    learner_version_ = checkpoint_;
    trained_ = checkpoint_;
    damaged_ = false;
  }

  // Acknowledged, not rejected, not trained on in the weights: pending, with its content.
  void CheckAcknowledged(const Table& table, const Recovery& recovery) {
    std::set<int64_t> pending;
    for (const std::string& note : recovery.notes) history_ += "; " + note;
    if (damaged_) history_ += "; a bit was flipped";
    for (const TrajectoryId& id : table.PendingIds()) {
      pending.insert(id.trajectory_id);
      EXPECT_EQ(consumed_.count(id.trajectory_id), 0U)
          << "trained on, and pending again, after " << history_;
    }
    int64_t lost = 0;
    std::string names;
    for (const int64_t id : acknowledged_) {
      if (consumed_.count(id) == 0 && rejected_.count(id) == 0 && pending.count(id) == 0) {
        ++lost;
        names += std::to_string(id) + " ";
      }
    }
    if (damaged_) {
      EXPECT_LE(lost, table.ledger().rejected[static_cast<size_t>(RejectReason::kQuarantined)] +
                          table.ledger().rejected[static_cast<size_t>(RejectReason::kLostInCrash)]);
    } else {
      EXPECT_EQ(lost, 0) << "acknowledged and lost: " << names << "after " << history_;
    }
    // What was damaged is known to be gone from here on.
    std::erase_if(acknowledged_, [&](int64_t id) { return pending.count(id) == 0; });
    for (const int64_t id : rejected_) acknowledged_.erase(id);
    // Written, and the process died before it could say so: as good as acknowledged.
    acknowledged_.insert(pending.begin(), pending.end());
    // A rejection that was not flushed when the power went is undone.
    std::set<int64_t> still_rejected;
    for (const int64_t id : rejected_) {
      if (pending.count(id) == 0) still_rejected.insert(id);
    }
    rejected_ = std::move(still_rejected);
    // A power loss can leave a hole before a later record of the same, unacknowledged, write.
    if (!ever_damaged_) {
      EXPECT_EQ(recovery.quarantined_records, 0) << recovery.notes.back();
    }
  }

  void CheckReplays(const Table& table) {
    for (auto it = leases_.upper_bound(checkpoint_); it != leases_.end(); ++it) {
      const BatchState* batch = table.FindBatch(it->first);
      if (batch == nullptr) {
        EXPECT_TRUE(damaged_) << "batch " << it->first << " is not replayed";
        leases_.erase(it, leases_.end());
        return;
      }
      EXPECT_TRUE(batch->replay);
      const auto content = table.Content(*batch);
      ASSERT_EQ(content.size(), it->second.content.size());
      for (size_t i = 0; i < content.size(); ++i) EXPECT_EQ(*content[i], it->second.content[i]);
      EXPECT_EQ(batch->learner_version, it->second.learner_version);
      ++replays_;
    }
  }

  void Step() {
    switch (rng_.Below(12)) {
      case 0:
      case 1:
      case 2:
        DispatchOne();
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        AppendOne();
        break;
      case 7:
        RejectOne();
        break;
      case 8:
        LeaseOne();
        break;
      case 9:
        TrainOne();
        break;
      case 10:
        CheckpointOne();
        break;
      case 11:
        if (rng_.Below(8) == 0 && next_group_ > 0) {
          const auto group = static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(next_group_)));
          const Table before = core_->table();
          if (core_->CloseGroup(group).ok()) ForgetGroup(group, before);
        } else {
          core_->Pump();
        }
        break;
    }
  }

  void ForgetGroup(int64_t group, const Table& before) {
    for (const TrajectoryId& id : before.PendingIds()) {
      if (id.group_id == group) rejected_.insert(id.trajectory_id);
    }
    std::erase_if(in_flight_, [&](const TrajectoryId& id) { return id.group_id == group; });
    std::erase_if(vacant_, [&](const MissingMember& m) { return m.group_id == group; });
  }

  void DispatchOne() {
    MissingMember member{};
    if (!vacant_.empty()) {
      member = vacant_.back();
      vacant_.pop_back();
    } else {
      for (int32_t i = options_.group_size - 1; i >= 0; --i)
        vacant_.push_back({next_group_, i, 0, next_group_});
      ++next_group_;
      return DispatchOne();
    }
    const TrajectoryId id{.trajectory_id = next_id_++,
                          .group_id = member.group_id,
                          .member = member.member,
                          .attempt = member.next_attempt,
                          .task_id = member.task_id};
    // A group that was closed while this member was vacant takes no more.
    if (!core_->Dispatch(id).ok()) return;
    in_flight_.push_back(id);
    ++dispatched_;
  }

  TrajectoryId TakeInFlight() {
    std::swap(in_flight_[rng_.Below(in_flight_.size())], in_flight_.back());
    const TrajectoryId id = in_flight_.back();
    in_flight_.pop_back();
    return id;
  }

  void AppendOne() {
    if (in_flight_.empty()) return;
    const TrajectoryId id = TakeInFlight();
    const int64_t version =
        std::max<int64_t>(0, learner_version_ - static_cast<int64_t>(rng_.Below(3)));
    Trajectory t = SimpleTrajectory(id, version, 4, static_cast<int32_t>(1 + rng_.Below(60)));
    const bool fails = rng_.Below(10) == 0;
    if (fails) t.outcome = Outcome::kEnvError;
    core_->Append(std::move(t), Now(), [this, id, fails](const Status& status) {
      if (dying_) return;
      if (status.ok() && !fails) {
        acknowledged_.insert(id.trajectory_id);
        last_acknowledged_ = std::max(last_acknowledged_, id.trajectory_id);
        ++acknowledged_total_;
      } else if (status.ok()) {
        vacant_.push_back({id.group_id, id.member, id.attempt + 1, id.task_id});
      } else if (status.code() != StatusCode::kNotFound) {
        in_flight_.push_back(id);  // refused: the attempt is not over
      }
    });
    if (rng_.Below(3) != 0) core_->Pump();  // else several go in one group
  }

  void RejectOne() {
    if (in_flight_.empty()) return;
    const TrajectoryId id = TakeInFlight();
    if (core_->Reject(id, RejectReason::kOutcome).ok()) {
      vacant_.push_back({id.group_id, id.member, id.attempt + 1, id.task_id});
    } else {
      in_flight_.push_back(id);
    }
  }

  void LeaseOne() {
    Result<Batch> batch =
        core_->Lease(static_cast<int64_t>(1 + rng_.Below(2)), learner_version_, Now());
    if (!batch.ok()) return;
    Lease lease{.learner_version = batch->learner_version};
    for (const TrajectoryPtr& t : batch->trajectories) {
      if (!batch->replay) {
        EXPECT_LE(learner_version_ - t->min_version(), options_.max_staleness);
      }
      EXPECT_TRUE(batch->replay || acknowledged_.count(t->id.trajectory_id) > 0);
      lease.content.push_back(*t);
    }
    leases_[batch->sequence] = std::move(lease);
    handed_ = std::max(handed_, batch->sequence);
  }

  void TrainOne() {
    if (leases_.count(trained_ + 1) == 0) return;
    if (core_->MarkTrained(trained_ + 1).ok()) {
      ++trained_;
      ++learner_version_;
    }
  }

  // The manifest is durable first, then the buffer is told; it may die between the two.
  void CheckpointOne() {
    if (trained_ <= checkpoint_) return;
    for (int64_t batch = checkpoint_ + 1; batch <= trained_; ++batch) {
      for (const Trajectory& t : leases_.at(batch).content) {
        EXPECT_TRUE(consumed_.insert(t.id.trajectory_id).second) << "trained on twice";
      }
    }
    checkpoint_ = trained_;
    if (rng_.Below(4) != 0) core_->Commit(checkpoint_).ok();
  }

  void End() {
    dying_ = true;
    history_.clear();
    const uint64_t how = rng_.Below(4);
    if (how == 0) {
      disk_.SetFaults({});
      history_ = "a clean end";
      core_->Close();
    } else if (how == 1 && options_.durability == Durability::kSync) {
      disk_.PowerLoss();
      history_ = "a power loss";
      ever_damaged_ = true;
    } else {
      disk_.Kill();
      history_ = "a kill";
    }
    core_.reset();
    disk_.Restart();
    dying_ = false;
    if (rng_.Below(4) == 0) damaged_ = disk_.FlipBit();
    ever_damaged_ = ever_damaged_ || damaged_;
    handed_ = checkpoint_;
  }

  Rng rng_;
  SimDisk disk_;
  BufferOptions options_;
  std::unique_ptr<Core> core_;
  bool dying_ = false, damaged_ = false, ever_damaged_ = false;
  int64_t next_id_ = 1, next_group_ = 0, dispatched_ = 0;
  int64_t checkpoint_ = 0, trained_ = 0, learner_version_ = 0, handed_ = 0;
  int64_t last_acknowledged_ = 0, acknowledged_total_ = 0, replays_ = 0;
  std::string history_ = "nothing";  // how the last process ended
  std::vector<TrajectoryId> in_flight_;
  std::vector<MissingMember> vacant_;
  std::set<int64_t> acknowledged_, rejected_, consumed_;
  std::map<int64_t, Lease> leases_;
};

TEST(Simulation, PromisesHoldOverHundredsOfSchedules) {
  int64_t acknowledged = 0, replays = 0, faults = 0;
  // FOREBAY_SIMULATION_SEEDS=20000 for a soak.
  const char* asked = std::getenv("FOREBAY_SIMULATION_SEEDS");
  const uint64_t seeds = asked == nullptr ? 400 : std::strtoull(asked, nullptr, 10);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed);
    simulation.Run();
    if (testing::Test::HasFailure()) return;
    acknowledged += simulation.acknowledged();
    replays += simulation.replays();
    faults += simulation.faults();
  }
  // The schedules reach what they are for.
  EXPECT_GT(acknowledged, 10000);
  EXPECT_GT(replays, 100);
  EXPECT_GT(faults, 1000);
  std::printf("acknowledged %ld, replays %ld, faults %ld\n", static_cast<long>(acknowledged),
              static_cast<long>(replays), static_cast<long>(faults));
}

}  // namespace
}  // namespace forebay::buffer
