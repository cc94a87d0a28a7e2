// LogReader: what is in the log of a buffer, for tools: of a live run or after the fact.
//
// It takes no lock and changes nothing, and it believes nothing: a folder may be damaged, hostile,
// or written to meanwhile. What cannot be read is named in notes() or by Verify; the rest is given.
// Of a live log each call sees what was written when it read each segment: a segment that was
// recycled meanwhile is left out, and the newest records may not be durable yet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

struct RecordHeader;
struct ScannedRecord;

// What a record says.
enum class LogEvent : uint8_t {
  kDispatch = 0,
  kTrajectory = 1,
  kReject = 2,
  kCloseGroup = 3,
  kLease = 4,
  kCommit = 5,
  kRelease = 6,
  kConsume = 7,  // a reader acknowledged these: trained, without a batch
};
inline constexpr int kLogEvents = 8;
std::string_view LogEventName(LogEvent event);  // "close_group"

struct LogRecord {
  LogEvent event = LogEvent::kDispatch;
  int64_t sequence = 0;
  uint32_t segment = 0;
  int64_t offset = 0, bytes = 0;  // in its segment, header and padding included
  TrajectoryId id;                // kDispatch, kTrajectory, kReject; kCloseGroup: its group_id
  RejectReason reason = RejectReason::kStale;  // kReject
  int64_t min_version = -1;                    // kTrajectory
  float priority = 0;                          // kTrajectory
  bool moved = false;  // kTrajectory: a copy of an older record, whose segment was to be freed
  int64_t batch = 0;   // kLease, kRelease; kCommit: up to this one
  int64_t learner_version = 0;          // kLease
  std::vector<int64_t> trajectory_ids;  // kLease, kCommit, kConsume
  int64_t payload_bytes = 0;
  // kTrajectory, unless the filter left it out: as Encode made it, valid during the call.
  std::string_view encoded;
};

struct LogFilter {
  int64_t from_sequence = 0;
  std::array<bool, kLogEvents> events = {true, true, true, true, true, true, true, true};
  // Without: `encoded` is empty, and of sealed segments little more than the index is read.
  bool payloads = true;
};

struct SegmentInfo {
  enum class State : uint8_t {
    kFree = 0,    // not in use, kept for the next records
    kLive = 1,    // no index yet: being written, or left so by a crash
    kSealed = 2,  // complete, with an index
    kDamaged = 3  // see `problem`
  };
  std::string file;  // its name in the folder
  State state = State::kFree;
  uint32_t number = 0;  // the order in the log
  int64_t bytes = 0;    // of the file
  int64_t data_bytes = 0;
  int64_t first_sequence = 0, last_sequence = 0;  // 0: no record
  int32_t group_size = 0;
  std::array<int64_t, kLogEvents> records{};  // by event
  int64_t capacity = 0;                       // as its header says
  bool foreign = false;                       // kDamaged: whole, but of a build with another format
  std::string problem;
  int64_t records_total() const;
};
std::string_view SegmentStateName(SegmentInfo::State state);  // "sealed"

// A part of the folder that is not what it should be.
struct LogDamage {
  std::string file;
  uint32_t segment = 0;            // 0: not of a segment, or of one whose number is lost
  int64_t offset = 0, bytes = 0;   // 0 bytes: not a range
  int64_t records = 0;             // lost, at least
  std::vector<TrajectoryId> lost;  // trajectories among them, as far as it can still be read
  std::string what;
  // Nothing acknowledged is lost: a write that a crash cut, or what is kept twice.
  bool harmless = false;
};

struct VerifyTotals {
  int64_t segments = 0, records = 0, trajectories = 0, bytes = 0;
  int64_t damaged = 0, harmless = 0;  // LogDamage
};

// The table of the buffer as the log tells it.
struct LogState {
  struct LoggedBatch {
    int64_t sequence = 0, learner_version = 0;
    int64_t groups = 0;
    bool committed = false;  // and its content is retained
  };
  int64_t sequence = 0;  // the last record that it has the effect of
  int32_t group_size = 0;
  Ledger ledger;
  int64_t ready_groups = 0, partial_groups = 0;
  int64_t next_batch = 1, committed_batch = 0, released_batch = 0;
  std::vector<LoggedBatch> batches;  // leased or retained ones, ascending
};

// What became of a trajectory whose record is in the log.
struct Fate {
  enum class Kind : uint8_t {
    kPending = 0,   // not leased
    kLeased = 1,    // in a batch that no checkpoint holds yet
    kTrained = 2,   // in a committed batch, or acknowledged by a reader
    kRejected = 3,  // with `reason`
    kUnknown = 4    // not pending any more; the record that said why was recycled
  };
  Kind kind = Kind::kUnknown;
  RejectReason reason = RejectReason::kStale;
  int64_t batch = 0;  // of a lease or commit; 0: none, or not known
  friend bool operator==(const Fate&, const Fate&) = default;
};
std::string_view FateName(Fate::Kind kind);  // "pending"

// Not thread-safe. Holds one segment in memory at a time, the table while it is read, and once
// LoadFates or ReadBatch was called 32 bytes a trajectory.
class LogReader {
 public:
  // `folder`: of a buffer, or a run directory that has one. kNotFound: there is no log.
  static Result<std::unique_ptr<LogReader>> Open(const std::string& folder);
  ~LogReader();
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  const std::string& folder() const { return folder_; }
  // In log order; the free ones last. Reads the indexes, and segments that have none.
  const std::vector<SegmentInfo>& segments();
  // Looks again: what was written, sealed and recycled since.
  Status Refresh();

  // Calls `visit` for each matching record in log order, until it returns false.
  Status ForEach(const LogFilter& filter, const std::function<bool(const LogRecord&)>& visit);
  // The sequence of the n-th newest matching record, or of the oldest if there are fewer; 0: none.
  Result<int64_t> NthNewest(int64_t n, const LogFilter& filter);
  // The records after `sequence` that are complete now, at little cost: for following a live log.
  Status Follow(int64_t sequence, const LogFilter& filter,
                const std::function<bool(const LogRecord&)>& visit);

  // Looks at every byte that is in use, at every index and at the state files. OK when it could
  // look; what it found is in the calls.
  Status Verify(const std::function<void(const LogDamage&)>& found, VerifyTotals* totals);

  // From the state files and the records after them. kDataLoss: neither a state file nor a log from
  // its first record on can be read.
  Result<LogState> ReadState();
  // For FateOf. Without a readable state the records alone say it.
  Status LoadFates();
  // kUnknown for a trajectory whose record is not there.
  Fate FateOf(int64_t trajectory_id) const;
  // Records are copied to newer segments: whether this is the newest one of its trajectory.
  bool IsNewest(const LogRecord& trajectory) const;
  // The content of a batch, from its newest lease and the trajectories' records, sorted by
  // (group_id, member). kNotFound: it was never leased, or not all of it is in the log any more.
  // kDataLoss: what is there of it is damaged. `replay` is not set.
  Result<Batch> ReadBatch(int64_t batch_sequence);

  // What could not be read since the last call.
  std::vector<std::string> TakeNotes();

 private:
  struct Place {
    int64_t trajectory_id = 0;
    uint32_t segment = 0;
    uint32_t offset_64 = 0;
  };
  using Visit = std::function<bool(const LogRecord&)>;
  using VisitScanned = std::function<bool(const ScannedRecord&, uint32_t segment)>;
  using Found = std::function<void(const LogDamage&)>;

  explicit LogReader(std::string folder) : folder_(std::move(folder)) {}
  static std::optional<LogEvent> EventOf(const RecordHeader& header);
  static bool Matches(const RecordHeader& header, const LogFilter& filter);
  std::optional<LogRecord> ToRecord(const ScannedRecord& scanned, uint32_t segment);
  void Note(std::string note);
  std::string Path(const SegmentInfo& segment) const { return folder_ + "/" + segment.file; }
  bool EndsBefore(size_t segment, int64_t sequence) const;
  SegmentInfo Look(const std::string& name) const;
  void LookInside(SegmentInfo& info);
  Result<std::string> ReadSegment(const SegmentInfo& segment);
  void ForEachScanned(const LogFilter& filter, const VisitScanned& visit);
  bool VisitSegment(const SegmentInfo& segment, const LogFilter& filter, const VisitScanned& visit);
  std::optional<bool> VisitIndexed(const SegmentInfo& segment, const LogFilter& filter,
                                   const VisitScanned& visit);
  void VerifySegment(const SegmentInfo& segment, const Found& found, VerifyTotals* totals);
  void VerifyState(const Found& found);
  // The table, the sequence up to which, and what is pending in it without a record.
  struct Replayed;
  Result<std::unique_ptr<Replayed>> ReplayLog();
  Status Locate();
  const Place* PlaceOf(int64_t trajectory_id) const;
  Result<std::string> ReadPayload(const Place& place, int64_t trajectory_id);

  const std::string folder_;
  std::vector<SegmentInfo> segments_;
  bool described_ = false;  // segments_ have been looked into
  std::vector<std::string> notes_;
  bool located_ = false;
  std::vector<Place> places_;        // the newest of each trajectory, by its id
  std::vector<Fate> fates_;          // of places_; empty before LoadFates
  std::map<int64_t, Place> leases_;  // the newest lease of each batch
  // Where Follow stopped in the newest segment.
  uint32_t followed_segment_ = 0;
  int64_t followed_offset_ = 0;
};

}  // namespace forebay::buffer
