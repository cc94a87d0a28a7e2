#include "forebay/buffer/log/writer.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"

namespace forebay::buffer {
namespace {

// One write: larger ones do not go faster, and delay the first record's acknowledgement.
constexpr int64_t kGroupBytes = int64_t{1} << 20;
// How long notes may wait for a full disk before the log gives up.
constexpr auto kFullDiskMax = std::chrono::seconds(60);
constexpr auto kRetryFullDisk = std::chrono::milliseconds(200);
constexpr auto kIdle = std::chrono::hours(1);
constexpr std::string_view kNoRoomText = "the segments are at disk_bytes_max";

}  // namespace

Status NoRoom() { return ResourceExhausted(std::string(kNoRoomText)); }
bool IsNoRoom(const Status& status) {
  return status.code() == StatusCode::kResourceExhausted && status.message() == kNoRoomText;
}

LogWriter::LogWriter(FileSystem* files, LogMirror* mirror, const LogWriterOptions& options,
                     std::function<void(const Status&)> on_failure, std::function<void()> on_room)
    : files_(files),
      mirror_(mirror),
      options_(options),
      on_failure_(std::move(on_failure)),
      on_room_(std::move(on_room)),
      sealed_(options.segments),
      next_sequence_(options.last_sequence + 1),
      last_good_sequence_(options.last_sequence),
      next_segment_(options.next_segment) {}

LogWriter::~LogWriter() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Pump();
  }
  if (active_.file == nullptr || !failed_.ok()) return;
  // A clean end: the space that was taken ahead goes back, and the next start has less to read.
  if (options_.sync && active_.dirty && !active_.file->Sync().ok()) return;
  files_->Truncate(options_.folder + "/" + SegmentName(active_.number), active_.used).ok();
}

Status LogWriter::Start() {
  FB_RETURN_IF_ERROR(Roll(0, false));
  Recycle();
  PublishStats();
  if (!options_.manual) thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

void LogWriter::Submit(LogEntry entry) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(entry));
  wake_.NotifyOne();
}

Status LogWriter::Flush() {
  struct Shared {
    Mutex mutex;
    CondVar wake;
    bool told = false;
    Status status;
  };
  auto shared = std::make_shared<Shared>();
  LogEntry barrier;
  barrier.header.payload_bytes = 0;
  barrier.header.sequence = -1;  // no record
  barrier.done = [shared](const Status& status) {
    MutexLock lock(shared->mutex);
    shared->told = true;
    shared->status = status;
    shared->wake.NotifyAll();
  };
  Submit(std::move(barrier));
  if (!thread_.joinable()) Pump();
  MutexLock lock(shared->mutex);
  while (!shared->told) shared->wake.WaitUntil(shared->mutex, Now() + kIdle);
  return shared->status;
}

void LogWriter::Pump() {
  std::deque<LogEntry> batch;
  {
    MutexLock lock(mutex_);
    batch.swap(queue_);
  }
  Process(std::move(batch));
}

void LogWriter::Run() {
  while (true) {
    std::deque<LogEntry> batch;
    {
      MutexLock lock(mutex_);
      const TimePoint until =
          Now() + (backlog_.empty() ? Duration(kIdle) : Duration(kRetryFullDisk));
      while (queue_.empty() && !stopping_) {
        if (!wake_.WaitUntil(mutex_, until)) break;
      }
      if (queue_.empty() && stopping_) return;
      batch.swap(queue_);
    }
    Process(std::move(batch));
  }
}

void LogWriter::Process(std::deque<LogEntry> batch) {
  // Notes that met a full disk come first: their order among each other is the log's.
  batch.insert(batch.begin(), std::make_move_iterator(backlog_.begin()),
               std::make_move_iterator(backlog_.end()));
  backlog_.clear();
  Group group;
  for (LogEntry& entry : batch) {
    Status placed = failed_;
    // A note that met a full disk holds back what follows it: the order of the log is that of the
    // calls.
    if (placed.ok() && !backlog_.empty())
      placed = ResourceExhausted("the disk is full: earlier records wait");
    if (placed.ok()) placed = Place(entry, group);
    if (placed.ok()) {
      group.entries.push_back(std::move(entry));
      continue;
    }
    std::vector<LogEntry> refused;
    refused.push_back(std::move(entry));
    Refuse(refused, placed);
  }
  const Status written = WriteOut(group);
  (void)written;  // the entries were told
  Recycle();
  PublishStats();
}

// Encodes the entry into the group, and writes the group out first when it is full or needs a new
// segment.
Status LogWriter::Place(LogEntry& entry, Group& group) {
  if (entry.header.sequence < 0) {  // a barrier
    if (!backlog_.empty())
      return ResourceExhausted("the disk is full: notes of the log wait for room");
    group.durable = true;
    return OkStatus();
  }
  const int64_t bytes = entry.copies * RecordBytes(entry.payload.size());
  const auto queued = [&] { return static_cast<int64_t>(group.bytes.size()); };
  if (queued() >= kGroupBytes) FB_RETURN_IF_ERROR(WriteOut(group));
  if (active_.file == nullptr || active_.used + queued() + bytes > active_.capacity) {
    FB_RETURN_IF_ERROR(WriteOut(group));
    FB_RETURN_IF_ERROR(Roll(bytes, entry.respects_limit));
  }
  group.durable = group.durable || entry.done != nullptr;
  entry.header.segment = active_.number;
  entry.header.payload_bytes = static_cast<uint32_t>(entry.payload.size());
  for (int copy = 0; copy < entry.copies; ++copy) {
    entry.header.sequence = next_sequence_++;
    AppendRecord(entry.header, entry.payload, group.bytes);
  }
  return OkStatus();
}

// Writes, flushes when somebody waits for it, applies in log order, then acknowledges. On an error
// the entries are refused and the error is returned; the group is empty afterwards in any case.
Status LogWriter::WriteOut(Group& group) {
  Group now = std::move(group);
  group = Group();
  if (now.entries.empty()) return OkStatus();
  Status status = failed_;
  if (status.ok() && !now.bytes.empty()) {
    active_.dirty = true;
    status = active_.file->Write(active_.used, now.bytes);
  }
  if (status.ok() && now.durable) status = SyncActive();
  if (!status.ok()) {
    if (failed_.ok()) {
      // What was partly written stays behind: this segment gets no record after its last good one,
      // and the next segment's opening tells where that was.
      if (active_.file != nullptr) sealed_[active_.number] = active_.capacity;
      active_ = Segment();
      if (status.code() != StatusCode::kResourceExhausted) Fail(status);
    }
    Refuse(now.entries, status);
    return status;
  }
  full_since_ = TimePoint();
  active_.used += static_cast<int64_t>(now.bytes.size());
  for (const LogEntry& entry : now.entries) {
    if (entry.header.sequence < 0) continue;
    last_good_sequence_ = entry.header.sequence;
    ++records_;
    mirror_->Apply(entry.header, entry.payload);
  }
  PublishStats();
  for (LogEntry& entry : now.entries) {
    if (entry.done) entry.done(OkStatus());
  }
  return OkStatus();
}

void LogWriter::Refuse(std::vector<LogEntry>& entries, const Status& why) {
  const bool disk_full = failed_.ok() && why.code() == StatusCode::kResourceExhausted;
  if (disk_full && !IsNoRoom(why)) {
    if (full_since_ == TimePoint()) full_since_ = Now();
    if (Now() - full_since_ > kFullDiskMax) {
      Fail(why.WithContext(fmt::format("the disk stayed full for {} s", kFullDiskMax.count())));
    }
  }
  for (LogEntry& entry : entries) {
    if (entry.done) {
      entry.done(failed_.ok() ? why : failed_);
    } else if (failed_.ok()) {
      backlog_.push_back(std::move(entry));
    }
  }
}

void LogWriter::Fail(const Status& why) {
  if (!failed_.ok()) return;
  failed_ = Unavailable("the buffer's log takes no more records: " + why.message());
  backlog_.clear();
  if (on_failure_) on_failure_(failed_);
}

// What was written is durable afterwards, if it has to be. A failure ends the log, whatever its
// code: after a failed flush nobody knows what the device has.
Status LogWriter::SyncActive() {
  if (active_.file == nullptr || !options_.sync || !active_.dirty) return OkStatus();
  const Status synced = active_.file->Sync();
  ++flushes_;
  if (!synced.ok()) {
    Fail(synced.WithContext("the log's flush failed, so its segment is sealed and never retried"));
    return failed_;
  }
  active_.dirty = false;
  return OkStatus();
}

// Seals the active segment and opens the next one, with a snapshot at its start.
Status LogWriter::Roll(int64_t record_bytes, bool respects_limit) {
  FB_RETURN_IF_ERROR(SyncActive());
  std::string start;
  RecordHeader header{
      .type = RecordType::kOpening, .sequence = next_sequence_, .segment = next_segment_};
  AppendRecord(
      header,
      EncodeOpening({.group_size = options_.group_size, .previous_sequence = last_good_sequence_}),
      start);
  header.type = RecordType::kSnapshot;
  header.sequence = next_sequence_ + 1;
  AppendRecord(header, mirror_->Snapshot(), start);
  const auto start_bytes = static_cast<int64_t>(start.size());
  const int64_t capacity = std::max(options_.segment_bytes, start_bytes + record_bytes);
  int64_t on_disk = active_.file == nullptr ? 0 : active_.capacity;
  for (const auto& [number, bytes] : sealed_) on_disk += bytes;
  // A segment is kept back for the notes that end attempts: without them nothing would ever be
  // freed.
  if (respects_limit && on_disk + capacity > options_.disk_bytes_max - options_.segment_bytes)
    return NoRoom();

  const std::string path = options_.folder + "/" + SegmentName(next_segment_);
  Result<std::unique_ptr<LogFile>> file = files_->Create(path, capacity);
  Status status = file.ok() ? OkStatus() : file.status();
  if (status.ok()) status = (*file)->Write(0, start);
  if (!status.ok()) {
    if (file.ok()) files_->Remove(path).ok();
    // Neither its name nor its sequences are used again, should the file have stayed.
    ++next_segment_;
    next_sequence_ += 2;
    if (status.code() != StatusCode::kResourceExhausted) Fail(status);
    return failed_.ok() ? status : failed_;
  }
  if (options_.sync) {
    status = (*file)->Sync();
    if (status.ok()) status = files_->SyncFolder(options_.folder);
    ++flushes_;
    if (!status.ok()) {
      Fail(status.WithContext("a new segment could not be flushed"));
      return failed_;
    }
  }
  if (active_.file != nullptr) sealed_[active_.number] = active_.capacity;
  active_ = Segment{
      .file = std::move(*file), .number = next_segment_, .capacity = capacity, .used = start_bytes};
  ++next_segment_;
  last_good_sequence_ = next_sequence_ + 1;
  next_sequence_ += 2;
  return OkStatus();
}

// Removes the sealed segments of which nothing is needed: the active one began with a snapshot. The
// one before it stays, for the day when that snapshot is damaged.
void LogWriter::Recycle() {
  if (!failed_.ok() || active_.file == nullptr) return;
  bool removed = false;
  for (auto it = sealed_.begin(); it != sealed_.end() && std::next(it) != sealed_.end();) {
    if (mirror_->SegmentIsLive(it->first)) {
      ++it;
      continue;
    }
    // The notes that freed it must not be lost when it is gone.
    if (!SyncActive().ok()) return;
    // Later, perhaps.
    if (!files_->Remove(options_.folder + "/" + SegmentName(it->first)).ok()) return;
    it = sealed_.erase(it);
    removed = true;
  }
  if (!removed) return;
  PublishStats();
  if (on_room_) on_room_();
}

void LogWriter::PublishStats() {
  int64_t on_disk = active_.file == nullptr ? 0 : active_.capacity;
  for (const auto& [number, bytes] : sealed_) on_disk += bytes;
  MutexLock lock(mutex_);
  stats_ = {.records = records_,
            .flushes = flushes_,
            .disk_bytes = on_disk,
            .segments = static_cast<int64_t>(sealed_.size()) + (active_.file == nullptr ? 0 : 1)};
  // One segment is kept back (see Roll).
  const int64_t free = options_.disk_bytes_max - options_.segment_bytes - on_disk;
  const int64_t in_active = active_.file == nullptr ? 0 : active_.capacity - active_.used;
  room_bytes_ =
      in_active + std::max<int64_t>(0, free / options_.segment_bytes * options_.segment_bytes);
}

LogStats LogWriter::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

int64_t LogWriter::room_bytes() const {
  MutexLock lock(mutex_);
  return room_bytes_;
}

}  // namespace forebay::buffer
