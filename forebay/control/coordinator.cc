#include "forebay/control/coordinator.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::control {
namespace {

// What the seeds of a run are derived for.
constexpr uint64_t kEpochSeed = 1;
constexpr uint64_t kEpisodeSeed = 2;

// Complete batches that wait for the learner while every actor plays: one to take, one to spare.
constexpr int64_t kReadyBatches = 2;

}  // namespace

int64_t Coordinator::TaskOf(const CoordinatorOptions& options, int64_t group_id) {
  if (options.tasks <= 0) return group_id;
  // A Fisher-Yates shuffle of each epoch, recomputed: n is small beside an episode's cost.
  const int64_t epoch = group_id / options.tasks;
  std::vector<int64_t> order(static_cast<size_t>(options.tasks));
  std::iota(order.begin(), order.end(), int64_t{0});
  Rng rng(DeriveSeed(options.seed, kEpochSeed, static_cast<uint64_t>(epoch)));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  return order[static_cast<size_t>(group_id % options.tasks)];
}

Coordinator::Coordinator(const CoordinatorOptions& options, buffer::Buffer* buffer,
                         const buffer::Recovery& recovery)
    : options_(options),
      buffer_(buffer),
      next_trajectory_id_(recovery.next_trajectory_id),
      next_group_id_(recovery.next_group_id) {
  FB_CHECK(options.groups_per_step > 0 && options.group_size > 0 && options.max_staleness >= 0,
           "options");
  const buffer::Ledger ledger = buffer->ledger();
  admitted_ = ledger.trained + ledger.pending + ledger.in_flight +
              static_cast<int64_t>(recovery.missing.size());
  trained_ = ledger.trained;
  for (const buffer::MissingMember& m : recovery.missing) {
    replacements_.push_back({m.group_id, m.member, m.next_attempt, m.task_id});
  }
}

int64_t Coordinator::AliveMax() const {
  const int64_t batch = options_.groups_per_step * options_.group_size;
  const int64_t in_time = (options_.max_staleness + 1) * batch;
  return options_.actors == 0 ? in_time
                              : std::min(in_time, options_.actors + kReadyBatches * batch);
}

bool Coordinator::Admits() const {
  return admitted_ - trained_ + options_.group_size <= AliveMax();
}

void Coordinator::StartGroup() {
  int64_t group_id = next_group_id_++;
  // A quarantined task's turn is skipped; with all tasks in quarantine the run could not go on, so
  // it may play again.
  if (options_.tasks > 0 && static_cast<int64_t>(quarantined_.size()) < options_.tasks) {
    while (quarantined_.count(TaskOf(options_, group_id)) > 0) group_id = next_group_id_++;
  }
  const int64_t task_id = TaskOf(options_, group_id);
  for (int32_t member = 0; member < options_.group_size; ++member)
    queue_.push_back({group_id, member, 0, task_id});
  admitted_ += options_.group_size;
  ++groups_started_;
}

// Not of the attempt: only a fault makes a replacement a new sample (see OnRejected).
uint64_t Coordinator::SeedOf(const Member& member) const {
  uint64_t faults = 0;
  if (const auto group = faults_.find(member.group_id); group != faults_.end()) {
    const auto of_member = group->second.find(member.member);
    if (of_member != group->second.end()) faults = of_member->second;
  }
  return DeriveSeed(DeriveSeed(options_.seed, kEpisodeSeed), static_cast<uint64_t>(member.group_id),
                    static_cast<uint64_t>(member.member), faults);
}

Result<std::optional<Assignment>> Coordinator::TryNext() {
  MutexLock lock(mutex_);
  if (stopped_) return std::optional<Assignment>();
  if (replacements_.empty() && queue_.empty()) {
    if (!Admits()) return std::optional<Assignment>();
    StartGroup();
  }
  std::deque<Member>& from = replacements_.empty() ? queue_ : replacements_;
  const Member member = from.front();
  from.pop_front();

  Assignment assignment;
  assignment.id = {.trajectory_id = next_trajectory_id_++,
                   .group_id = member.group_id,
                   .member = member.member,
                   .attempt = member.attempt,
                   .task_id = member.task_id};
  assignment.seed = SeedOf(member);
  assignment.policy_version = published_version_;
  if (member.attempt > 0) ++replacement_count_;
  FB_RETURN_IF_ERROR(buffer_->Dispatch(assignment.id));
  return std::optional<Assignment>(assignment);
}

void Coordinator::OnRejected(const TrajectoryId& id, buffer::RejectReason reason) {
  bool close = false;
  {
    MutexLock lock(mutex_);
    if (stopped_ || reason == buffer::RejectReason::kClosed ||
        closed_groups_.count(id.group_id) > 0)
      return;
    const bool fault =
        reason != buffer::RejectReason::kStale && reason != buffer::RejectReason::kLostInCrash;
    if (fault) {
      const uint64_t of_member = ++faults_[id.group_id][id.member];
      close = static_cast<int64_t>(of_member) >= options_.attempts_max;
      if (faults_.size() > kFaultGroupsMax) faults_.erase(faults_.begin());
    }
    if (close) {
      quarantined_.insert(id.task_id);
      closed_groups_.insert(id.group_id);
      faults_.erase(id.group_id);
      const auto of_group = [&](const Member& m) { return m.group_id == id.group_id; };
      std::erase_if(queue_, of_group);
      std::erase_if(replacements_, of_group);
      admitted_ -= options_.group_size;
    } else {
      replacements_.push_back({id.group_id, id.member, id.attempt + 1, id.task_id});
    }
  }
  // kNotFound: the failed member was the group's only one in the buffer.
  if (close) buffer_->CloseGroup(id.group_id).ok();
  if (wake_) wake_();
}

void Coordinator::OnPublished(int64_t version, int64_t trained) {
  {
    MutexLock lock(mutex_);
    published_version_ = std::max(published_version_, version);
    trained_ = std::max(trained_, trained);
  }
  if (wake_) wake_();
}

void Coordinator::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  if (wake_) wake_();
}

void Coordinator::SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

CoordinatorStats Coordinator::stats() const {
  MutexLock lock(mutex_);
  return {.groups_started = groups_started_,
          .queued = static_cast<int64_t>(queue_.size() + replacements_.size()),
          .alive = admitted_ - trained_,
          .alive_max = AliveMax(),
          .published_version = published_version_,
          .replacements = replacement_count_,
          .quarantined_tasks = {quarantined_.begin(), quarantined_.end()}};
}

}  // namespace forebay::control
