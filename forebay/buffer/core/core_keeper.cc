// The keeper: segments ahead and behind, state files, deadlines.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/clock.h"
#include "forebay/base/futex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/core.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/table/segment_use.h"
#include "forebay/buffer/table/table.h"

namespace forebay::buffer {
namespace {

constexpr auto kIdle = std::chrono::seconds(60);
// While appends wait for a disk that is full or fails, it may work again without our doing.
constexpr auto kRetryDisk = std::chrono::milliseconds(200);
constexpr auto kBadDiskMax = std::chrono::seconds(60);
// A state file is written when the log has grown by so many times its size: it costs about an
// eighth of the log's own writes. More are written only when spares are short.
constexpr int64_t kStateShare = 8;
constexpr int64_t kMappedSegmentsPerState = 2;
// Segments that are emptied in a row.
constexpr int kRoundsMax = 8;

}  // namespace

// Log::Note may have found it, and then the lock is held: the keeper tells.
void Core::OnLogFailure() {
  failure_untold_ = true;
  Signal();
}

// Tells everybody of a failure of the log, once.
void Core::TellFailure() {
  if (!failure_untold_.exchange(false)) return;
  const Status why = log_->failed();
  Calls calls;
  {
    const Locked lock(*this);
    failed_ = why;
    FailWaiting(why, calls);
    readers_.NotifyAll();
  }
  Run(calls);
  Publish();  // what was being written is refused
  if (listener_.on_failure) listener_.on_failure(why);
}

void Core::Signal() {
  work_.fetch_add(1);
  FutexWakeAll(work_);
}

void Core::Keep() {
  while (!stop_keeper_) {
    const uint32_t seen = work_.load();
    Maintain();
    TimePoint until = Now() + kIdle;
    {
      const Locked lock(*this);
      for (const Waiting& w : waiting_) until = std::min(until, w.deadline);
      if (!waiting_.empty()) until = std::min(until, Now() + Duration(kRetryDisk));
      if (const std::optional<TimePoint> expiry = table_.next_expiry()) {
        until = std::min(until, *expiry);
      }
      keeper_sleeps_until_ = until;
    }
    FutexWait(work_, seen, until);
  }
  TellFailure();
}

void Core::Maintain() {
  TellFailure();
  {
    AdaptiveLock recycle(recycle_mutex_);
    Recycle();
    if (NeedsRoom()) {
      WriteStateTwice();
      for (int i = 0; i < kRoundsMax && NeedsRoom() && MakeRoom(); ++i) {
        Recycle();
        WriteStateTwice();
      }
    }
  }
  // An error is no failure yet: a full disk may have room again.
  const Status prepared = log_->Maintain();
  {
    const Locked lock(*this);
    disk_error_ = prepared;
  }
  GiveUpOnTheDisk(prepared);
  const TimePoint now = Now();
  {
    const Locked lock(*this);
    const auto expired = static_cast<int64_t>(table_.ExpireTakes(now).size());
    expired_takes_ += expired;
    if (expired > 0) readers_.NotifyAll();
  }
  SweepDeadlines(now);
}

// Not only for those who wait: notes need a spare, and each start takes segments, above the limit
// if need be.
bool Core::NeedsRoom() const {
  if (log_->HasRoom() || !log_->failed().ok()) return false;
  if (log_->OutOfSpares() || log_->disk_bytes() > options_.disk_bytes_max) return true;
  const Locked lock(*this);
  return !waiting_.empty();
}

// A disk that is full, or fails, may work again, but a run must not wait for it for good.
void Core::GiveUpOnTheDisk(const Status& prepared) {
  Status why = prepared;
  {
    const Locked lock(*this);
    if (why.ok()) why = state_error_;
    if (waiting_.empty() || log_->HasRoom()) why = OkStatus();
  }
  if (why.ok()) {
    bad_since_ = TimePoint();
    return;
  }
  if (bad_since_ == TimePoint()) bad_since_ = Now();
  if (Now() - bad_since_ < kBadDiskMax) return;
  log_->Fail(why.WithContext(
      fmt::format("the disk {} for {} s while appends waited",
                  why.code() == StatusCode::kResourceExhausted ? "stayed full" : "failed",
                  std::chrono::seconds(kBadDiskMax).count())));
}

// What is dead at one state goes after the next one.
void Core::WriteStateTwice() {
  if (!logged()) return;
  if (WriteState().ok()) WriteState().ok();  // else later, perhaps
}

// By an append that rolled to a new segment.
void Core::RecycleNow() {
  if (!recycle_due_.load(std::memory_order_relaxed)) return;
  if (!recycle_mutex_.TryLock()) return;  // somebody does
  if (recycle_due_.exchange(false)) Recycle();
  recycle_mutex_.Unlock();
}

// By those who write notes: the keeper may not get a processor before a fast learner has filled the
// last spare with leases.
void Core::HelpNotes() {
  if (!log_->NotesAreTight()) return;
  log_->Flush().ok();  // what came before the last spare is written then, and sealed soon
  {
    AdaptiveLock recycle(recycle_mutex_);
    SealMapped();
    WriteStateTwice();
    if (log_->NotesAreTight() && MakeRoom()) {
      SealMapped();
      WriteStateTwice();
    }
  }
  log_->Maintain().ok();  // as in Maintain
}

// Segments that nobody needs become spares. Those of a log on disk only when a state says so: what
// is dead at one state goes after the next one, so that should the newer be lost, the older still
// finds what it needs.
void Core::Recycle() {
  SealMapped();
  if (!logged()) {
    std::vector<uint32_t> dead;
    {
      const Locked lock(*this);
      dead = DeadSegments();
    }
    log_->Recycle(dead);
    return;
  }
  // Two states give back what is dead now, which costs less than segments made anew.
  for (int i = 0; i < 2; ++i) {
    {
      const Locked lock(*this);
      const bool wanted = StateDue() || (log_->SparesAreFew() && !DeadSegments().empty());
      if (!wanted || !log_->failed().ok()) return;
    }
    if (!WriteState().ok()) return;  // later, perhaps
  }
}

void Core::SealMapped() {
  {
    const Locked lock(*this);  // applies what is settled
  }
  log_->SealMapped();
}

bool Core::StateDue() {
  const int64_t grown = log_->reserved_bytes() - state_at_bytes_;
  // Mapped segments are small, and are filled in milliseconds.
  const int64_t least =
      log_->sync() ? options_.segment_bytes / 2 : kMappedSegmentsPerState * options_.segment_bytes;
  return grown >= std::max(least, kStateShare * state_bytes_);
}

std::vector<uint32_t> Core::DeadSegments() const {
  std::vector<uint32_t> dead = log_->Recyclable();
  std::erase_if(
      dead, [this](uint32_t number) FB_REQUIRES(mutex_) { return table_.SegmentIsLive(number); });
  return dead;
}

// Under a full disk; false if there is nothing to be done. What was committed and only kept for
// replays goes first; then the live records of the emptiest segment move to the end of the log, so
// that one that is waited for does not hold a whole segment.
bool Core::MakeRoom() {
  {
    const Locked lock(*this);
    const int64_t oldest = table_.released_batch() + 1;
    if (oldest <= table_.committed_batch()) {
      table_.Release(oldest);
      Note({.type = RecordType::kRelease, .trajectory_id = oldest});
      return true;
    }
  }
  uint32_t victim = 0;
  {
    const Locked lock(*this);
    const int64_t room = log_->RoomToMove();
    const std::vector<uint32_t> sealed = log_->Recyclable();
    for (const SegmentLive& live : table_.SegmentsByLiveBytes()) {
      // All of it must fit, else nothing is won.
      const int64_t with_headers =
          live.bytes + 2 * static_cast<int64_t>(live.records * kRecordAlign);
      if (with_headers > room) break;
      if (!std::ranges::binary_search(sealed, live.segment)) continue;
      victim = live.segment;
      break;
    }
  }
  if (victim != 0) Move(victim);
  return victim != 0;
}

// Copies the live records of a segment to the end of the log.
void Core::Move(uint32_t number) {
  const Result<std::shared_ptr<Segment>> pinned = log_->Pin(number);
  if (!pinned.ok() || *pinned == nullptr) return;
  const std::shared_ptr<Segment>& segment = *pinned;
  const std::shared_ptr<char> memory = log_->MemoryOf(*segment);
  for (const ScannedRecord& record : Log::Records(*segment, memory)) {
    if (record.header.type != RecordType::kTrajectory) continue;
    const auto offset_64 = static_cast<uint32_t>(record.offset / kRecordAlign);
    std::unique_ptr<char[]> buffer;
    const auto payload = Log::Read(*segment, memory, offset_64, record.header.payload_bytes,
                                   record.header.trajectory_id, &buffer);
    if (!payload.ok()) continue;  // whoever takes it will find it
    LogSlot slot;
    {
      const Locked lock(*this);
      const auto where = table_.Where(record.header.trajectory_id);
      if (!where || where->segment != number || where->offset_64 != offset_64) continue;
      RecordHeader header = record.header;
      header.code = kMovedRecord;
      if (!log_->Reserve(Log::Kind::kMove, header, payload->size(), 0, {}, &slot)) break;
    }
    log_->Fill(slot, *payload);
    if (!log_->sync()) FinishAppend(slot);
  }
  if (log_->sync()) log_->Flush().ok();
}

Status Core::WriteState() {
  State state;
  std::vector<uint32_t> dead;
  int64_t at_bytes = 0;
  {
    const Locked lock(*this);
    state.sequence = log_->last_sequence();
    state.replay_from = log_->oldest_unacknowledged();
    state.table = table_.EncodeSnapshot();
    at_bytes = log_->reserved_bytes();
    dead = DeadSegments();
  }
  const Status written = states_->Write(state).WithContext(
      "nothing can be freed, because a state file cannot be written");
  {
    const Locked lock(*this);
    state_error_ = written;
  }
  FB_RETURN_IF_ERROR(written);
  log_->Recycle(dead_at_last_state_);
  dead_at_last_state_ = std::move(dead);
  state_at_bytes_ = at_bytes;
  state_bytes_ = static_cast<int64_t>(state.table.size());
  return OkStatus();
}

}  // namespace forebay::buffer
