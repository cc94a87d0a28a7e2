// Reserve, Fill and what is acknowledged.
#include "forebay/buffer/log/log.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/check.h"
#include "forebay/base/futex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

// One write: larger ones do not go faster, and delay the first record's acknowledgement.
constexpr int64_t kGroupBytes = int64_t{1} << 20;
constexpr auto kBlock = static_cast<int64_t>(kBlockBytes);

}  // namespace

bool Log::Fits(int64_t record_bytes) const {
  // Two pads may follow: of this group, and the last one.
  return active_->used + record_bytes + kBlock + IndexBytes(active_->records + 3) <=
         active_->capacity;
}

// Trajectories leave the reserve to notes. Without a spare behind it the active segment is the last
// that notes will find: records that move leave a part of it.
bool Log::MayUseRest(Kind kind, int64_t record_bytes) const {
  if (kind == Kind::kNote) return true;
  if (kind == Kind::kTrajectory) return spares_.size() >= Reserved();
  return !spares_.empty() || active_->used + record_bytes <= MoveLimit();
}

int64_t Log::MoveLimit() const { return active_->capacity / 8 * 7; }

int64_t Log::RoomToMove() const {
  AdaptiveLock lock(mutex_);
  return spares_.empty() ? MoveLimit() - active_->used : options_.segment_bytes / 2;
}

int64_t Log::payload_bytes_max() const {
  if (!durable()) return options_.memory_bytes_max / 2;  // it gets a segment of its own size
  return options_.segment_bytes - static_cast<int64_t>(kDataBegin) - 3 * kBlock -
         static_cast<int64_t>(kRecordAlign);
}

bool Log::Reserve(Kind kind, const RecordHeader& header, size_t payload_bytes, uint32_t place,
                  std::function<void(Status)> done, LogSlot* slot) {
  const int64_t bytes = RecordBytes(payload_bytes);
  FB_CHECK(static_cast<int64_t>(payload_bytes) <= payload_bytes_max(), "a record too large");
  AdaptiveLock lock(mutex_);
  if (!failed_.ok() || stopping_) return false;
  if (sync() && !groups_.empty() && groups_.back()->open &&
      groups_.back()->end - groups_.back()->begin >= kGroupBytes) {
    CloseGroup(*groups_.back());
  }
  if (!MayUseRest(kind, bytes)) return false;
  if (!Fits(bytes) && !Roll(kind, bytes)) return false;
  Segment& segment = *active_;
  slot->header = header;
  slot->header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  slot->header.sequence = next_sequence_++;
  slot->header.segment = segment.number;
  slot->at = segment.memory.get() + segment.used;
  slot->offset_64 = static_cast<uint32_t>(segment.used / static_cast<int64_t>(kRecordAlign));
  if (sync()) slot->group = JoinGroup(bytes, slot->header.sequence);
  segment.used += bytes;
  ++segment.records;
  reserved_bytes_ += bytes;
  if (kind != Kind::kNote && options_.durability == Durability::kOs) {
    // Should the process be killed in the copy, recovery knows what this was, and where it ends.
    RecordHeader unfinished = slot->header;
    unfinished.type = RecordType::kUnfinished;
    SealHeader(unfinished);
    std::memcpy(slot->at, &unfinished, sizeof(unfinished));
  }
  if (kind != Kind::kNote || done) {
    ++segment.unacknowledged;
    pending_.push_back({.entry = {.header = slot->header,
                                  .offset_64 = slot->offset_64,
                                  .place = place,
                                  .done = std::move(done)},
                        .segment = active_.get()});
    if (!sync()) slot->kept = &pending_.back();
  }
  return true;
}

// The open group, which takes the next `bytes` of the active segment.
std::shared_ptr<FlushGroup> Log::JoinGroup(int64_t bytes, int64_t sequence) {
  if (groups_.empty() || !groups_.back()->open) {
    auto group = std::make_shared<FlushGroup>();
    group->segment = active_;
    // The segment's header goes with its first records.
    const bool first = active_->used == static_cast<int64_t>(kDataBegin);
    group->begin = first ? 0 : active_->used;
    groups_.push_back(std::move(group));
  }
  FlushGroup& group = *groups_.back();
  group.end = active_->used + bytes;
  group.last_sequence = sequence;
  group.copying.fetch_add(1, std::memory_order_relaxed);
  return groups_.back();
}

uint32_t Log::CopyPayload(char* to, std::string_view payload) const {
  if (durable()) return Crc32cCopy(to, payload);
  std::memcpy(to, payload.data(), payload.size());
  return 0;
}

void Log::Fill(LogSlot& slot, std::string_view payload) {
  slot.header.payload_crc = CopyPayload(slot.at + kRecordAlign, payload);
  SealSlot(slot);
}

void Log::FillTrajectory(LogSlot& slot, std::string_view payload) {
  char* const to = slot.at + kRecordAlign;
  slot.header.payload_crc = CopyPayload(to, payload);
  const std::string_view copy(to, payload.size());
  if (PeekId(copy) != slot.header.id()) {
    std::memset(to, 0, std::min(copy.size(), kRecordAlign));
    slot.header.payload_crc = durable() ? Crc32c(copy) : 0U;
  }
  SealSlot(slot);
}

void Log::SealSlot(LogSlot& slot) const {
  if (durable()) SealHeader(slot.header);  // else nobody will look for it
  // The header comes last: where it is whole after a crash of the process, so is the payload.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(slot.at, &slot.header, sizeof(slot.header));
  if (slot.group != nullptr && slot.group->copying.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    FutexWakeAll(slot.group->copying);
  }
}

bool Log::Note(const RecordHeader& header, std::string_view payload,
               std::function<void(Status)> done) {
  LogSlot slot;
  while (!Reserve(Kind::kNote, header, payload.size(), 0, done, &slot)) {
    const Status more = AddSpareForNotes();
    if (more.ok()) continue;
    // The log has failed, or is failing now; on_failure tells everybody.
    Fail(more.WithContext("there is no room for a note on any segment"));
    AdaptiveLock lock(mutex_);
    if (done) {
      pending_.push_back({.entry = {.header = header, .durable = false, .done = std::move(done)},
                          .segment = nullptr});
    }
    return false;
  }
  Fill(slot, payload);
  Kick();
  return true;
}

void Log::Settle(const LogSlot& slot) {
  KeptEntry* const kept = slot.kept;
  kept->next = settled_.load(std::memory_order_relaxed);
  while (!settled_.compare_exchange_weak(kept->next, kept)) {
  }
}

void Log::TakeSettled(std::vector<LogEntry>* out) {
  AdaptiveLock lock(mutex_);
  for (KeptEntry* kept = settled_.exchange(nullptr); kept != nullptr; kept = kept->next) {
    kept->taken = true;
    // At once: a writer that lost its processor in a copy holds its own segment, not all others.
    --kept->segment->unacknowledged;
    out->push_back(std::move(kept->entry));
  }
  std::ranges::reverse(*out);
  while (!pending_.empty() && pending_.front().taken) pending_.pop_front();
}

void Log::TakeAcknowledged(Acknowledged* out) {
  AdaptiveLock lock(mutex_);
  while (sync() && !pending_.empty()) {
    KeptEntry& next = pending_.front();
    next.entry.durable = next.segment != nullptr && next.entry.header.sequence <= durable_sequence_;
    // After a failure nothing is waited for.
    if (!next.entry.durable && failed_.ok()) break;
    if (next.segment != nullptr) --next.segment->unacknowledged;
    out->entries.push_back(std::move(next.entry));
    pending_.pop_front();
  }
  out->groups = std::move(written_);
  written_.clear();
}

void Log::Wake(const Acknowledged& acknowledged) {
  for (const auto& group : acknowledged.groups) {
    group->done.store(1, std::memory_order_release);
    FutexWakeAll(group->done);
  }
}

Status Log::failed() const {
  AdaptiveLock lock(mutex_);
  return failed_;
}

int64_t Log::last_sequence() const {
  AdaptiveLock lock(mutex_);
  return next_sequence_ - 1;
}

int64_t Log::oldest_unacknowledged() const {
  AdaptiveLock lock(mutex_);
  return pending_.empty() ? next_sequence_ : pending_.front().entry.header.sequence;
}

int64_t Log::disk_bytes() const {
  AdaptiveLock lock(mutex_);
  return disk_bytes_;
}

int64_t Log::reserved_bytes() const {
  AdaptiveLock lock(mutex_);
  return reserved_bytes_;
}

LogStats Log::stats() const {
  AdaptiveLock lock(mutex_);
  LogStats stats{.flushes = flushes_,
                 .disk_bytes = disk_bytes_,
                 .segments = static_cast<int64_t>(segments_.size())};
  for (const auto& [number, segment] : segments_) {
    if (segment->memory != nullptr) stats.memory_bytes += segment->capacity;
  }
  return stats;
}

}  // namespace forebay::buffer
