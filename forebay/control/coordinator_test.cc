// Goal: what is admitted can still be trained on; failures are replaced alone; nothing is skipped
// or doubled.
#include "forebay/control/coordinator.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::control {
namespace {

Trajectory Finished(const Assignment& a, Outcome outcome = Outcome::kDone) {
  Trajectory t;
  t.id = a.id;
  t.environment = "e";
  t.tokens = {1, 2};
  t.loss_mask = {0, 1};
  t.rollout_logprobs = {0, -1};
  t.versions = {{a.policy_version, 1}};
  t.turns = {{.kind = TurnKind::kPrompt, .begin = 0, .end = 1},
             {.kind = TurnKind::kAction, .begin = 1, .end = 2}};
  t.outcome = outcome;
  return t;
}

// A memory buffer whose rejections are delivered when the test says (as the loop does in a run).
struct Rig {
  explicit Rig(CoordinatorOptions options) : options(options) {
    buffer::BufferListener listener;
    listener.on_rejected = [this](const TrajectoryId& id, buffer::RejectReason reason) {
      rejected.push_back({id, reason});
    };
    buffer::Recovery recovery;
    auto opened = buffer::Buffer::Open({.durability = buffer::Durability::kMemory,
                                        .group_size = options.group_size,
                                        .max_staleness = options.max_staleness},
                                       0, listener, &recovery);
    FB_CHECK(opened.ok(), opened.status().ToString());
    buffer = std::move(opened).value();
    coordinator = std::make_unique<Coordinator>(options, buffer.get(), recovery);
  }

  std::vector<Assignment> TakeAll() {
    std::vector<Assignment> out;
    while (true) {
      auto next = coordinator->TryNext();
      FB_CHECK(next.ok(), next.status().ToString());
      if (!next->has_value()) return out;
      out.push_back(**next);
    }
  }
  // `late`: whether its group may have been closed meanwhile.
  void Append(Trajectory t, bool late = false) {
    buffer->Append(std::move(t), Now() + std::chrono::seconds(10), [late](const Status& s) {
      ASSERT_TRUE(s.ok() || (late && s.code() == StatusCode::kNotFound)) << s.ToString();
    });
    Deliver();
  }
  void Deliver() {
    for (auto& [id, reason] : std::exchange(rejected, {})) coordinator->OnRejected(id, reason);
  }
  void Train(int64_t version) {
    auto batch = buffer->Lease(options.groups_per_step, version, Now() + std::chrono::seconds(10));
    ASSERT_TRUE(batch.ok()) << batch.status().ToString();
    ASSERT_TRUE(buffer->MarkTrained(batch->sequence).ok());
    coordinator->OnPublished(version + 1, buffer->ledger().trained);
    Deliver();
  }

  CoordinatorOptions options;
  std::vector<std::pair<TrajectoryId, buffer::RejectReason>> rejected;
  std::unique_ptr<buffer::Buffer> buffer;
  std::unique_ptr<Coordinator> coordinator;
};

TEST(CoordinatorTest, ZeroStalenessAdmitsExactlyOneBatchAVersion) {
  Rig rig({.groups_per_step = 2, .group_size = 3, .max_staleness = 0});
  for (int64_t version = 0; version < 3; ++version) {
    const std::vector<Assignment> batch = rig.TakeAll();
    ASSERT_EQ(batch.size(), 6u);
    for (const Assignment& a : batch) {
      EXPECT_EQ(a.policy_version, version);
      rig.Append(Finished(a));
    }
    EXPECT_TRUE(rig.TakeAll().empty());  // complete, but not trained on and published
    rig.Train(version);
  }
  EXPECT_TRUE(rig.buffer->ledger().balanced());
}

TEST(CoordinatorTest, AdmitsStalenessPlusOneBatches) {
  Rig rig({.groups_per_step = 2, .group_size = 2, .max_staleness = 2});
  EXPECT_EQ(rig.TakeAll().size(), 12u);
  EXPECT_EQ(rig.coordinator->stats().alive, 12);
}

TEST(CoordinatorTest, TheStockBehindTheActorsStaysSmall) {
  // 40 batches could be trained on in time, but 10 actors and two batches to spare are all it
  // takes.
  Rig rig({.groups_per_step = 2, .group_size = 2, .max_staleness = 40, .actors = 10});
  EXPECT_EQ(rig.TakeAll().size(), 18u);  // 10 + 2 * 4
  EXPECT_EQ(rig.coordinator->stats().alive_max, 18);
}

TEST(CoordinatorTest, B3_OnlyTheFailedMemberIsReplaced) {
  Rig rig({.groups_per_step = 1, .group_size = 3, .max_staleness = 0});
  const std::vector<Assignment> first = rig.TakeAll();
  ASSERT_EQ(first.size(), 3u);
  rig.Append(Finished(first[0]));
  rig.Append(Finished(first[1], Outcome::kEnvError));
  rig.Append(Finished(first[2]));
  const std::vector<Assignment> again = rig.TakeAll();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].id.member, first[1].id.member);
  EXPECT_EQ(again[0].id.group_id, first[1].id.group_id);
  EXPECT_EQ(again[0].id.task_id, first[1].id.task_id);
  EXPECT_EQ(again[0].id.attempt, 1);
  EXPECT_NE(again[0].id.trajectory_id, first[1].id.trajectory_id);
  EXPECT_NE(again[0].seed, first[1].seed);
  rig.Append(Finished(again[0]));
  rig.Train(0);
  EXPECT_EQ(rig.buffer->ledger().trained, 3);
}

TEST(CoordinatorTest, L2_ATaskThatKeepsFailingIsQuarantinedAndTheRunGoesOn) {
  Rig rig(
      {.groups_per_step = 1, .group_size = 2, .max_staleness = 0, .tasks = 3, .attempts_max = 3});
  std::set<int64_t> quarantined;
  for (int round = 0; round < 40 && rig.buffer->ledger().trained < 12; ++round) {
    for (const Assignment& a : rig.TakeAll()) {
      const bool fails = a.id.task_id == 1;
      rig.Append(Finished(a, fails ? Outcome::kEnvTimeout : Outcome::kDone), /*late=*/fails);
    }
    if (rig.buffer->stats().ready_groups > 0) rig.Train(rig.coordinator->stats().published_version);
  }
  EXPECT_EQ(rig.buffer->ledger().trained, 12);
  EXPECT_EQ(rig.coordinator->stats().quarantined_tasks, (std::vector<int64_t>{1}));
  EXPECT_TRUE(rig.buffer->ledger().balanced());
}

TEST(CoordinatorTest, L2_QuarantineAndFaultsGoOnInTheNextProcess) {
  const CoordinatorOptions options{
      .groups_per_step = 1, .group_size = 2, .max_staleness = 0, .tasks = 3, .attempts_max = 3};
  std::string state;
  uint64_t replayed_seed = 0;
  {
    Rig rig(options);
    // One member fails twice: once more, and its task is in quarantine.
    for (int fault = 0; fault < 2; ++fault) {
      for (const Assignment& a : rig.TakeAll()) {
        if (a.id.member == 0) rig.Append(Finished(a, Outcome::kEnvTimeout));
      }
    }
    state = rig.coordinator->SaveState();
    for (const Assignment& a : rig.TakeAll()) replayed_seed = a.seed;
  }
  {
    Rig rig(options);
    ASSERT_TRUE(rig.coordinator->RestoreState(state).ok());
    EXPECT_EQ(rig.coordinator->SaveState(), state);
    const auto first = rig.TakeAll();
    ASSERT_EQ(first.size(), 2U);
    EXPECT_EQ(first[0].seed, replayed_seed);  // the same sample that the dead process played
    rig.Append(Finished(first[0], Outcome::kEnvTimeout));
    EXPECT_EQ(rig.coordinator->stats().quarantined_tasks,
              (std::vector<int64_t>{first[0].id.task_id}));
    state = rig.coordinator->SaveState();
  }
  Rig rig(options);
  ASSERT_TRUE(rig.coordinator->RestoreState(state).ok());
  const int64_t bad = rig.coordinator->stats().quarantined_tasks.at(0);
  for (int round = 0; round < 6; ++round) {
    for (const Assignment& a : rig.TakeAll()) {
      EXPECT_NE(a.id.task_id, bad);
      rig.Append(Finished(a));
    }
    if (rig.buffer->stats().ready_groups > 0) rig.Train(rig.coordinator->stats().published_version);
  }
  EXPECT_GT(rig.buffer->ledger().trained, 0);
}

// Every member in flight fails at once, as when a server or an environment's process dies.
TEST(CoordinatorTest, L2_OneDeathUnderAWholeGroupCostsNoTask) {
  Rig rig({.groups_per_step = 2, .group_size = 16, .max_staleness = 0, .tasks = 2});
  // One less than attempts_max: the waves count, not the members in them.
  for (int wave = 0; wave < 3; ++wave) {
    const std::vector<Assignment> all = rig.TakeAll();
    ASSERT_EQ(all.size(), 32u);
    for (const Assignment& a : all) {
      EXPECT_EQ(a.id.attempt, wave);
      rig.Append(Finished(a, Outcome::kEnvError));
    }
    EXPECT_TRUE(rig.coordinator->stats().quarantined_tasks.empty());
  }
  for (const Assignment& a : rig.TakeAll()) rig.Append(Finished(a));
  rig.Train(0);
  EXPECT_EQ(rig.buffer->ledger().trained, 32);
  EXPECT_TRUE(rig.buffer->ledger().balanced());
}

TEST(CoordinatorTest, L2_ATaskThatAlwaysFailsCostsABoundedNumberOfAttempts) {
  Rig rig({.groups_per_step = 1, .group_size = 16, .max_staleness = 0, .tasks = 2});
  int64_t failed = 0;
  for (int round = 0; round < 40 && rig.buffer->ledger().trained < 48; ++round) {
    for (const Assignment& a : rig.TakeAll()) {
      const bool fails = a.id.task_id == 1;
      failed += fails ? 1 : 0;
      rig.Append(Finished(a, fails ? Outcome::kEnvError : Outcome::kDone), /*late=*/fails);
    }
    if (rig.buffer->stats().ready_groups > 0) rig.Train(rig.coordinator->stats().published_version);
  }
  EXPECT_EQ(rig.coordinator->stats().quarantined_tasks, (std::vector<int64_t>{1}));
  EXPECT_EQ(rig.buffer->ledger().trained, 48);
  EXPECT_GT(failed, 3 * 16);  // not the first wave
  EXPECT_LE(failed, 4 * 16);
}

TEST(CoordinatorTest, AStateThatCannotBeReadChangesNothing) {
  Rig rig({.group_size = 2});
  const std::string empty = rig.coordinator->SaveState();
  EXPECT_TRUE(rig.coordinator->RestoreState("{}").ok());
  for (const char* bad :
       {"", "[]", "7", R"({"quarantined_tasks": "x"})",
        R"({"quarantined_tasks": [1], "faults": 3})",
        R"({"quarantined_tasks": [1], "faults": [{}]})", R"({"quarantined_tasks": [1e300]})",
        R"({"faults": [{"group": 1, "members": [[1]]}]})"}) {
    EXPECT_EQ(rig.coordinator->RestoreState(bad).code(), StatusCode::kDataLoss) << bad;
    EXPECT_EQ(rig.coordinator->SaveState(), empty) << bad;
  }
}

TEST(CoordinatorTest, L3_TasksGoOnOverShuffledEpochs) {
  const CoordinatorOptions options{.seed = 5, .tasks = 7};
  std::map<int64_t, int> seen;
  std::vector<int64_t> first, second;
  for (int64_t g = 0; g < 14; ++g) {
    const int64_t task = Coordinator::TaskOf(options, g);
    ++seen[task];
    (g < 7 ? first : second).push_back(task);
  }
  EXPECT_EQ(seen.size(), 7u);
  for (const auto& [task, count] : seen) EXPECT_EQ(count, 2);
  EXPECT_NE(first, second);
  EXPECT_EQ(Coordinator::TaskOf({.tasks = 0}, 123456), 123456);
}

TEST(CoordinatorTest, D2_RecoveryDispatchesWhatIsMissingThenGoesOn) {
  Rig rig({.groups_per_step = 2, .group_size = 2, .max_staleness = 1});
  buffer::Recovery recovery;
  recovery.next_trajectory_id = 100;
  recovery.next_group_id = 5;
  recovery.missing = {{3, 1, 2, 33}, {4, 0, 1, 44}};
  Coordinator coordinator(rig.options, rig.buffer.get(), recovery);
  const Assignment a = **coordinator.TryNext();
  EXPECT_EQ(a.id, (TrajectoryId{100, 3, 1, 2, 33}));
  const Assignment b = **coordinator.TryNext();
  EXPECT_EQ(b.id, (TrajectoryId{101, 4, 0, 1, 44}));
  const Assignment c = **coordinator.TryNext();
  EXPECT_EQ(c.id.group_id, 5);
}

TEST(CoordinatorTest, StoppedAdmitsNothing) {
  Rig rig({});
  int wakes = 0;
  rig.coordinator->SetWake([&] { ++wakes; });
  rig.coordinator->Stop();
  EXPECT_TRUE(rig.TakeAll().empty());
  EXPECT_EQ(wakes, 1);
}

}  // namespace
}  // namespace forebay::control
