// The segments of a Log: spares ahead, seals and memory behind, recycling.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"

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
constexpr size_t kSegmentsAtStart = 4;
constexpr size_t kMappedSegmentsAtStart = 12;
// With fewer spares, dead segments are given back at once: that costs less than making others.
constexpr size_t kSparesFew = kSparesWanted;
constexpr size_t kMappedSparesFew = 6;
// More than these are given back: making a segment anew costs more than writing it once.
constexpr size_t kSparesMax = 8;
constexpr int64_t kSpareBytesMax = int64_t{512} << 20;
// They are small.
constexpr size_t kMemorySparesWanted = 64;
constexpr size_t kMemorySparesMax = 512;
constexpr int kFlushers = 2;

// The bytes of a file or none, given back when the last view of them goes.
std::shared_ptr<char> AnonymousMemory(size_t bytes) {
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  ::madvise(map, bytes, MADV_HUGEPAGE);
  return {static_cast<char*>(map), [bytes](char* at) { ::munmap(at, bytes); }};
}

// Whether nobody else has it, nor can get it. What others did with it happened before: the count
// alone would not say so, giving a copy back does. None: true.
template <typename T>
bool IsOnlyOwner(const std::shared_ptr<T>& owned) {
  if (owned.use_count() > 1) return false;
  std::shared_ptr<T> copy = owned;
  copy.reset();
  return true;
}

}  // namespace

Log::Log(FileSystem* files, const LogOptions& options, LogCallbacks callbacks)
    : files_(files),
      options_(options),
      callbacks_(std::move(callbacks)),
      next_sequence_(options.last_sequence + 1),
      durable_sequence_(options.last_sequence),
      next_number_(options.next_number),
      next_file_id_(options.next_file_id) {}

Result<std::unique_ptr<Log>> Log::Open(FileSystem* files, const LogOptions& options,
                                       LogCallbacks callbacks) {
  std::unique_ptr<Log> log(new Log(files, options, std::move(callbacks)));
  {
    AdaptiveLock lock(log->mutex_);
    for (const KnownSegment& known : options.segments) {
      auto segment = std::make_shared<Segment>();
      segment->number = known.number;
      segment->file_id = known.file_id;
      segment->capacity = known.bytes;
      segment->last_sequence = known.last_sequence;
      segment->sealed = true;
      log->disk_bytes_ += known.bytes;
      log->segments_[known.number] = std::move(segment);
    }
  }
  // The first two are needed. Those after them are made now because to write zeros beside the first
  // appends would slow both.
  constexpr size_t kNeeded = 2;
  size_t wanted = 1 + log->Reserved();
  if (!options.manual && log->sync()) wanted = kSegmentsAtStart;
  if (!options.manual && options.durability == Durability::kOs) wanted = kMappedSegmentsAtStart;
  for (size_t i = 0; i < wanted; ++i) {
    if (i >= kNeeded && log->disk_bytes() + options.segment_bytes > log->BytesMax()) break;
    const Status added = log->AddSpare();
    // A full disk may have room later.
    if (i >= kNeeded && added.code() == StatusCode::kResourceExhausted) break;
    FB_RETURN_IF_ERROR(added);
  }
  {
    AdaptiveLock lock(log->mutex_);
    std::shared_ptr<Segment> first = log->spares_.front();
    log->spares_.pop_front();
    log->Activate(std::move(first));
  }
  if (log->sync() && !options.manual) {
    for (int i = 0; i < kFlushers; ++i)
      log->flushers_.emplace_back([l = log.get()] { l->RunFlusher(); });
  }
  return log;
}

void Log::Close() {
  {
    AdaptiveLock lock(mutex_);
    if (stopping_) return;
  }
  Flush().ok();  // a failure was told through on_failure
  std::shared_ptr<Segment> active;
  std::deque<std::shared_ptr<Segment>> spares;
  {
    AdaptiveLock lock(mutex_);
    stopping_ = true;
    flusher_wake_.NotifyAll();
    active = std::move(active_);
    spares.swap(spares_);
  }
  for (std::thread& flusher : flushers_) flusher.join();
  if (!durable() || !failed().ok()) return;
  // A clean end: the next start has no segment to scan, and no space stays taken ahead.
  SealMapped();
  if (active != nullptr) Seal(active);
  for (const auto& spare : spares) files_->Remove(Path(spare->file_id)).ok();
}

size_t Log::Reserved() const { return durable() ? kSparesForNotes : kMemorySparesForMoves; }

int64_t Log::BytesMax() const {
  return durable() ? options_.disk_bytes_max : options_.memory_bytes_max;
}

std::string Log::Path(uint32_t file_id) const {
  return options_.folder + "/" + SegmentName(file_id);
}

Status Log::AttachMemory(Segment& segment) const {
  const auto bytes = static_cast<size_t>(segment.capacity);
  if (options_.durability == Durability::kOs) {
    FB_ASSIGN_OR_RETURN(char* const map, segment.file->Map());
    // The file unmaps it, after the last view.
    segment.memory = std::shared_ptr<char>(map, [file = segment.file](char*) {});
  } else {
    segment.memory = AnonymousMemory(bytes);
    if (segment.memory == nullptr) {
      return ResourceExhausted(fmt::format("no memory for a segment of {} bytes", bytes));
    }
  }
#ifdef MADV_POPULATE_WRITE
  // Now, rather than one page fault after another in the middle of appends.
  ::madvise(segment.memory.get(), bytes, MADV_POPULATE_WRITE);
#endif
  return OkStatus();
}

Result<std::shared_ptr<Segment>> Log::NewSegment(uint32_t file_id) {
  auto segment = std::make_shared<Segment>();
  segment->file_id = file_id;
  segment->capacity = options_.segment_bytes;
  if (durable()) {
    FB_ASSIGN_OR_RETURN(segment->file,
                        files_->Create(Path(file_id), options_.segment_bytes, sync()));
  }
  const Status attached = AttachMemory(*segment);
  if (!attached.ok()) {
    segment->file.reset();
    if (durable()) files_->Remove(Path(file_id)).ok();
    return attached;
  }
  AdaptiveLock lock(mutex_);
  disk_bytes_ += segment->capacity;
  return segment;
}

void Log::Activate(std::shared_ptr<Segment> segment) {
  segment->number = next_number_++;
  segment->used = static_cast<int64_t>(kDataBegin);
  segment->records = 0;
  segment->last_sequence = next_sequence_ - 1;
  segment->unacknowledged = 0;
  segment->sealed = false;
  if (durable()) {
    const std::string block = EncodeSegmentHeader({.number = segment->number,
                                                   .capacity = segment->capacity,
                                                   .first_sequence = next_sequence_,
                                                   .group_size = options_.group_size});
    std::memcpy(segment->memory.get(), block.data(), block.size());
  }
  active_ = segment;
  segments_[segment->number] = std::move(segment);
}

// The next segment; what the old one still needs to be complete is on its way.
bool Log::Roll(Kind kind, int64_t record_bytes) {
  const bool large = record_bytes > options_.segment_bytes / 2;
  if (!durable() && (large || spares_.size() <= Reserved())) {
    const bool added = AddSpareFor(large ? record_bytes : options_.segment_bytes / 2);
    if (large && !added) return false;
  }
  if (spares_.size() <= (kind == Kind::kTrajectory ? Reserved() : 0)) return false;
  if (sync()) {
    if (!groups_.empty() && groups_.back()->open) CloseGroup(*groups_.back());
    auto last = std::make_shared<FlushGroup>();
    last->segment = active_;
    last->begin = last->end = active_->used;
    last->last_sequence = next_sequence_ - 1;
    last->open = false;
    last->copying = 0;
    last->last_of_segment = true;
    groups_.push_back(std::move(last));
  } else if (durable()) {
    to_seal_.push_back(active_);
  } else {
    active_->sealed = true;
  }
  std::shared_ptr<Segment> next = std::move(spares_.front());
  spares_.pop_front();
  few_spares_ = spares_.empty();
  Activate(std::move(next));
  callbacks_.on_work();
  return true;
}

// kMemory: a segment as large as the record needs is the next one.
bool Log::AddSpareFor(int64_t record_bytes) {
  auto segment = std::make_shared<Segment>();
  // Its header, its index, and pads.
  constexpr int64_t kOverhead = 8 * static_cast<int64_t>(kBlockBytes);
  segment->capacity = std::max(options_.segment_bytes, WholeBlocks(record_bytes + kOverhead));
  if (disk_bytes_ + segment->capacity > options_.memory_bytes_max) return false;
  segment->memory = AnonymousMemory(static_cast<size_t>(segment->capacity));
  if (segment->memory == nullptr) return false;
  disk_bytes_ += segment->capacity;
  spares_.push_front(std::move(segment));
  return true;
}

// Everything in it is written: its index follows. Without one it is scanned after a crash.
void Log::Seal(const std::shared_ptr<Segment>& segment) {
  std::vector<RecordHeader> headers;
  headers.reserve(static_cast<size_t>(segment->records));
  for (auto at = static_cast<int64_t>(kDataBegin); at < segment->used;) {
    RecordHeader header;
    std::memcpy(&header, segment->memory.get() + at, sizeof(header));
    headers.push_back(header);
    at += RecordBytes(header.payload_bytes);
  }
  const std::string index = EncodeIndex(segment->number, headers, segment->capacity);
  const auto offset = segment->capacity - static_cast<int64_t>(index.size());
  std::memcpy(segment->memory.get() + offset, index.data(), index.size());
  Status status;
  if (sync()) {
    if (segment->used == static_cast<int64_t>(kDataBegin)) {  // its header came with no record
      status = segment->file->WriteDurable(0, {segment->memory.get(), kDataBegin});
    }
    if (status.ok()) {
      status = segment->file->WriteDurable(offset, {segment->memory.get() + offset, index.size()});
    }
  }
  if (!status.ok()) {
    Fail(status.WithContext("the index of a segment could not be written"));
    callbacks_.on_acknowledged();  // what was not written yet is lost: tell who waits for it
    return;
  }
  {
    AdaptiveLock lock(mutex_);
    segment->sealed = true;
  }
  callbacks_.on_work();
}

void Log::SealMapped() {
  std::vector<std::shared_ptr<Segment>> ready;
  {
    AdaptiveLock lock(mutex_);
    // Its last records may still be copied; notes are filled under the owner's lock.
    const auto begin = std::stable_partition(to_seal_.begin(), to_seal_.end(),
                                             [](const auto& s) { return s->unacknowledged > 0; });
    ready.assign(std::make_move_iterator(begin), std::make_move_iterator(to_seal_.end()));
    to_seal_.erase(begin, to_seal_.end());
  }
  for (const auto& segment : ready) Seal(segment);
}

size_t Log::SparesWanted() const { return durable() ? kSparesWanted : kMemorySparesWanted; }

bool Log::SparesAreFew() const {
  AdaptiveLock lock(mutex_);
  return spares_.size() < (sync() ? kSparesFew : kMappedSparesFew);
}

bool Log::SpareWanted() const {
  return !stopping_ && failed_.ok() && spares_.size() < SparesWanted() &&
         disk_bytes_ + options_.segment_bytes <= BytesMax();
}

bool Log::NotesAreTight() const {
  if (!few_spares_.load(std::memory_order_relaxed) || !durable()) return false;
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
  if (sync()) FB_RETURN_IF_ERROR(files_->SyncFolder(options_.folder));
  AdaptiveLock lock(mutex_);
  spares_.push_back(std::move(segment));
  few_spares_ = false;
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

Result<std::shared_ptr<Segment>> Log::Pin(uint32_t number) const {
  AdaptiveLock lock(mutex_);
  const auto it = segments_.find(number);
  if (it == segments_.end()) return std::shared_ptr<Segment>();
  if (it->second->file == nullptr && durable()) {
    // There may be thousands of segments from before; a file is open once it is read.
    Result<std::unique_ptr<LogFile>> file = files_->Open(Path(it->second->file_id));
    if (file.ok()) {
      it->second->file = std::move(*file);
    } else if (file.status().code() != StatusCode::kNotFound) {
      return file.status();
    }
  }
  return it->second;
}

std::shared_ptr<char> Log::MemoryOf(const Segment& segment) const {
  AdaptiveLock lock(mutex_);
  return segment.memory;
}

Result<std::string_view> Log::Read(const Segment& segment, const std::shared_ptr<char>& memory,
                                   uint32_t offset_64, uint32_t payload_bytes,
                                   int64_t trajectory_id, std::unique_ptr<char[]>* buffer) {
  if (memory != nullptr) {
    return std::string_view(memory.get() + offset_64 * kRecordAlign + kRecordAlign, payload_bytes);
  }
  if (segment.file == nullptr) return DataLoss(fmt::format("segment {} is gone", segment.number));
  return ReadTrajectory(*segment.file, segment.number, offset_64, payload_bytes, trajectory_id,
                        buffer);
}

std::vector<ScannedRecord> Log::Records(const Segment& segment,
                                        const std::shared_ptr<char>& memory) {
  std::vector<ScannedRecord> records;
  if (memory == nullptr || segment.used == 0) {
    if (segment.file == nullptr) return records;
    std::optional<SegmentScan> scan = ReadIndex(*segment.file, segment.number);
    return scan ? std::move(scan->records) : records;
  }
  for (size_t at = kDataBegin; at < static_cast<size_t>(segment.used);) {
    RecordHeader header;
    std::memcpy(&header, memory.get() + at, sizeof(header));
    if (header.type != RecordType::kPad) records.push_back({.header = header, .offset = at});
    at += static_cast<size_t>(RecordBytes(header.payload_bytes));
  }
  return records;
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
        few_spares_ = false;
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
