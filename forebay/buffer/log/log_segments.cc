// The segments of a Log: made, filled one after another, sealed, read.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
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

constexpr int kFlushers = 3;

// Zeroed pages, unmapped with their last owner.
std::shared_ptr<char> AnonymousMemory(size_t bytes) {
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  ::madvise(map, bytes, MADV_HUGEPAGE);
  return {static_cast<char*>(map), [bytes](char* at) { ::munmap(at, bytes); }};
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
      segment->sealed = true;
      log->disk_bytes_ += known.bytes;
      log->segments_[known.number] = std::move(segment);
    }
  }
  FB_RETURN_IF_ERROR(log->AddFirstSpares());
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
  Status made = AttachMemory(*segment);
  if (made.ok() && sync()) made = files_->SyncFolder(options_.folder);
  if (!made.ok()) {
    segment->memory.reset();
    segment->file.reset();
    if (durable()) files_->Remove(Path(file_id)).ok();
    return made;
  }
  AdaptiveLock lock(mutex_);
  disk_bytes_ += segment->capacity;
  return segment;
}

void Log::Activate(std::shared_ptr<Segment> segment) {
  segment->number = next_number_++;
  segment->used = static_cast<int64_t>(kDataBegin);
  segment->records = 0;
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
  out_of_spares_ = spares_.empty();
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

}  // namespace forebay::buffer
