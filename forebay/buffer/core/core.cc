#include "forebay/buffer/core/core.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/recover.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// One that is written, two that are kept for notes, one that comes next, one that is recycled.
constexpr int64_t kSegmentsMin = 5;
constexpr int64_t kSegmentBytesMin = int64_t{64} << 10;
// In memory, small ones: what was just read is still in the cache when it is written again. Mapped
// ones too, and their pages are still dirty and mapped.
constexpr int64_t kMemorySegmentBytes = int64_t{1} << 20;
constexpr int64_t kMappedSegmentBytes = int64_t{16} << 20;

int64_t RoundDown(int64_t bytes, int64_t to) { return bytes / to * to; }

// Segments as large as asked for, but enough of them; records that fit.
BufferOptions Fitted(BufferOptions options) {
  const bool memory = options.durability == Durability::kMemory;
  const int64_t limit = memory ? options.memory_bytes_max : options.disk_bytes_max;
  int64_t bytes = std::min(options.segment_bytes, limit / kSegmentsMin);
  if (memory) bytes = std::min(bytes, kMemorySegmentBytes);
  if (options.durability == Durability::kOs) bytes = std::min(bytes, kMappedSegmentBytes);
  options.segment_bytes = std::max(kSegmentBytesMin, RoundDown(bytes, kBlockBytes));
  // Fewer than these and nothing would ever be recycled.
  (memory ? options.memory_bytes_max : options.disk_bytes_max) =
      std::max(limit, kSegmentsMin * options.segment_bytes);
  return options;
}

// The state files are a part of what the buffer may take; the smallest limits are of segments
// alone.
int64_t DiskBytesForSegments(const BufferOptions& options) {
  constexpr int64_t kStateBytes = int64_t{1} << 20;
  const bool large = options.disk_bytes_max >= 8 * kStateBytes;
  return large ? options.disk_bytes_max - kStateBytes : options.disk_bytes_max;
}

}  // namespace

Core::Core(const BufferOptions& options, BufferListener listener, Table table, bool manual)
    : options_(options),
      listener_(std::move(listener)),
      manual_(manual),
      table_(std::move(table)),
      rng_(manual ? 1 : static_cast<uint64_t>(WallMicros())),
      expected_(static_cast<bool>(listener_.on_pending)) {}

Status Core::CheckOptions(const BufferOptions& options) {
  if (options.group_size < 1 || options.group_size > kMemberMax + 1) {
    return InvalidArgument(
        fmt::format("group_size is {}: 1 to {}", options.group_size, kMemberMax + 1));
  }
  if (options.max_staleness < 0) {
    return InvalidArgument(fmt::format("max_staleness is {}: at least 0", options.max_staleness));
  }
  if (options.segment_bytes < 1 || options.segment_bytes > kSegmentBytesMax) {
    return InvalidArgument(fmt::format("segment_bytes is {}: 1 to {} ({} GiB)",
                                       options.segment_bytes, kSegmentBytesMax,
                                       kSegmentBytesMax >> 30));
  }
  if (options.memory_bytes_max < 1 || options.disk_bytes_max < 1 || options.record_bytes_max < 1) {
    return InvalidArgument(
        fmt::format("memory_bytes_max is {}, disk_bytes_max {} and record_bytes_max {}: each must "
                    "be positive",
                    options.memory_bytes_max, options.disk_bytes_max, options.record_bytes_max));
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
  const BufferOptions options = Fitted(asked);
  Recovery report;
  std::unique_ptr<Core> core;
  if (options.durability == Durability::kMemory) {
    Table table(options.group_size);
    table.SetCommitted(committed_batch);
    table.SetNextBatch(committed_batch + 1);
    core.reset(new Core(options, std::move(listener), std::move(table), manual));
    FB_RETURN_IF_ERROR(core->StartLog(files, Recovered(options.group_size)));
  } else {
    FB_RETURN_IF_ERROR(files->MakeFolder(options.folder));
    FB_ASSIGN_OR_RETURN(std::unique_ptr<FolderLock> lock, files->Lock(options.folder));
    auto states = std::make_unique<StateFiles>(files, options.folder,
                                               options.durability == Durability::kSync);
    FB_ASSIGN_OR_RETURN(Recovered recovered, Recover(*files, *states, options, committed_batch));
    report = recovered.report;
    core.reset(new Core(options, std::move(listener), std::move(recovered.table), manual));
    core->folder_lock_ = std::move(lock);
    core->states_ = std::move(states);
    FB_RETURN_IF_ERROR(core->StartLog(files, std::move(recovered)));
  }
  core->Maintain();
  if (!manual) core->keeper_ = std::thread([c = core.get()] { c->Keep(); });
  if (recovery != nullptr) *recovery = std::move(report);
  return core;
}

Status Core::StartLog(FileSystem* files, Recovered recovered) {
  LogOptions log{.folder = options_.folder,
                 .durability = options_.durability,
                 .segment_bytes = options_.segment_bytes,
                 .memory_bytes_max = options_.memory_bytes_max,
                 .disk_bytes_max = DiskBytesForSegments(options_),
                 .group_size = options_.group_size,
                 .last_sequence = recovered.last_sequence,
                 .next_number = recovered.next_number,
                 .next_file_id = recovered.next_file_id,
                 .segments = std::move(recovered.segments),
                 .manual = manual_};
  FB_ASSIGN_OR_RETURN(log_, Log::Open(files, log,
                                      {.on_acknowledged = [this] { Publish(); },
                                       .on_failure = [this] { OnLogFailure(); },
                                       .on_work =
                                           [this] {
                                             recycle_due_ = true;
                                             Signal();
                                           }}));
  return OkStatus();
}

Core::~Core() {
  if (log_ == nullptr) return;  // it was never opened
  Close();
  stop_keeper_ = true;
  Signal();
  if (keeper_.joinable()) keeper_.join();
  if (logged() && log_->failed().ok()) {
    AdaptiveLock recycle(recycle_mutex_);
    WriteState().ok();  // only the next start's time is at stake
  }
  log_->Close();  // its last callbacks still find this object whole
}

void Core::Run(Calls& calls) {
  for (auto& call : calls) call();
  calls.clear();
}

Status Core::RefusalLocked() const { return failed_.ok() ? ClosedLocked() : failed_; }

Status Core::ClosedLocked() const {
  return closed_ ? Unavailable("the buffer is closed") : OkStatus();
}

// False: it is not in the log, which has failed.
bool Core::Note(RecordHeader header, std::string_view payload, Done done) {
  return !logged() || log_->Note(header, payload, std::move(done));
}

Status Core::Dispatch(const TrajectoryId& id) {
  HelpNotes();
  const Locked lock(*this);
  FB_RETURN_IF_ERROR(RefusalLocked());
  FB_RETURN_IF_ERROR(table_.Dispatch(id));
  RecordHeader header{.type = RecordType::kDispatch};
  header.SetId(id);
  Note(header);
  return OkStatus();
}

// What follows a rejection that the table has made: the log and the listener.
void Core::NoteRejected(const std::vector<TrajectoryId>& ids, RejectReason reason, Calls& calls) {
  for (const TrajectoryId& id : ids) {
    RecordHeader header{.type = RecordType::kReject, .code = static_cast<uint8_t>(reason)};
    header.SetId(id);
    Note(header);
    if (reason != RejectReason::kClosed && listener_.on_rejected) {
      calls.emplace_back([this, id, reason] { listener_.on_rejected(id, reason); });
    }
  }
}

Status Core::Reject(const TrajectoryId& id, RejectReason reason) {
  if (static_cast<int>(reason) >= kRejectReasons) return InvalidArgument("unknown reason");
  HelpNotes();
  Calls calls;
  {
    const Locked lock(*this);
    if (!failed_.ok()) return failed_;
    FB_RETURN_IF_ERROR(table_.Reject(id, reason));
    NoteRejected({id}, reason, calls);
  }
  Run(calls);
  Admit(calls);
  return OkStatus();
}

Status Core::CloseGroup(int64_t group_id) {
  HelpNotes();
  Status status;
  {
    const Locked lock(*this);
    if (!failed_.ok()) return failed_;
    std::vector<TrajectoryId> closed;
    status = table_.CloseGroup(group_id, &closed);
    if (status.code() == StatusCode::kFailedPrecondition) return status;
    Note({.type = RecordType::kCloseGroup, .group_id = group_id});
    readers_.NotifyAll();  // it may have been the group that a lease waits for
  }
  Calls calls;
  Admit(calls);
  return status;
}

void Core::Pause(bool appends, bool readers) {
  {
    const Locked lock(*this);
    appends_paused_ = appends;
    readers_paused_ = readers;
    readers_.NotifyAll();
  }
  Calls calls;
  Admit(calls);
}

void Core::Unblock(const std::string& reason) {
  Calls calls;
  {
    const Locked lock(*this);
    ++unblocked_;
    unblock_reason_ = reason;
    FailWaiting(Unavailable("unblocked: " + reason), calls);
    readers_.NotifyAll();
  }
  Run(calls);
}

std::vector<GroupInfo> Core::Inspect(int64_t from_group_id, int64_t limit) const {
  const Locked lock(*this);
  return table_.Inspect(from_group_id, limit);
}

Ledger Core::ledger() const {
  const Locked lock(*this);
  return table_.ledger();
}

BufferStats Core::stats() const {
  const LogStats log = log_->stats();
  const Locked lock(*this);
  return {.ready_groups = table_.ready_groups(),
          .partial_groups = table_.partial_groups(),
          .kept_bytes = table_.pending_bytes(),
          .memory_bytes = log.memory_bytes,
          .disk_bytes = logged() ? log.disk_bytes : 0,
          .segments = log.segments,
          .appends = appends_,
          .flushes = log.flushes,
          .duplicates = duplicates_,
          .taken_groups = table_.taken_groups(),
          .expired_takes = expired_takes_,
          .append_wait_seconds = append_wait_seconds_};
}

void Core::Pump() {
  log_->Pump();
  Maintain();
  log_->Pump();
}

void Core::Close() {
  Calls calls;
  {
    const Locked lock(*this);
    if (!closed_) {
      closed_ = true;
      FailWaiting(Unavailable("the buffer is closed"), calls);
      readers_.NotifyAll();
    }
  }
  Run(calls);
  log_->Flush().ok();  // a failure was told through on_failure
}

}  // namespace forebay::buffer
