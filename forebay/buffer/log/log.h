// Log: where records go, in an order that the owner decides, and from where they are read.
//
// Segments are files of one size that are recycled. How an append becomes as durable as it has to:
//   kSync    it is copied into the memory image of its segment; whoever finds no flush in progress
//            (the waiting caller, else a flusher thread) writes everything that came meanwhile with
//            one O_DIRECT | O_DSYNC write. One flush is in flight; while it is, the next group
//            fills. Three flusher threads: one writes group after group, another acknowledges
//            what is written, a third may be sealing a segment meanwhile.
//   kOs      it is copied into a shared mapping of the segment's file, which outlives the process.
//   kMemory  it is copied into memory. Notes are not even written.
// With kSync records become durable, and the owner's, in log order; those who wait for neighbouring
// groups may be told side by side. With the others a record stands for itself: its header is
// written last, and recovery looks past what a killed process had not finished; to wait for all
// earlier ones would let every thread that lost its processor in a copy stop all others.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/segment.h"

namespace forebay::buffer {

struct Segment {
  uint32_t number = 0, file_id = 0;
  int64_t capacity = 0;           // of the file
  std::shared_ptr<LogFile> file;  // null in kMemory
  std::shared_ptr<char> memory;   // its content; null: only on disk
  // While it is written:
  int64_t used = 0, records = 0;
  int64_t unacknowledged = 0;
  bool sealed = false;  // complete on disk, with its index
};

// What goes to the disk in one write.
struct FlushGroup {
  std::atomic<uint32_t> copying{1};  // reservations that are not filled, and 1 while it is open
  std::atomic<uint32_t> done{0};     // 1: acknowledged, or failed
  std::shared_ptr<Segment> segment;
  int64_t begin = 0, end = 0;
  int64_t last_sequence = 0;
  bool open = true;
  bool last_of_segment = false;
};

// A record between Reserve and its acknowledgement.
struct LogEntry {
  RecordHeader header;
  uint32_t offset_64 = 0;  // in its segment, in units of 64 bytes
  bool durable = true;     // false: the log failed before it was
  uint32_t place = 0;      // the owner's: where its state keeps the trajectory
  std::function<void(Status)> done;
};

// An entry that the log keeps until it is acknowledged.
struct KeptEntry {
  LogEntry entry;
  Segment* segment = nullptr;  // stays while it has unacknowledged entries; null: it got no place
  KeptEntry* next = nullptr;   // of those that are settled, the one before
  bool taken = false;          // by TakeSettled
};

// Where a reserved record is to be written.
struct LogSlot {
  RecordHeader header;
  uint32_t offset_64 = 0;
  char* at = nullptr;
  KeptEntry* kept = nullptr;          // kOs, kMemory: valid until it is settled
  std::shared_ptr<FlushGroup> group;  // kSync
};

// A segment that is there when the log is opened.
struct KnownSegment {
  uint32_t number = 0, file_id = 0;
  int64_t bytes = 0;
};

struct LogOptions {
  std::string folder;
  Durability durability = Durability::kSync;
  int64_t segment_bytes = int64_t{64} << 20;
  int64_t memory_bytes_max = int64_t{1} << 30;
  int64_t disk_bytes_max = int64_t{16} << 30;
  int32_t group_size = 8;
  int64_t last_sequence = 0;
  uint32_t next_number = 1, next_file_id = 1;
  std::vector<KnownSegment> segments;
  bool manual = false;  // no threads: Pump flushes (simulations)
};

// Called on the thread that caused the event. on_work may be called with the log's lock held, and
// on_failure with the owner's (by Log::Note): they must only signal another thread.
struct LogCallbacks {
  std::function<void()> on_acknowledged;  // TakeAcknowledged has something
  std::function<void()> on_failure;       // once: failed() says why nothing is written any more
  std::function<void()> on_work;          // Maintain has something to do
};

struct LogStats {
  int64_t flushes = 0;
  int64_t disk_bytes = 0, segments = 0, memory_bytes = 0;
};

// Thread-safe.
class Log {
 public:
  // The first segments are there when it returns.
  static Result<std::unique_ptr<Log>> Open(FileSystem* files, const LogOptions& options,
                                           LogCallbacks callbacks);
  ~Log() { Close(); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  enum class Kind { kNote, kTrajectory, kMove };
  // Takes the next place in the log. Never blocks. False: no room for a trajectory before segments
  // are prepared or recycled (on_work), or the log has failed. `place` and `done` (kSync) are in
  // the entry that TakeAcknowledged or TakeSettled gives. Notes, and records that move, can use the
  // last spare segments too, since they are what frees others.
  bool Reserve(Kind kind, const RecordHeader& header, size_t payload_bytes, uint32_t place,
               std::function<void(Status)> done, LogSlot* slot);
  // Copies the payload to its place, checksummed. Call it soon: the segment waits for it. Then
  // kOs, kMemory: it is as durable as it gets, so Settle; kSync: Await or Kick.
  void Fill(LogSlot& slot, std::string_view payload);
  // The same, for bytes of a trajectory that somebody else may be changing: what is stored is whole
  // and checksummed, and if it came to name another trajectory than the header, its beginning is
  // wiped, so that nobody takes it for that one.
  void FillTrajectory(LogSlot& slot, std::string_view payload);
  // kOs, kMemory: the record is filled. Without a lock: whoever looks at the owner's state next
  // brings it up to date with TakeSettled, many records at a time.
  void Settle(const LogSlot& slot);
  bool HasSettled() const { return settled_.load() != nullptr; }
  // The entries that were settled since the last call, in that order. The owner's state has them
  // before it looks at the log again.
  void TakeSettled(std::vector<LogEntry>* out);
  // Reserve and Fill of a note, and Kick. `done` is for kSync: else it is durable on return. A log
  // without room takes another segment, above its limit if need be (blocks on the disk then).
  // False: the log has failed; `done` is told all the same.
  bool Note(const RecordHeader& header, std::string_view payload,
            std::function<void(Status)> done = {});
  // kSync: somebody flushes soon.
  void Kick();
  // kSync: blocks until the group was acknowledged; flushes on this thread when nobody else does.
  // False after the deadline.
  bool Await(const std::shared_ptr<FlushGroup>& group, TimePoint deadline);
  // Everything that Reserve gave before is on disk, or the log has failed. Call without a lock that
  // on_acknowledged needs.
  Status Flush();
  // Flushes, seals the active segment and ends the threads: the last callbacks come within. Nothing
  // but the destructor may be called after it.
  void Close();
  // Manual mode.
  void Pump();

  // kSync: the entries that became durable since the last call, in log order; after a failure also
  // those that did not. The owner calls Wake with the groups after it has told everybody.
  struct Acknowledged {
    std::vector<LogEntry> entries;
    std::vector<std::shared_ptr<FlushGroup>> groups;
  };
  void TakeAcknowledged(Acknowledged* out);
  static void Wake(const Acknowledged& acknowledged);

  // Nothing is written from here on, as after a failed write. Once: later calls change nothing.
  void Fail(const Status& why);
  Status failed() const;
  int64_t last_sequence() const;
  // The first entry that is not taken by TakeAcknowledged or TakeSettled; last_sequence() + 1 if
  // there is none.
  int64_t oldest_unacknowledged() const;
  int64_t reserved_bytes() const;  // since it was opened
  bool HasRoom() const;            // for another segment of trajectories
  bool OutOfSpares() const { return out_of_spares_.load(std::memory_order_relaxed); }
  bool SparesAreFew() const;   // give back what is dead, before Maintain makes others
  int64_t disk_bytes() const;  // of all segments (kMemory: of memory)
  // The last spare is in use, and half of it: notes need another one soon.
  bool NotesAreTight() const;
  int64_t RoomToMove() const;  // bytes of records that a kMove could take

  // ---- segments
  // With its file open, if it is on disk and there; null: not there. Not OK: the file cannot be
  // opened now (too many are open), which says nothing about what is in it.
  Result<std::shared_ptr<Segment>> Pin(uint32_t number) const;
  // Its memory, kept while the copy lives; null: only the disk has it.
  std::shared_ptr<char> MemoryOf(const Segment& segment) const;
  // The payload of a record of a pinned segment: a view into its memory if there is any, else into
  // `buffer`, read and verified. kDataLoss: damaged.
  static Result<std::string_view> Read(const Segment& segment, const std::shared_ptr<char>& memory,
                                       uint32_t offset_64, uint32_t payload_bytes,
                                       int64_t trajectory_id, std::unique_ptr<char[]>* buffer);
  // kOs: full segments get their index once all of their records are there.
  void SealMapped();
  // The records of a sealed segment, pads left out; empty if its index cannot be read.
  static std::vector<ScannedRecord> Records(const Segment& segment,
                                            const std::shared_ptr<char>& memory);
  // Prepares spare segments, and drops memory above memory_bytes_max. Blocks on the disk. An error
  // (a full disk) is no failure yet: call it again later.
  Status Maintain();
  // The sealed segments without unacknowledged entries.
  std::vector<uint32_t> Recyclable() const;
  // Their content is not needed any more. Those that are pinned stay until another call.
  void Recycle(std::span<const uint32_t> numbers);
  LogStats stats() const;
  bool durable() const { return options_.durability != Durability::kMemory; }
  bool sync() const { return options_.durability == Durability::kSync; }
  int64_t payload_bytes_max() const;  // of one record

 private:
  Log(FileSystem* files, const LogOptions& options, LogCallbacks callbacks);
  std::string Path(uint32_t file_id) const;
  size_t Reserved() const;   // spares that trajectories leave
  int64_t BytesMax() const;  // of all segments
  bool Fits(int64_t record_bytes) const FB_REQUIRES(mutex_);
  int64_t MoveLimit() const FB_REQUIRES(mutex_);
  bool MayUseRest(Kind kind, int64_t record_bytes) const FB_REQUIRES(mutex_);
  bool Roll(Kind kind, int64_t record_bytes) FB_REQUIRES(mutex_);
  bool AddSpareFor(int64_t record_bytes) FB_REQUIRES(mutex_);
  void Activate(std::shared_ptr<Segment> segment) FB_REQUIRES(mutex_);
  std::shared_ptr<FlushGroup> JoinGroup(int64_t bytes, int64_t sequence) FB_REQUIRES(mutex_);
  void CloseGroup(FlushGroup& group) FB_REQUIRES(mutex_);
  uint32_t CopyPayload(char* to, std::string_view payload) const;  // its checksum
  void SealSlot(LogSlot& slot) const;
  void WriteGroups(bool all);
  std::shared_ptr<FlushGroup> NextGroup();
  static Status WriteGroup(const FlushGroup& group);
  void Acknowledge(const FlushGroup& group, bool written);
  bool FailLocked(const Status& why) FB_REQUIRES(mutex_);
  void Seal(const std::shared_ptr<Segment>& segment);
  void RunFlusher();
  Result<std::shared_ptr<Segment>> NewSegment(uint32_t file_id);
  Status AddFirstSpares();
  Status AddSpare();
  Status AddSpareForNotes();
  Status AttachMemory(Segment& segment) const;
  size_t SparesWanted() const;
  bool SpareWanted() const FB_REQUIRES(mutex_);
  void DropColdMemory() FB_REQUIRES(mutex_);

  FileSystem* const files_;
  const LogOptions options_;
  const LogCallbacks callbacks_;

  Mutex maintain_mutex_;  // who prepares segments; held over writes to the disk
  mutable AdaptiveMutex mutex_;
  std::atomic<bool> out_of_spares_{false};
  AdaptiveCondVar flusher_wake_;
  std::shared_ptr<Segment> active_ FB_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Segment>> spares_ FB_GUARDED_BY(mutex_);
  std::map<uint32_t, std::shared_ptr<Segment>> segments_ FB_GUARDED_BY(mutex_);  // used ones
  std::vector<std::shared_ptr<Segment>> to_seal_ FB_GUARDED_BY(mutex_);          // kOs
  std::deque<std::shared_ptr<FlushGroup>> groups_ FB_GUARDED_BY(mutex_);         // to be written
  std::shared_ptr<FlushGroup> in_flight_ FB_GUARDED_BY(mutex_);                  // being written
  std::vector<std::shared_ptr<FlushGroup>> written_ FB_GUARDED_BY(mutex_);
  // Written, and another flusher is to tell the owner so.
  std::vector<std::shared_ptr<FlushGroup>> unacknowledged_ FB_GUARDED_BY(mutex_);
  std::deque<KeptEntry> pending_ FB_GUARDED_BY(mutex_);  // in log order
  bool flushing_ FB_GUARDED_BY(mutex_) = false;
  bool stopping_ FB_GUARDED_BY(mutex_) = false;
  int64_t next_sequence_ FB_GUARDED_BY(mutex_) = 1;
  int64_t durable_sequence_ FB_GUARDED_BY(mutex_) = 0;
  uint32_t next_number_ FB_GUARDED_BY(mutex_) = 1;
  uint32_t next_file_id_ FB_GUARDED_BY(mutex_) = 1;
  int64_t disk_bytes_ FB_GUARDED_BY(mutex_) = 0;
  int64_t reserved_bytes_ FB_GUARDED_BY(mutex_) = 0;
  int64_t flushes_ FB_GUARDED_BY(mutex_) = 0;
  Status failed_ FB_GUARDED_BY(mutex_);
  std::atomic<KeptEntry*> settled_{nullptr};  // the newest first
  std::vector<std::thread> flushers_;
};

}  // namespace forebay::buffer
