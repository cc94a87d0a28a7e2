// What the clients, readers and the learner of a Simulation do.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/core/simulation_testing.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::buffer {

void Simulation::Step() {
  const uint64_t what = rng_.Below(100);
  if (what < 22) return DispatchOne();
  if (what < 52) return AppendOne();
  if (what < 55) return AppendAgain();
  if (what < 60) return RejectOne();
  if (what < 61) return CloseOne();
  if (what < 70) return LeaseOne();
  if (what < 73) return ReadBatchOne();
  if (what < 81) return TrainOne();
  if (what < 86) return CheckpointOne();
  if (what < 89) return TakeOne();
  if (what < 93) return EndTake();
  if (what < 94) {
    core_->Pause(rng_.Below(4) == 0, rng_.Below(4) == 0);
  } else if (what < 95) {
    core_->Unblock("the simulation");
  }
  PumpNow();
}

void Simulation::CheckStep() {
  const Ledger ledger = core_->ledger();
  ASSERT_TRUE(ledger.balanced());
  // A crash while live records move leaves some of a segment in two.
  ASSERT_LE(disk_.used_bytes(), options_.disk_bytes_max + options_.segment_bytes)
      << core_->stats().segments;
}

void Simulation::PumpNow() {
  core_->Pump();
  std::erase_if(takes_, [this](const Held& held) {
    if (!held.expires) return false;
    ++counts_.expired;
    for (const TrajectoryView& t : held.taken.trajectories) held_ids_.erase(t.id.trajectory_id);
    if (!dead()) {
      const StatusCode late = core_->Acknowledge(held.taken.take_id).code();
      EXPECT_TRUE(late == StatusCode::kNotFound || late == StatusCode::kUnavailable);
    }
    return true;
  });
}

// ---- clients

void Simulation::DispatchOne() {
  if (vacant_.empty()) {
    for (int32_t i = options_.group_size - 1; i >= 0; --i) {
      vacant_.push_back({next_group_, i, 0, next_group_});
    }
    ++next_group_;
  }
  const MissingMember member = vacant_.back();
  vacant_.pop_back();
  const TrajectoryId id{.trajectory_id = next_id_++,
                        .group_id = member.group_id,
                        .member = member.member,
                        .attempt = member.next_attempt,
                        .task_id = member.task_id};
  // A group that was closed while this member was vacant takes no more.
  if (!implied() && !core_->Dispatch(id).ok()) return;
  const int64_t version =
      std::max<int64_t>(0, learner_version_ - static_cast<int64_t>(rng_.Below(3)));
  const auto tokens = static_cast<int32_t>(1 + rng_.Below(rng_.Below(3) == 0 ? 2500 : 300));
  Trajectory t = SimpleTrajectory(id, version, 4, tokens);
  const bool fails = rng_.Below(10) == 0;
  if (fails) t.outcome = Outcome::kEnvError;
  in_flight_.push_back({.id = id, .encoded = Encode(t), .fails = fails});
  content_[id.trajectory_id] = in_flight_.back().encoded;
}

void Simulation::AppendOne() {
  if (in_flight_.empty()) return DispatchOne();
  std::swap(in_flight_[rng_.Below(in_flight_.size())], in_flight_.back());
  Job job = std::move(in_flight_.back());
  in_flight_.pop_back();
  Ask(std::move(job));
  if (rng_.Below(3) != 0) PumpNow();  // else several go in one group
}

void Simulation::Ask(Job job) {
  const int64_t id = job.id.trajectory_id;
  const std::string encoded = job.encoded;
  asked_[id] = std::move(job);
  const AppendOptions append{.deadline = Now(), .priority = static_cast<float>(rng_.Below(3))};
  core_->AppendEncoded(encoded, append, [this, id](const Status& status) {
    if (dead()) return;
    const auto asked = asked_.find(id);
    if (asked == asked_.end()) {
      ADD_FAILURE() << "append " << id << " was answered twice";
      return;
    }
    const Job answered = std::move(asked->second);
    asked_.erase(asked);
    OnAppended(answered, status);
  });
}

void Simulation::OnAppended(const Job& job, const Status& status) {
  const TrajectoryId& id = job.id;
  if (status.ok() && job.fails) {
    vacant_.push_back({id.group_id, id.member, id.attempt + 1, id.task_id});
  } else if (status.ok()) {
    acknowledged_.insert(id.trajectory_id);
    last_acknowledged_ = std::max(last_acknowledged_, id.trajectory_id);
    appended_.push_back(job);
    ++counts_.acknowledged;
    // Everything that was noted before it is durable too.
    read_.insert(read_unsure_.begin(), read_unsure_.end());
    read_unsure_.clear();
  } else if (status.code() != StatusCode::kNotFound &&
             status.code() != StatusCode::kFailedPrecondition) {
    in_flight_.push_back(job);  // refused: the attempt is not over
  }
}

// A client that did not get its answer appends again: once is enough.
void Simulation::AppendAgain() {
  // What was damaged may be stored anew.
  if (appended_.empty() || (implied() && ever_flipped_)) return;
  const Job& job = appended_[rng_.Below(appended_.size())];
  const BufferStats before = core_->stats();
  core_->AppendEncoded(
      job.encoded, {.deadline = Now()}, [this, id = job.id.trajectory_id](const Status& status) {
        if (dead() || status.code() == StatusCode::kUnavailable) return;
        EXPECT_EQ(status.code(), implied() ? StatusCode::kOk : StatusCode::kNotFound)
            << "trajectory " << id << ": " << status.ToString();
        ++counts_.duplicates;
      });
  EXPECT_EQ(core_->stats().appends, before.appends);
}

void Simulation::RejectOne() {
  if (in_flight_.empty() || implied()) return;
  std::swap(in_flight_[rng_.Below(in_flight_.size())], in_flight_.back());
  const TrajectoryId id = in_flight_.back().id;
  if (core_->Reject(id, RejectReason::kOutcome).ok()) {
    in_flight_.pop_back();
    vacant_.push_back({id.group_id, id.member, id.attempt + 1, id.task_id});
  }
}

void Simulation::CloseOne() {
  if (next_group_ > 0 && rng_.Below(2) == 0) {
    Close(static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(next_group_))));
  }
}

void Simulation::Close(int64_t group) {
  const Table before = core_->table();
  const Status closed = core_->CloseGroup(group);
  if (!closed.ok() && closed.code() != StatusCode::kNotFound) return;
  for (const TrajectoryId& id : before.PendingIds()) {
    if (id.group_id == group) rejected_.insert(id.trajectory_id);
  }
  // With implied dispatch the append of what was closed is acknowledged, as a duplicate is.
  for (const auto& [id, job] : asked_) {
    if (job.id.group_id == group) rejected_.insert(id);
  }
  std::erase_if(in_flight_, [&](const Job& job) { return job.id.group_id == group; });
  std::erase_if(vacant_, [&](const MissingMember& m) { return m.group_id == group; });
}

// ---- the learner

void Simulation::CheckGiven(const TrajectoryId& id, const std::string& encoded) {
  EXPECT_TRUE(encoded == content_.at(id.trajectory_id)) << id.trajectory_id;
  EXPECT_GT(acknowledged_.count(id.trajectory_id), 0U) << id.trajectory_id;
  EXPECT_EQ(consumed_.count(id.trajectory_id), 0U) << id.trajectory_id << " after " << history_;
  EXPECT_TRUE(held_ids_.insert(id.trajectory_id).second)
      << id.trajectory_id << " was given to two readers";
}

void Simulation::LeaseOne() {
  PumpNow();  // takes that expire do so now, not in Lease
  const Result<Batch> batch =
      core_->Lease(static_cast<int64_t>(1 + rng_.Below(2)), learner_version_, Now());
  if (!batch.ok() || dead()) return;
  Lease lease{.learner_version = batch->learner_version};
  for (const TrajectoryPtr& t : batch->trajectories) {
    if (!batch->replay) {
      EXPECT_LE(learner_version_ - t->min_version(), options_.max_staleness);
    }
    CheckGiven(t->id, Encode(*t));
    lease.ids.push_back(t->id.trajectory_id);
  }
  const auto known = leases_.find(batch->sequence);
  if (known != leases_.end()) {
    EXPECT_TRUE(batch->replay) << batch->sequence;
    EXPECT_EQ(known->second.ids, lease.ids);
    EXPECT_EQ(known->second.learner_version, lease.learner_version);
  }
  leases_[batch->sequence] = std::move(lease);
}

void Simulation::ReadBatchOne() {
  if (leases_.empty()) return;
  const int64_t newest = leases_.rbegin()->first;
  const int64_t sequence = newest - static_cast<int64_t>(rng_.Below(6));
  const auto shards = static_cast<int32_t>(1 + rng_.Below(3));
  size_t read = 0;
  for (int32_t shard = 0; shard < shards; ++shard) {
    const Result<Batch> part = core_->ReadBatch(sequence, shard, shards);
    if (!part.ok()) {
      EXPECT_TRUE(part.status().code() == StatusCode::kNotFound || ever_flipped_)
          << part.status().ToString();
      return;
    }
    read += part->trajectories.size();
    for (const TrajectoryPtr& t : part->trajectories) {
      EXPECT_TRUE(Encode(*t) == content_.at(t->id.trajectory_id)) << t->id.trajectory_id;
    }
  }
  const auto lease = leases_.find(sequence);
  if (lease != leases_.end()) {
    EXPECT_EQ(read, lease->second.ids.size());
  }
}

void Simulation::TrainOne() {
  if (leases_.count(trained_ + 1) == 0) return;
  if (core_->MarkTrained(trained_ + 1).ok()) {
    ++trained_;
    ++learner_version_;
  }
}

// The manifest is durable first, then the buffer is told; it may die between the two.
void Simulation::CheckpointOne() {
  if (trained_ <= checkpoint_) return;
  for (int64_t batch = checkpoint_ + 1; batch <= trained_; ++batch) {
    for (const int64_t id : leases_.at(batch).ids) {
      EXPECT_TRUE(consumed_.insert(id).second) << id << " is trained on twice";
    }
  }
  checkpoint_ = trained_;
  checkpoints_.push_back(checkpoint_);
  if (rng_.Below(4) != 0) core_->Commit(checkpoint_).ok();
  if (options_.retain_committed && rng_.Below(2) == 0) {
    const size_t keep = 1 + rng_.Below(checkpoints_.size());
    checkpoints_.erase(checkpoints_.begin(),
                       checkpoints_.end() - static_cast<std::ptrdiff_t>(keep));
    core_->Release(checkpoints_.front()).ok();
  }
}

// ---- other readers

void Simulation::TakeOne() {
  Held held{.expires = rng_.Below(3) == 0};
  const TakeOptions options{.groups = static_cast<int64_t>(1 + rng_.Below(2)),
                            .learner_version = learner_version_,
                            .selector = static_cast<Selector>(rng_.Below(3)),
                            .expires_after = held.expires ? Duration(std::chrono::nanoseconds(1))
                                                          : Duration(std::chrono::hours(10))};
  Result<Taken> taken = core_->Take(options, Now());
  if (!taken.ok() || dead()) return;
  for (const TrajectoryView& t : taken->trajectories) {
    EXPECT_LE(learner_version_ - t.min_version, options_.max_staleness);
    CheckGiven(t.id, std::string(t.encoded));
  }
  held.taken = std::move(*taken);
  takes_.push_back(std::move(held));
  ++counts_.taken;
}

void Simulation::EndTake() {
  if (takes_.empty()) return;
  const Held held = std::move(takes_.back());
  takes_.pop_back();
  // Whatever was recycled meanwhile, not what it sees.
  for (const TrajectoryView& t : held.taken.trajectories) {
    EXPECT_TRUE(t.encoded == content_.at(t.id.trajectory_id)) << t.id.trajectory_id;
    held_ids_.erase(t.id.trajectory_id);
  }
  if (rng_.Below(3) == 0) {
    core_->GiveBack(held.taken.take_id).ok();
    return;
  }
  const Status status = core_->Acknowledge(held.taken.take_id);
  if (!status.ok() || dead()) return;
  for (const TrajectoryView& t : held.taken.trajectories) {
    consumed_.insert(t.id.trajectory_id);
    (options_.durability == Durability::kOs ? read_ : read_unsure_).insert(t.id.trajectory_id);
  }
}

}  // namespace forebay::buffer
