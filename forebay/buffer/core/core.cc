#include "forebay/buffer/core/core.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/mirror.h"
#include "forebay/buffer/core/recover.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/writer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

constexpr auto kIdle = std::chrono::hours(1);
// With fewer, the active segment could fill the disk alone and never be recycled.
constexpr int64_t kSegmentsMin = 4;
constexpr int64_t kRecordBytesLimit = int64_t{1} << 31;

}  // namespace

Core::Core(const BufferOptions& options, BufferListener listener, Table table, bool manual)
    : options_(options),
      listener_(std::move(listener)),
      manual_(manual),
      table_(std::move(table)) {}

Status Core::CheckOptions(const BufferOptions& options) {
  if (options.group_size < 1) {
    return InvalidArgument(fmt::format("group_size is {}: at least 1", options.group_size));
  }
  if (options.max_staleness < 0) {
    return InvalidArgument(fmt::format("max_staleness is {}: at least 0", options.max_staleness));
  }
  if (options.segment_bytes < 1 || options.memory_bytes_max < 1 || options.disk_bytes_max < 1 ||
      options.record_bytes_max < 1 || options.record_bytes_max > kRecordBytesLimit) {
    return InvalidArgument(
        fmt::format("segment_bytes, memory_bytes_max and disk_bytes_max must be positive, "
                    "record_bytes_max within 1 to {}",
                    kRecordBytesLimit));
  }
  if (options.durability != Durability::kMemory && options.folder.empty()) {
    return InvalidArgument("a durable buffer needs a folder");
  }
  return OkStatus();
}

Result<std::unique_ptr<Core>> Core::Open(FileSystem* files, const BufferOptions& asked,
                                         int64_t committed_batch, BufferListener listener,
                                         Recovery* recovery, bool manual) {
  FB_RETURN_IF_ERROR(CheckOptions(asked));
  if (committed_batch < 0) return InvalidArgument("committed_batch is negative");
  BufferOptions options = asked;
  options.segment_bytes =
      std::max<int64_t>(1, std::min(options.segment_bytes, options.disk_bytes_max / kSegmentsMin));
  Recovery report;
  std::unique_ptr<Core> core;
  if (options.durability == Durability::kMemory) {
    Table table(options.group_size);
    table.SetCommitted(committed_batch);
    table.SetNextBatch(committed_batch + 1);
    core.reset(new Core(options, std::move(listener), std::move(table), manual));
  } else {
    FB_RETURN_IF_ERROR(files->MakeFolder(options.folder));
    FB_ASSIGN_OR_RETURN(std::unique_ptr<FolderLock> lock, files->Lock(options.folder));
    FB_ASSIGN_OR_RETURN(Recovered recovered, Recover(*files, options, committed_batch));
    report = recovered.report;
    core.reset(new Core(options, std::move(listener), recovered.table, manual));
    core->folder_lock_ = std::move(lock);
    FB_RETURN_IF_ERROR(core->StartLog(files, std::move(recovered)));
  }
  if (!manual) core->keeper_ = std::thread([c = core.get()] { c->Keep(); });
  if (recovery != nullptr) *recovery = std::move(report);
  return core;
}

Status Core::StartLog(FileSystem* files, Recovered recovered) {
  recovered.table.DropTrajectories();
  mirror_ = std::make_unique<TableMirror>(std::move(recovered.table));
  LogWriterOptions log{.folder = options_.folder,
                       .sync = options_.durability == Durability::kSync,
                       .segment_bytes = options_.segment_bytes,
                       .disk_bytes_max = options_.disk_bytes_max,
                       .group_size = options_.group_size,
                       .last_sequence = recovered.last_sequence,
                       .next_segment = recovered.next_segment,
                       .segments = std::move(recovered.segments),
                       .manual = manual_};
  writer_ = std::make_unique<LogWriter>(
      files, mirror_.get(), log, [this](const Status& why) { OnLogFailure(why); },
      [this] { OnRoom(); });
  return writer_->Start();
}

Core::~Core() {
  Close();
  {
    MutexLock lock(mutex_);
    stop_keeper_ = true;
    keeper_wake_.NotifyAll();
  }
  if (keeper_.joinable()) keeper_.join();
  writer_.reset();  // its last callbacks still find this object whole
}

void Core::Run(Calls& calls) {
  for (auto& call : calls) call();
  calls.clear();
}

Status Core::RefusalLocked() const {
  if (!failed_.ok()) return failed_;
  if (closed_) return Unavailable("the buffer is closed");
  return OkStatus();
}

void Core::Submit(RecordType type, std::string payload) {
  if (writer_ == nullptr) return;
  LogEntry entry;
  entry.header.type = type;
  entry.payload = std::move(payload);
  writer_->Submit(std::move(entry));
}

Status Core::Dispatch(const TrajectoryId& id) {
  MutexLock lock(mutex_);
  FB_RETURN_IF_ERROR(RefusalLocked());
  FB_RETURN_IF_ERROR(table_.Dispatch(id));
  Submit(RecordType::kDispatch, EncodeDispatch(id));
  return OkStatus();
}

// What follows a rejection that the table has made: the log, the listener, and those who wait for
// room.
void Core::NoteRejected(const std::vector<TrajectoryId>& ids, RejectReason reason, Calls& calls) {
  if (ids.empty()) return;
  Submit(RecordType::kReject, EncodeReject({.reason = reason, .ids = ids}));
  if (reason != RejectReason::kClosed && listener_.on_rejected) {
    for (const TrajectoryId& id : ids) {
      calls.emplace_back([this, id, reason] { listener_.on_rejected(id, reason); });
    }
  }
  Admit(calls);
}

Status Core::Reject(const TrajectoryId& id, RejectReason reason) {
  if (static_cast<int>(reason) >= kRejectReasons) return InvalidArgument("unknown reason");
  Calls calls;
  {
    MutexLock lock(mutex_);
    if (!failed_.ok()) return failed_;
    FB_RETURN_IF_ERROR(table_.Reject(id, reason));
    NoteRejected({id}, reason, calls);
  }
  Run(calls);
  return OkStatus();
}

Status Core::CloseGroup(int64_t group_id) {
  Calls calls;
  Status status;
  {
    MutexLock lock(mutex_);
    if (!failed_.ok()) return failed_;
    std::vector<TrajectoryId> closed;
    status = table_.CloseGroup(group_id, &closed);
    if (status.code() == StatusCode::kFailedPrecondition) return status;
    Submit(RecordType::kCloseGroup, EncodeNumber(group_id));
    learner_.NotifyAll();  // it may have been the group that a lease waits for
    Admit(calls);
  }
  Run(calls);
  return status;
}

// ---- appends

void Core::EndWithoutTraining(const TrajectoryId& id, RejectReason reason, const Done& done) {
  Status status = Reject(id, reason);
  if (status.code() == StatusCode::kNotFound) {
    MutexLock lock(mutex_);
    table_.CountLate();
  }
  if (done) done(status);
}

void Core::Append(Trajectory trajectory, TimePoint deadline, Done done) {
  if (!done) done = [](const Status&) {};
  if (const Status valid = Validate(trajectory); !valid.ok()) {
    done(valid.WithContext(fmt::format("trajectory {}", trajectory.id.trajectory_id)));
    return;
  }
  const TrajectoryId id = trajectory.id;
  if (!Trains(trajectory.outcome)) return EndWithoutTraining(id, RejectReason::kOutcome, done);
  if (trajectory.min_version() < 0)
    return EndWithoutTraining(id, RejectReason::kNoLossTokens, done);

  Waiting waiting{.id = id,
                  .min_version = trajectory.min_version(),
                  .memory_bytes = MemoryBytes(trajectory),
                  .since = Now(),
                  .deadline = deadline,
                  .done = std::move(done)};
  if (writer_ != nullptr && waiting.memory_bytes <= 2 * options_.record_bytes_max) {
    waiting.encoded = Encode(trajectory);
  }
  const int64_t bytes = std::max<int64_t>(static_cast<int64_t>(waiting.encoded.size()),
                                          waiting.encoded.empty() ? waiting.memory_bytes : 0);
  if (bytes > options_.record_bytes_max) {
    waiting.done(InvalidArgument(fmt::format(
        "trajectory {} has {} bytes, record_bytes_max is {}: shorten the episode or raise it",
        id.trajectory_id, bytes, options_.record_bytes_max)));
    return;
  }
  waiting.trajectory = std::make_shared<const Trajectory>(std::move(trajectory));
  Calls calls;
  {
    MutexLock lock(mutex_);
    Status refusal = RefusalLocked();
    if (refusal.ok() && (!table_.InFlight(id) || appending_.count(id.trajectory_id) > 0)) {
      table_.CountLate();
      refusal =
          NotFound(fmt::format("attempt {} (group {}, member {}) is not in flight: dropped as late",
                               id.trajectory_id, id.group_id, id.member));
    }
    if (refusal.ok()) {
      appending_.insert(id.trajectory_id);
      waiting_.push_back(std::move(waiting));
      Admit(calls);
      if (!waiting_.empty()) {
        keeper_wake_.NotifyAll();
        learner_.NotifyAll();  // see CanLease
      }
    } else {
      calls.emplace_back([done = std::move(waiting.done), refusal] { done(refusal); });
    }
  }
  Run(calls);
}

// Lets waiting appends go on, in order, as far as there is room.
void Core::Admit(Calls& calls) {
  while (!waiting_.empty()) {
    Waiting& next = waiting_.front();
    if (!table_.InFlight(next.id)) {  // rejected while it waited
      table_.CountLate();
      appending_.erase(next.id.trajectory_id);
      calls.emplace_back(
          [done = std::move(next.done)] { done(NotFound("the attempt ended while it waited")); });
      waiting_.pop_front();
      continue;
    }
    const int64_t held = table_.memory_bytes() + writing_memory_;
    if (held > 0 && held + next.memory_bytes > options_.memory_bytes_max) return;
    if (writer_ != nullptr) {
      const int64_t record = RecordBytes(next.encoded.size());
      if (disk_blocked_) return;
      if (writing_disk_ > 0 && writing_disk_ + record > writer_->room_bytes()) return;
    }
    append_wait_seconds_ += Seconds(Now() - next.since);
    Waiting waiting = std::move(next);
    waiting_.pop_front();
    if (writer_ != nullptr) {
      Write(std::move(waiting));
    } else {
      Finish(waiting,
             {.min_version = waiting.min_version,
              .memory_bytes = waiting.memory_bytes,
              .trajectory = waiting.trajectory},
             calls);
    }
  }
}

void Core::Write(Waiting waiting) {
  writing_memory_ += waiting.memory_bytes;
  writing_disk_ += RecordBytes(waiting.encoded.size());
  LogEntry entry;
  entry.header = {.type = RecordType::kTrajectory,
                  .member = waiting.id.member,
                  .attempt = waiting.id.attempt,
                  .trajectory_id = waiting.id.trajectory_id,
                  .group_id = waiting.id.group_id,
                  .min_version = waiting.min_version};
  entry.payload = std::move(waiting.encoded);
  entry.respects_limit = true;
  const auto record = RecordBytes(entry.payload.size());
  auto shared = std::make_shared<Waiting>(std::move(waiting));
  entry.done = [this, shared, record](const Status& status) {
    {
      MutexLock lock(mutex_);
      writing_disk_ -= record;
    }
    OnWritten(shared, status);
  };
  writer_->Submit(std::move(entry));
}

// On the writer's thread.
void Core::OnWritten(const std::shared_ptr<Waiting>& waiting, const Status& status) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    writing_memory_ -= waiting->memory_bytes;
    if (status.ok()) {
      Finish(*waiting,
             {.min_version = waiting->min_version,
              .memory_bytes = waiting->memory_bytes,
              .trajectory = waiting->trajectory},
             calls);
    } else if (IsNoRoom(status) && !closed_ && failed_.ok()) {
      disk_blocked_ = true;
      waiting->encoded = Encode(*waiting->trajectory);
      waiting->since = Now();
      waiting_.push_front(std::move(*waiting));
      keeper_wake_.NotifyAll();
    } else {
      appending_.erase(waiting->id.trajectory_id);
      calls.emplace_back([done = std::move(waiting->done), status] { done(status); });
    }
    Admit(calls);
  }
  Run(calls);
}

// The trajectory is durable: it becomes pending, unless its attempt was ended meanwhile.
void Core::Finish(Waiting& waiting, PendingInfo info, Calls& calls) {
  appending_.erase(waiting.id.trajectory_id);
  const Status status = table_.Pend(waiting.id, std::move(info));
  if (status.ok()) {
    ++appends_;
    learner_.NotifyAll();
    if (listener_.on_pending) {
      calls.emplace_back([this, id = waiting.id] { listener_.on_pending(id); });
    }
  } else {
    table_.CountLate();
  }
  calls.emplace_back([done = std::move(waiting.done), status] { done(status); });
}

void Core::FailWaiting(const Status& why, Calls& calls) {
  for (Waiting& w : waiting_) {
    appending_.erase(w.id.trajectory_id);
    calls.emplace_back([done = std::move(w.done), why] { done(why); });
  }
  waiting_.clear();
}

void Core::OnRoom() {
  Calls calls;
  {
    MutexLock lock(mutex_);
    disk_blocked_ = false;
    Admit(calls);
  }
  Run(calls);
}

void Core::OnLogFailure(const Status& why) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    failed_ = why;
    FailWaiting(why, calls);
    learner_.NotifyAll();
  }
  Run(calls);
  if (listener_.on_failure) listener_.on_failure(why);
}

std::string Core::RoomText() const {
  return fmt::format("{} of {} bytes of memory and {} of {} bytes of disk are taken: {}",
                     table_.memory_bytes() + writing_memory_, options_.memory_bytes_max,
                     writer_ == nullptr ? 0 : writer_->stats().disk_bytes, options_.disk_bytes_max,
                     table_.Describe());
}

void Core::SweepDeadlines(TimePoint now) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->deadline > now) {
        ++it;
        continue;
      }
      append_wait_seconds_ += Seconds(now - it->since);
      appending_.erase(it->id.trajectory_id);
      calls.emplace_back([done = std::move(it->done),
                          why = DeadlineExceeded(fmt::format("the buffer stayed full: {}",
                                                             RoomText()))] { done(why); });
      it = waiting_.erase(it);
    }
    Admit(calls);  // the one that was first may have been the largest
  }
  Run(calls);
}

void Core::Keep() {
  while (true) {
    {
      MutexLock lock(mutex_);
      TimePoint until = Now() + kIdle;
      for (const Waiting& w : waiting_) until = std::min(until, w.deadline);
      if (!stop_keeper_ && until > Now()) keeper_wake_.WaitUntil(mutex_, until);
      if (stop_keeper_) return;
    }
    SweepDeadlines(Now());
  }
}

void Core::Pump() {
  if (writer_ != nullptr) writer_->Pump();
  SweepDeadlines(Now());
}

void Core::Close() {
  Calls calls;
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      closed_ = true;
      FailWaiting(Unavailable("the buffer is closed"), calls);
      learner_.NotifyAll();
    }
  }
  Run(calls);
  if (writer_ != nullptr) writer_->Flush().ok();  // a failure was told through on_failure
}

}  // namespace forebay::buffer
