#include "forebay/buffer/service/fake_buffer_testing.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

FakeBuffer::FakeBuffer(const FakeOptions& options) : options_(options), hold_(options.hold) {
  thread_ = std::thread([this] { Run(); });
}

FakeBuffer::~FakeBuffer() {
  Close();
  thread_.join();
}

void FakeBuffer::Run() {
  std::unique_lock lock(mutex_);
  while (!closing_ || !waiting_.empty()) {
    if (closing_) hold_ = false;
    std::vector<std::function<void(Status)>> due;
    while (!hold_ && !waiting_.empty() && (closing_ || waiting_.front().when <= Now())) {
      due.push_back(std::move(waiting_.front().done));
      waiting_.pop_front();
    }
    if (due.empty()) {
      if (hold_ || waiting_.empty()) {
        changed_.wait_for(lock, std::chrono::milliseconds(50));
      } else {
        changed_.wait_until(lock, waiting_.front().when);
      }
      continue;
    }
    lock.unlock();
    for (const auto& done : due) done(OkStatus());
    lock.lock();
  }
}

void FakeBuffer::LetGo() {
  const std::lock_guard lock(mutex_);
  hold_ = false;
  changed_.notify_all();
}

int64_t FakeBuffer::stored() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(records_.size());
}
int64_t FakeBuffer::duplicates() const {
  const std::lock_guard lock(mutex_);
  return duplicates_;
}
int64_t FakeBuffer::held() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}
int64_t FakeBuffer::given_back() const {
  const std::lock_guard lock(mutex_);
  return given_back_;
}
std::string FakeBuffer::encoded(int64_t trajectory_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(trajectory_id);
  return found == records_.end() ? "" : *found->second.encoded;
}
std::vector<std::string> FakeBuffer::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

Status FakeBuffer::Call(std::string call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  return OkStatus();
}

void FakeBuffer::Append(Trajectory trajectory, TimePoint deadline,
                        std::function<void(Status)> done) {
  AppendEncoded(Encode(trajectory), {.deadline = deadline}, std::move(done));
}

void FakeBuffer::AppendEncoded(std::string_view encoded, const AppendOptions& options,
                               std::function<void(Status)> done) {
  const std::optional<TrajectoryId> id = PeekId(encoded);
  if (!id.has_value() || id->trajectory_id != options.trajectory_id.value_or(id->trajectory_id)) {
    done(DataLoss("no trajectory"));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (records_.contains(id->trajectory_id)) {
      ++duplicates_;
    } else {
      Record record{*id, std::make_shared<const std::string>(encoded)};
      records_[id->trajectory_id] = record;
      auto& group = partial_[id->group_id];
      group.push_back(std::move(record));
      if (group.size() == static_cast<size_t>(options_.group_size)) {
        ready_.push_back(std::move(group));
        partial_.erase(id->group_id);
        changed_.notify_all();
      }
    }
    if (hold_ || options_.acknowledge_after > Duration::zero()) {
      waiting_.push_back({Now() + options_.acknowledge_after, std::move(done)});
      if (waiting_.size() == 1) changed_.notify_all();
      return;
    }
  }
  done(OkStatus());
}

Status FakeBuffer::AppendEncodedAndWait(std::string_view encoded, const AppendOptions& options) {
  Status result;
  AppendEncoded(encoded, options, [&](Status status) { result = std::move(status); });
  return result;
}

std::vector<FakeBuffer::Record> FakeBuffer::TakeReady(int64_t groups) {
  std::vector<Record> out;
  if (ready_.size() < static_cast<size_t>(groups)) return out;
  for (int64_t i = 0; i < groups; ++i) {
    for (Record& record : ready_.front()) out.push_back(std::move(record));
    ready_.pop_front();
  }
  return out;
}

Result<Taken> FakeBuffer::Take(const TakeOptions& options, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  std::vector<Record> records;
  while ((records = TakeReady(options.groups)).empty()) {
    if (closing_) return Unavailable("closed");
    if (Now() >= deadline) return DeadlineExceeded("too few groups");
    changed_.wait_until(lock, deadline);
  }
  Taken taken{.take_id = next_take_++};
  auto keep = std::make_shared<std::vector<Record>>(records);
  for (const Record& record : records) {
    taken.trajectories.push_back(
        {.id = record.id, .min_version = 0, .priority = 1, .encoded = *record.encoded});
  }
  taken.memory = std::move(keep);
  taken_[taken.take_id] = std::move(records);
  return taken;
}

Status FakeBuffer::Acknowledge(int64_t take_id) {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(take_id);
  if (found == taken_.end()) return NotFound(fmt::format("no take {}", take_id));
  trained_ += static_cast<int64_t>(found->second.size());
  taken_.erase(found);
  return OkStatus();
}

Status FakeBuffer::GiveBack(int64_t take_id) {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(take_id);
  if (found == taken_.end()) return NotFound(fmt::format("no take {}", take_id));
  const auto size = static_cast<size_t>(options_.group_size);
  for (size_t i = 0; i < found->second.size(); i += size) {
    ready_.emplace_front(found->second.begin() + static_cast<int64_t>(i),
                         found->second.begin() + static_cast<int64_t>(i + size));
    ++given_back_;
  }
  taken_.erase(found);
  changed_.notify_all();
  return OkStatus();
}

Result<Batch> FakeBuffer::Lease(int64_t groups, int64_t learner_version, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  std::vector<Record> records;
  while ((records = TakeReady(groups)).empty()) {
    if (closing_) return Unavailable("closed");
    if (Now() >= deadline) return DeadlineExceeded("too few groups");
    changed_.wait_until(lock, deadline);
  }
  const int64_t sequence = next_batch_++;
  batches_[sequence] = std::move(records);
  lock.unlock();
  FB_ASSIGN_OR_RETURN(Batch batch, ReadBatch(sequence, 0, 1));
  batch.learner_version = learner_version;
  return batch;
}

Result<Batch> FakeBuffer::ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) {
  const std::lock_guard lock(mutex_);
  const auto found = batches_.find(batch_sequence);
  if (found == batches_.end()) return NotFound(fmt::format("no batch {}", batch_sequence));
  Batch batch{.sequence = batch_sequence};
  for (size_t i = 0; i < found->second.size(); ++i) {
    const auto group = static_cast<int32_t>(i / static_cast<size_t>(options_.group_size));
    if (group % shards != shard) continue;
    FB_ASSIGN_OR_RETURN(Trajectory trajectory, Decode(*found->second[i].encoded));
    batch.trajectories.push_back(std::make_shared<const Trajectory>(std::move(trajectory)));
  }
  return batch;
}

Status FakeBuffer::Dispatch(const TrajectoryId& id) {
  return Call(fmt::format("dispatch {}", id.trajectory_id));
}
Status FakeBuffer::Reject(const TrajectoryId& id, RejectReason reason) {
  return Call(fmt::format("reject {} {}", id.trajectory_id, static_cast<int>(reason)));
}
Status FakeBuffer::CloseGroup(int64_t group_id) {
  return Call(fmt::format("close group {}", group_id));
}
Status FakeBuffer::MarkTrained(int64_t batch_sequence) {
  return Call(fmt::format("trained {}", batch_sequence));
}
Status FakeBuffer::Commit(int64_t batch_sequence) {
  return Call(fmt::format("commit {}", batch_sequence));
}
Status FakeBuffer::Release(int64_t batch_sequence) {
  return Call(fmt::format("release {}", batch_sequence));
}
void FakeBuffer::Pause(bool appends, bool readers) {
  const Status status = Call(fmt::format("pause {} {}", appends, readers));
  (void)status;
}
void FakeBuffer::Unblock(const std::string& reason) {
  const Status status = Call(fmt::format("unblock {}", reason));
  (void)status;
}

std::vector<GroupInfo> FakeBuffer::Inspect(int64_t from_group_id, int64_t limit) const {
  const std::lock_guard lock(mutex_);
  std::vector<GroupInfo> out;
  for (auto it = partial_.lower_bound(from_group_id);
       it != partial_.end() && std::cmp_less(out.size(), limit); ++it) {
    out.push_back({.group_id = it->first, .members = {MemberState::kPending}});
  }
  return out;
}

Ledger FakeBuffer::ledger() const {
  const std::lock_guard lock(mutex_);
  Ledger ledger;
  ledger.dispatched = static_cast<int64_t>(records_.size());
  ledger.trained = trained_;
  ledger.pending = ledger.dispatched - trained_;
  return ledger;
}

BufferStats FakeBuffer::stats() const {
  const std::lock_guard lock(mutex_);
  return {.ready_groups = static_cast<int64_t>(ready_.size()),
          .appends = static_cast<int64_t>(records_.size()),
          .duplicates = duplicates_,
          .append_wait_seconds = 0.5};
}

void FakeBuffer::Close() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  changed_.notify_all();
}

}  // namespace forebay::buffer
