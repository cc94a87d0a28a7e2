// Goal: what is trained on is what was dispatched. Slow episodes go stale while fast ones are
// trained on; they must come back as themselves and not lose their place to faster ones.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/coordinator.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/trajectory/trajectory_testing.h"

namespace forebay::control {
namespace {

using std::chrono::milliseconds;

constexpr Duration kStep = milliseconds(1000);  // of the learner
constexpr Duration kFast = milliseconds(300);
constexpr Duration kSlow = milliseconds(7000);  // more steps than max_staleness allows
constexpr int64_t kTokensFast = 4, kTokensSlow = 60;

// Whether this episode is a slow (and long) one.
using IsSlow = std::function<bool(const Assignment&)>;

// Actors, a memory buffer and a learner on virtual time.
class Simulation {
 public:
  Simulation(const CoordinatorOptions& options, int64_t actors, IsSlow is_slow)
      : options_(options), is_slow_(std::move(is_slow)), idle_(actors), loop_(MakeVirtualLoop()) {
    buffer::BufferListener listener;
    listener.on_rejected = [this](const TrajectoryId& id, buffer::RejectReason reason) {
      loop_->Post([this, id, reason] { coordinator_->OnRejected(id, reason); });
    };
    auto opened = buffer::Buffer::Open({.durability = buffer::Durability::kMemory,
                                        .group_size = options.group_size,
                                        .max_staleness = options.max_staleness},
                                       0, std::move(listener), nullptr);
    FB_CHECK(opened.ok(), opened.status().ToString());
    buffer_ = std::move(opened).value();
    coordinator_ = std::make_unique<Coordinator>(options, buffer_.get());
    coordinator_->SetWake([this] { loop_->Post([this] { StartActors(); }); });
  }

  // Until all groups below `groups` are trained on, or `steps_max` steps were made.
  void Run(int64_t groups, int64_t steps_max) {
    groups_ = groups;
    steps_max_ = steps_max;
    loop_->Post([this] { StartActors(); });
    loop_->Post([this] { Learn(); });
    loop_->Run();
  }

  // Episodes of the groups below `groups`, by tokens: first attempts, and those trained on.
  const std::map<int64_t, int64_t>& dispatched() const { return dispatched_; }
  const std::map<int64_t, int64_t>& trained() const { return trained_; }
  const std::map<int64_t, int64_t>& trained_by_task() const { return trained_by_task_; }
  int64_t trained_early() const { return trained_early_; }
  int64_t steps() const { return version_; }
  buffer::Ledger ledger() const { return buffer_->ledger(); }

 private:
  void StartActors() {
    while (idle_ > 0) {
      auto next = coordinator_->TryNext();
      FB_CHECK(next.ok(), next.status().ToString());
      if (!next->has_value()) return;
      --idle_;
      const Assignment assignment = **next;
      const bool slow = is_slow_(assignment);
      const int64_t tokens = slow ? kTokensSlow : kTokensFast;
      if (assignment.id.attempt == 0 && assignment.id.group_id < groups_) ++dispatched_[tokens];
      loop_->RunAt(loop_->Now() + (slow ? kSlow : kFast), [this, assignment, tokens] {
        ++idle_;
        buffer_->Append(SimpleTrajectory(assignment.id, assignment.policy_version, 1,
                                         static_cast<int32_t>(tokens)),
                        TimePoint::max(),
                        [](const Status& status) { FB_CHECK(status.ok(), status.ToString()); });
        StartActors();
      });
    }
  }

  void Learn() {
    if (trained_early_ == groups_ * options_.group_size || version_ == steps_max_) {
      loop_->Stop();
      return;
    }
    auto batch = buffer_->Lease(options_.groups_per_step, version_, TimePoint::min());
    if (!batch.ok()) {
      FB_CHECK(batch.status().code() == StatusCode::kDeadlineExceeded, batch.status().ToString());
      loop_->RunAt(loop_->Now() + kStep / 10, [this] { Learn(); });
      return;
    }
    for (const auto& trajectory : batch->trajectories) {
      EXPECT_LE(version_ - trajectory->min_version(), options_.max_staleness);
      if (trajectory->id.group_id >= groups_) continue;
      ++trained_early_;
      ++trained_[trajectory->loss_tokens()];
      ++trained_by_task_[trajectory->id.task_id];
    }
    loop_->RunAt(loop_->Now() + kStep, [this, sequence = batch->sequence] {
      FB_CHECK(buffer_->MarkTrained(sequence).ok(), "trained");
      FB_CHECK(buffer_->Commit(sequence).ok(), "committed");
      coordinator_->OnPublished(++version_, buffer_->ledger().trained);
      Learn();
    });
  }

  const CoordinatorOptions options_;
  const IsSlow is_slow_;
  int64_t groups_ = 0, steps_max_ = 0;
  int64_t idle_;  // actors
  int64_t version_ = 0;
  std::map<int64_t, int64_t> dispatched_, trained_, trained_by_task_;
  int64_t trained_early_ = 0;  // of the groups below groups_
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<buffer::Buffer> buffer_;
  std::unique_ptr<Coordinator> coordinator_;
};

constexpr CoordinatorOptions kOptions{
    .groups_per_step = 2, .group_size = 2, .max_staleness = 2, .tasks = 16};
constexpr int64_t kEpochs = 5;
constexpr int64_t kGroups = kEpochs * kOptions.tasks;
// Beyond the groups that count, only those that pacing admits beside them are trained on.
constexpr int64_t kStepsMax = kGroups / kOptions.groups_per_step + 4 * (kOptions.max_staleness + 1);

void ExpectNoBias(const Simulation& simulation) {
  EXPECT_GT(simulation.ledger().rejected[static_cast<size_t>(buffer::RejectReason::kStale)], 0)
      << "nothing went stale: the promise was not tested";
  EXPECT_TRUE(simulation.ledger().balanced());
  EXPECT_LE(simulation.steps(), kStepsMax);
  EXPECT_EQ(simulation.trained_early(), kGroups * kOptions.group_size);
  EXPECT_GT(simulation.trained().at(kTokensSlow), 0);
  EXPECT_EQ(simulation.trained(), simulation.dispatched());
  EXPECT_EQ(static_cast<int64_t>(simulation.trained_by_task().size()), kOptions.tasks);
  for (const auto& [task, episodes] : simulation.trained_by_task())
    EXPECT_EQ(episodes, kEpochs * kOptions.group_size) << "task " << task;
}

TEST(BiasTest, B1_SlowTasksAreTrainedOnAsOftenAsDispatched) {
  Simulation simulation(kOptions, 12, [](const Assignment& a) { return a.id.task_id % 4 == 0; });
  simulation.Run(kGroups, kStepsMax);
  ExpectNoBias(simulation);
}

TEST(BiasTest, B1_SlowSamplesOfATaskAreTrainedOnAsOftenAsDispatched) {
  // Here chance makes an episode slow: a replacement with other luck would be a fast one.
  Simulation simulation(kOptions, 12,
                        [](const Assignment& a) { return Rng(a.seed).Below(4) == 0; });
  simulation.Run(kGroups, kStepsMax);
  ExpectNoBias(simulation);
}

}  // namespace
}  // namespace forebay::control
