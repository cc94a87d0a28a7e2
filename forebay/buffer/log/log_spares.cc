// The segments that a Log has no records in: spares ahead, what is recycled behind, and the memory
// of both.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/log.h"

namespace forebay::buffer {
namespace {

// On disk the last two spares are for notes: without the notes that end attempts nothing would ever
// be freed. Two, because a full one with nothing but notes is free again after two states, and
// meanwhile the other takes those that come. In memory there are no notes, and one is what live
// records move to. A start needs so many as well: so it does not pass the disk limit.
constexpr size_t kSparesForNotes = 2;
constexpr size_t kMemorySparesForMoves = 1;
constexpr size_t kSparesWanted = kSparesForNotes + 1;
// What a log turns over while its readers keep up. Mapped segments are filled at the speed of
// memory.
constexpr size_t kSegmentsAtStart = 6;
constexpr size_t kMappedSegmentsAtStart = 16;
// With fewer spares, dead segments are given back at once: that costs less than making others.
constexpr size_t kSparesFew = kSparesWanted;
// More than these are given back: making a segment anew costs more than writing it once.
constexpr size_t kSparesMax = 8;
constexpr int64_t kSpareBytesMax = int64_t{512} << 20;
// They are small.
constexpr size_t kMemorySparesWanted = 64;
constexpr size_t kMemorySparesMax = 512;

// Whether this is its only owner (none: true). use_count() is a relaxed load; the copy that is
// given back is an acquire-release of the count, so what other owners did happened before. (A fence
// would do, but the thread sanitizer does not see fences.)
template <typename T>
bool IsOnlyOwner(const std::shared_ptr<T>& owned) {
  if (owned.use_count() > 1) return false;
  std::shared_ptr<T> copy = owned;
  copy.reset();
  return true;
}

}  // namespace

size_t Log::Reserved() const { return durable() ? kSparesForNotes : kMemorySparesForMoves; }

int64_t Log::BytesMax() const {
  return durable() ? options_.disk_bytes_max : options_.memory_bytes_max;
}

Status Log::AddFirstSpares() {
  // The first two are needed. Those after them are made now because to write zeros beside the first
  // appends would slow both.
  constexpr size_t kNeeded = 2;
  size_t wanted = 1 + Reserved();
  if (!options_.manual && sync()) wanted = kSegmentsAtStart;
  if (!options_.manual && options_.durability == Durability::kOs) wanted = kMappedSegmentsAtStart;
  for (size_t i = 0; i < wanted; ++i) {
    if (i >= kNeeded && disk_bytes() + options_.segment_bytes > BytesMax()) break;
    const Status added = AddSpare();
    // A full disk may have room later.
    if (i >= kNeeded && added.code() == StatusCode::kResourceExhausted) break;
    FB_RETURN_IF_ERROR(added);
  }
  return OkStatus();
}

size_t Log::SparesWanted() const { return durable() ? kSparesWanted : kMemorySparesWanted; }

bool Log::SparesAreFew() const {
  AdaptiveLock lock(mutex_);
  return spares_.size() < kSparesFew;
}

bool Log::SpareWanted() const {
  return !stopping_ && failed_.ok() && spares_.size() < SparesWanted() &&
         disk_bytes_ + options_.segment_bytes <= BytesMax();
}

bool Log::NotesAreTight() const {
  if (!out_of_spares_.load(std::memory_order_relaxed) || !durable()) return false;
  AdaptiveLock lock(mutex_);
  return spares_.empty() && active_->used > active_->capacity / 2 && failed_.ok();
}

Status Log::Maintain() {
  MutexLock maintain(maintain_mutex_);
  while (true) {
    {
      AdaptiveLock lock(mutex_);
      DropColdMemory();
      if (!SpareWanted()) return OkStatus();
    }
    FB_RETURN_IF_ERROR(AddSpare());
  }
}

Status Log::AddSpare() {
  uint32_t file_id = 0;
  {
    AdaptiveLock lock(mutex_);
    file_id = next_file_id_++;
  }
  FB_ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, NewSegment(file_id));
  AdaptiveLock lock(mutex_);
  spares_.push_back(std::move(segment));
  out_of_spares_ = false;
  return OkStatus();
}

// A burst of notes came faster than segments were freed. Above the limit if need be: it is what
// those notes free that brings the log below it again.
Status Log::AddSpareForNotes() {
  MutexLock maintain(maintain_mutex_);
  {
    AdaptiveLock lock(mutex_);
    if (!failed_.ok()) return failed_;
    if (stopping_) return Unavailable("the log is closed");
    if (!spares_.empty()) return OkStatus();
  }
  return AddSpare();
}

// The oldest first: the newest are the likeliest to be read soon by those who follow the log.
void Log::DropColdMemory() {
  if (!durable()) return;
  int64_t held = 0;
  for (const auto& spare : spares_) held += spare->capacity;
  for (const auto& [number, segment] : segments_) {
    if (segment->memory != nullptr) held += segment->capacity;
  }
  for (auto& [number, segment] : segments_) {
    if (held <= options_.memory_bytes_max) return;
    if (segment->memory == nullptr || !segment->sealed) continue;
    if (options_.durability == Durability::kOs) {
      if (!IsOnlyOwner(segment)) continue;  // a reader may be using the file
      Result<std::unique_ptr<LogFile>> again = files_->Open(Path(segment->file_id));
      if (!again.ok()) continue;
      segment->memory.reset();
      segment->file = std::move(*again);
    } else {
      segment->memory.reset();  // views keep it as long as they need
    }
    held -= segment->capacity;
  }
}

bool Log::HasRoom() const {
  AdaptiveLock lock(mutex_);
  return spares_.size() > Reserved();
}

std::vector<uint32_t> Log::Recyclable() const {
  AdaptiveLock lock(mutex_);
  std::vector<uint32_t> numbers;
  for (const auto& [number, segment] : segments_) {
    if (segment->sealed && segment->unacknowledged == 0) numbers.push_back(number);
  }
  return numbers;
}

void Log::Recycle(std::span<const uint32_t> numbers) {
  std::vector<std::shared_ptr<Segment>> remove;
  {
    AdaptiveLock lock(mutex_);
    for (const uint32_t number : numbers) {
      const auto it = segments_.find(number);
      if (it == segments_.end() || !IsOnlyOwner(it->second) || !IsOnlyOwner(it->second->memory)) {
        continue;
      }
      std::shared_ptr<Segment> segment = std::move(it->second);
      segments_.erase(it);
      const bool whole = segment->capacity == options_.segment_bytes && segment->memory != nullptr;
      const size_t spares_max =
          durable() ? std::max(kSparesMax, static_cast<size_t>(kSpareBytesMax / segment->capacity))
                    : kMemorySparesMax;
      const bool above = disk_bytes_ > BytesMax() && !spares_.empty();
      if (whole && !above && spares_.size() < spares_max && !stopping_) {
        // The last one to go is the first to come back: its memory is the warmest.
        spares_.push_front(std::move(segment));
        out_of_spares_ = false;
      } else {
        disk_bytes_ -= segment->capacity;
        remove.push_back(std::move(segment));
      }
    }
  }
  if (!durable()) return;
  for (const auto& segment : remove) files_->Remove(Path(segment->file_id)).ok();
}

}  // namespace forebay::buffer
