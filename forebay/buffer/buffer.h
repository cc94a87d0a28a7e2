// Buffer: the durable place between actors and the learner, and the keeper of the conservation
// ledger.
//
//   dispatched = trained + rejected (by reason) + pending + in flight, at every instant and over
//   restarts.
//
// Thread-safe. An acknowledged Append survives kill -9 (kOs) or power loss (kSync). Trajectories
// are given out in whole groups, oldest first, none older than max_staleness; a batch that was
// leased and not committed in a checkpoint is given out again, with the same content, after a
// restart.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

enum class Durability { kMemory, kOs, kSync };

struct BufferOptions {
  std::string folder;  // unused by kMemory
  Durability durability = Durability::kSync;
  int32_t group_size = 8;
  int64_t max_staleness = 4;                  // in policy versions
  int64_t segment_bytes = int64_t{64} << 20;  // less in kOs (16 MiB) and kMemory, or if few fit
  // Of segments kept in memory for readers; older ones are read from disk. kMemory has no disk:
  // Append waits above it.
  int64_t memory_bytes_max = int64_t{1} << 30;
  int64_t disk_bytes_max = int64_t{16} << 30;  // of segments on disk; Append waits above it
  int64_t record_bytes_max = int64_t{16} << 20;
  // An append dispatches its attempt itself: for users without a coordinator. Ids must still be
  // unique: one that was appended before is acknowledged again and not stored (idempotent).
  bool implied_dispatch = false;
  // Committed batches stay readable until Release; without, until the next Commit. Under a full
  // disk they go first.
  bool retain_committed = false;
};

// Why a dispatched attempt will never be trained on.
enum class RejectReason : uint8_t {
  kStale = 0,    // older than max_staleness when the learner could have taken it
  kOutcome = 1,  // an infrastructure outcome (environment, engine, grader, aborted)
  kNoLossTokens = 2,
  kLostInCrash = 3,  // in flight when the process died
  kQuarantined = 4,  // its record was corrupt at recovery
  kClosed = 5,       // its group was closed by policy (a quarantined task, the end of the run)
};
inline constexpr int kRejectReasons = 6;
std::string_view RejectReasonName(RejectReason reason);  // "stale"

struct Ledger {
  int64_t dispatched = 0, trained = 0, pending = 0, in_flight = 0;
  std::array<int64_t, kRejectReasons> rejected{};
  // Results of attempts that were no longer in flight: dropped, outside of the equation.
  int64_t late = 0;
  int64_t rejected_total() const;
  bool balanced() const { return dispatched == trained + rejected_total() + pending + in_flight; }
};

struct BufferStats {
  int64_t ready_groups = 0;    // complete, not leased
  int64_t partial_groups = 0;  // some members pending
  int64_t kept_bytes = 0;      // encoded trajectories: pending, or kept for replays
  int64_t memory_bytes = 0, disk_bytes = 0, segments = 0;
  int64_t appends = 0, flushes = 0;
  int64_t duplicates = 0;          // appends of what was there
  int64_t taken_groups = 0;        // by Take, not acknowledged
  int64_t expired_takes = 0;       // given out again
  double append_wait_seconds = 0;  // backpressure
};

using TrajectoryPtr = std::shared_ptr<const Trajectory>;

// What the learner takes one optimizer step on.
struct Batch {
  int64_t sequence = 0;         // 1, 2, ...: the optimizer step
  int64_t learner_version = 0;  // the version it was leased at
  bool replay = false;          // leased before a crash: the same content again
  // Sorted by (group_id, member): independent of the order of arrival.
  std::vector<TrajectoryPtr> trajectories;
};

struct AppendOptions {
  // For room, and for the acknowledgement when blocking. The default has passed: a Buffer then does
  // what needs no waiting (a RemoteTable takes its own deadline instead).
  TimePoint deadline{};
  float priority = 1;  // for Selector::kPriority; finite, not negative
  // The bytes must be those of this trajectory (else kInvalidArgument): for bytes that somebody may
  // change since they were looked at.
  std::optional<int64_t> trajectory_id = std::nullopt;
};

// An Encode()d trajectory where it lies.
struct TrajectoryView {
  TrajectoryId id;
  int64_t min_version = 0;
  float priority = 1;
  std::string_view encoded;
};

// Which ready groups Take gives out.
enum class Selector : uint8_t {
  kOldest = 0,    // by min_version, ties by group_id
  kUniform = 1,   // any with the same chance
  kPriority = 2,  // with a chance proportional to the group's largest priority
};

struct TakeOptions {
  int64_t groups = 1;
  int64_t learner_version = 0;  // none older than max_staleness at it
  Selector selector = Selector::kOldest;
  Duration expires_after = std::chrono::seconds(60);  // then the groups are ready again
};

// Groups that one reader holds: disjoint from every other reader's.
struct Taken {
  int64_t take_id = 0;
  std::vector<TrajectoryView> trajectories;  // by (group_id, member)
  // The views are valid as long as this lives.
  std::shared_ptr<const void> memory;
};

enum class MemberState : uint8_t { kVacant = 0, kInFlight = 1, kPending = 2 };

// One group as it is now.
struct GroupInfo {
  int64_t group_id = 0;
  int64_t batch = 0;    // the batch it is leased in; 0: none
  int64_t take_id = 0;  // 0: none
  int64_t min_version = -1;
  std::vector<MemberState> members;
};

// A member that was dispatched, is not in the buffer, and must be dispatched again after a restart
// or a rejection.
struct MissingMember {
  int64_t group_id;
  int32_t member;
  int32_t next_attempt;
  int64_t task_id;
  friend bool operator==(const MissingMember&, const MissingMember&) = default;
};

struct Recovery {
  int64_t next_trajectory_id = 1;
  int64_t next_group_id = 0;
  std::vector<MissingMember> missing;  // of all groups below next_group_id, in order
  int64_t records = 0, torn_tail_bytes = 0, quarantined_records = 0, quarantined_bytes = 0;
  int64_t replay_batches = 0;      // leased after the committed one
  std::vector<std::string> notes;  // one sentence for each thing found wrong
};

// Called on the thread that caused the event; must not block or call back into the Buffer.
struct BufferListener {
  // The member needs another attempt (not called for kClosed).
  std::function<void(const TrajectoryId&, RejectReason)> on_rejected;
  // A trajectory became durable and pending.
  std::function<void(const TrajectoryId&)> on_pending;
  // What must be logged is refused from now on (a failed sync, a full disk that did not clear): the
  // reason. ReadBatch, Lease of batches that are leased in the log, and Take go on until Close.
  std::function<void(const Status&)> on_failure;
};

class Buffer {
 public:
  // Opens or creates the log in options.folder. `committed_batch` is the last batch whose effect is
  // in the weights that the caller restored (0: none): later leases become replays, everything else
  // unconsumed is pending again. `recovery` may be null. Errors: kInvalidArgument (an option);
  // kFailedPrecondition (another process holds the folder; written with another group_size),
  // kDataLoss only if nothing can be read at all; those of the disk.
  static Result<std::unique_ptr<Buffer>> Open(const BufferOptions& options, int64_t committed_batch,
                                              BufferListener listener, Recovery* recovery);
  virtual ~Buffer() = default;

  // ---- actors' side
  // Counts an attempt as in flight and logs it. kFailedPrecondition for an id that was dispatched
  // before.
  virtual Status Dispatch(const TrajectoryId& id) = 0;
  // Ends an attempt. `done` gets OK once the trajectory is as durable as configured (on any thread
  // that writes or makes room, or on this one); infrastructure outcomes are logged and counted as
  // rejected (on_rejected). `done` may be null, and must not block or call the Buffer. Append waits
  // for room without a thread, until `deadline` (then kDeadlineExceeded, and the attempt stays in
  // flight); the caller waits neither for room nor for the device, but when segments are short it
  // may help to recycle some first (milliseconds, of the disk too). kNotFound: no such attempt in
  // flight (late; counted and dropped); with kOs and kMemory one that Reject or CloseGroup ends
  // while its bytes are being copied gets OK all the same, as if it had been ended just after, and
  // is counted as late. The same trajectory appended meanwhile (implied_dispatch) is told the same.
  // kInvalidArgument: not valid, or larger than record_bytes_max. kUnavailable: failed log, Close,
  // or Unblock.
  virtual void Append(Trajectory trajectory, TimePoint deadline,
                      std::function<void(Status)> done) = 0;
  // As Append, for bytes that Encode made; they are copied before the return. kDataLoss: their
  // beginning is not that of a trajectory (the rest is checked by whoever reads it). Bytes that
  // change during the call damage this trajectory at worst, never another.
  virtual void AppendEncoded(std::string_view encoded, const AppendOptions& options,
                             std::function<void(Status)> done) = 0;
  // Blocks until the append is acknowledged or refused: the fastest way in, because this thread
  // may do the flush itself. Errors as for Append; after kDeadlineExceeded the append may still
  // happen (with implied_dispatch, repeat it: that is safe).
  virtual Status AppendEncodedAndWait(std::string_view encoded, const AppendOptions& options) = 0;
  // Ends an attempt that left no trajectory, or closes one for good (kClosed).
  virtual Status Reject(const TrajectoryId& id, RejectReason reason) = 0;
  // Closes a group for good: its pending members and in-flight attempts are rejected as kClosed;
  // results of those attempts are late. kNotFound for a group that has neither; kFailedPrecondition
  // for one that is leased.
  virtual Status CloseGroup(int64_t group_id) = 0;

  // ---- learner's side (one learner)
  // Blocks for `groups` whole groups, none older than max_staleness at `learner_version` (older
  // ones are rejected as stale, member by member), the oldest first, ties by group_id. The lease is
  // logged durably before it is returned. Replays come first, whatever their size. A group whose
  // members went stale again and again (overdue) is waited for: slow tasks are trained on as often
  // as fast ones.
  // kDeadlineExceeded; kUnavailable after Close, Unblock or a failed log; kDataLoss: a replay
  // cannot be read; kResourceExhausted: too many open files, try again.
  virtual Result<Batch> Lease(int64_t groups, int64_t learner_version, TimePoint deadline) = 0;
  // The optimizer step of this batch is done (in memory). With kMemory there are no checkpoints: it
  // is consumed for good, and ReadBatch does not find it any more.
  virtual Status MarkTrained(int64_t batch_sequence) = 0;
  // A checkpoint whose manifest says "batches up to and including batch_sequence" is durable: their
  // trajectories are consumed for good and their segments may be recycled. Logged, not waited for:
  // after a crash Open's committed_batch decides. Idempotent.
  virtual Status Commit(int64_t batch_sequence) = 0;
  // No checkpoint before this batch is kept: the content of batches up to it may go. Idempotent.
  virtual Status Release(int64_t batch_sequence) = 0;
  // The content of a batch that was leased and not released; of its groups only those whose index i
  // in the batch has i % shards == shard (data-parallel learners: one leases, all read their part).
  // kNotFound: not leased yet, or released. kDataLoss, kResourceExhausted as for Lease.
  virtual Result<Batch> ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) = 0;

  // ---- readers without checkpoints: at least once, until acknowledged
  // Blocks for `groups` whole groups that nobody holds. kDeadlineExceeded, kUnavailable after
  // Close.
  virtual Result<Taken> Take(const TakeOptions& options, TimePoint deadline) = 0;
  // The groups are consumed for good (counted as trained). Logged, not waited for: after a crash
  // just then they are given out again. kNotFound: expired, or unknown.
  virtual Status Acknowledge(int64_t take_id) = 0;
  virtual Status GiveBack(int64_t take_id) = 0;  // ready again, at once

  // ---- operators
  // While paused, appends wait for room until their deadline; leases and takes wait.
  virtual void Pause(bool appends, bool readers) = 0;
  // Ends every wait of now (appends, leases, takes) as kUnavailable with this reason.
  virtual void Unblock(const std::string& reason) = 0;
  // Up to `limit` groups from this id on, ascending.
  virtual std::vector<GroupInfo> Inspect(int64_t from_group_id, int64_t limit) const = 0;

  virtual Ledger ledger() const = 0;
  virtual BufferStats stats() const = 0;

  // No more appends or leases; wakes every waiter; flushes. Idempotent.
  virtual void Close() = 0;
};

}  // namespace forebay::buffer
