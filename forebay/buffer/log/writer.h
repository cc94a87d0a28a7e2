// LogWriter: one thread that writes records in groups, with one flush in flight, and owns the
// segments.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"

namespace forebay::buffer {

// What follows the log: after each record that was written, in log order, on the writer's thread.
class LogMirror {
 public:
  virtual ~LogMirror() = default;
  virtual void Apply(const RecordHeader& header, std::string_view payload) = 0;
  // The state after every record applied.
  virtual std::string Snapshot() const = 0;
  // False when nothing in the segment is needed any more.
  virtual bool SegmentIsLive(uint32_t segment) const = 0;
};

struct LogEntry {
  // Type, and for a trajectory its ids and version; the writer fills in the rest.
  RecordHeader header;
  std::string payload;
  // Set: the record must be durable, and `done` is told once it is, or why it was refused. Not set:
  // a note that is kept and tried again while the disk is full.
  std::function<void(Status)> done;
  // The record waits outside when the segments are at disk_bytes_max: done gets kNoRoom.
  bool respects_limit = false;
  int copies = 1;  // records with this payload: two of what must outlive a damaged one
};

// The refusal of an entry that respects_limit. Not kResourceExhausted: that is a full disk.
Status NoRoom();
bool IsNoRoom(const Status& status);

struct LogWriterOptions {
  std::string folder;
  bool sync = true;  // durable means on the device, not only written
  int64_t segment_bytes = int64_t{64} << 20;
  int64_t disk_bytes_max = int64_t{16} << 30;
  int32_t group_size = 8;
  int64_t last_sequence = 0;  // of the records that are there
  uint32_t next_segment = 1;
  std::map<uint32_t, int64_t> segments;  // that are there: number -> bytes
  bool manual = false;                   // no thread: Pump writes (simulations)
};

struct LogStats {
  int64_t records = 0, flushes = 0, disk_bytes = 0, segments = 0;
};

// Thread-safe. No callback runs with a lock held.
class LogWriter {
 public:
  // `on_failure` is called once, when nothing can be written any more; `on_room` after segments
  // went.
  LogWriter(FileSystem* files, LogMirror* mirror, const LogWriterOptions& options,
            std::function<void(const Status&)> on_failure, std::function<void()> on_room);
  // Writes what is queued and ends the thread.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Opens the first segment, durably, and starts the thread. Call once.
  Status Start();
  // Never blocks. Entries are written in this order.
  void Submit(LogEntry entry);
  // Blocks until everything submitted before is durable, or the log has failed.
  Status Flush();
  // Manual mode: writes what is queued, on this thread.
  void Pump();

  LogStats stats() const;
  // Bytes of records that can be written now under disk_bytes_max; a little too careful.
  int64_t room_bytes() const;

 private:
  struct Segment {
    std::unique_ptr<LogFile> file;
    uint32_t number = 0;
    int64_t capacity = 0, used = 0;
    bool dirty = false;  // written since the last sync
  };
  // A run of entries that were encoded and go to the disk together.
  struct Group {
    std::vector<LogEntry> entries;
    std::string bytes;
    bool durable = false;
  };

  void Run();
  void Process(std::deque<LogEntry> batch);
  Status Place(LogEntry& entry, Group& group);
  Status WriteOut(Group& group);
  Status SyncActive();
  Status Roll(int64_t record_bytes, bool respects_limit);
  void Refuse(std::vector<LogEntry>& entries, const Status& why);
  void Fail(const Status& why);
  void Recycle();
  void PublishStats();

  FileSystem* const files_;
  LogMirror* const mirror_;
  const LogWriterOptions options_;
  const std::function<void(const Status&)> on_failure_;
  const std::function<void()> on_room_;

  // The writer's own: touched by its thread, and by Start before it.
  Segment active_;
  std::map<uint32_t, int64_t> sealed_;  // number -> bytes on disk
  int64_t next_sequence_ = 1, last_good_sequence_ = 0;
  uint32_t next_segment_ = 1;
  Status failed_;
  TimePoint full_since_{};        // the disk has been full without a break since then
  std::deque<LogEntry> backlog_;  // notes that met a full disk
  int64_t records_ = 0, flushes_ = 0;

  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<LogEntry> queue_ FB_GUARDED_BY(mutex_);
  bool stopping_ FB_GUARDED_BY(mutex_) = false;
  LogStats stats_ FB_GUARDED_BY(mutex_);
  int64_t room_bytes_ FB_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace forebay::buffer
