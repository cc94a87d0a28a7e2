// Core: the Buffer over a Table and a Log.
//
// One mutex guards the table, and what is reserved in the log under it is in the order of the
// table's changes. No callback runs with it held, but one may run with recycle_mutex_ held, so none
// may call the Buffer. Locks are taken in the order recycle_mutex_, mutex_, Log's maintain_mutex_,
// Log's mutex_. A keeper thread prepares and recycles segments, writes the state files and ends
// waits whose deadline has come.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/recover.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

class Core : public Buffer {
 public:
  // As Buffer::Open, over any file system (owned by the caller, outliving the Core). Manual: no
  // threads; Pump flushes and maintains, and deadlines end at the next Pump (simulations).
  static Result<std::unique_ptr<Core>> Open(FileSystem* files, const BufferOptions& options,
                                            int64_t committed_batch, BufferListener listener,
                                            Recovery* recovery, bool manual = false);
  ~Core() override;
  // Keeps the file system that it was opened over.
  void Own(std::unique_ptr<FileSystem> files) { owned_files_ = std::move(files); }

  Status Dispatch(const TrajectoryId& id) override;
  void Append(Trajectory trajectory, TimePoint deadline, std::function<void(Status)> done) override;
  void AppendEncoded(std::string_view encoded, const AppendOptions& options,
                     std::function<void(Status)> done) override;
  Status AppendEncodedAndWait(std::string_view encoded, const AppendOptions& options) override;
  Status Reject(const TrajectoryId& id, RejectReason reason) override;
  Status CloseGroup(int64_t group_id) override;
  Result<Batch> Lease(int64_t groups, int64_t learner_version, TimePoint deadline) override;
  Status MarkTrained(int64_t batch_sequence) override;
  Status Commit(int64_t batch_sequence) override;
  Status Release(int64_t batch_sequence) override;
  Result<Batch> ReadBatch(int64_t batch_sequence, int32_t shard, int32_t shards) override;
  Result<Taken> Take(const TakeOptions& options, TimePoint deadline) override;
  Status Acknowledge(int64_t take_id) override;
  Status GiveBack(int64_t take_id) override;
  void Pause(bool appends, bool readers) override;
  void Unblock(const std::string& reason) override;
  std::vector<GroupInfo> Inspect(int64_t from_group_id, int64_t limit) const override;
  Ledger ledger() const override;
  BufferStats stats() const override;
  void Close() override;

  void Pump();
  // The state now, for inspection.
  Table table() const {
    const Locked lock(*this);
    return table_;
  }

 private:
  using Done = std::function<void(Status)>;
  // Callbacks that were decided under the lock and run after it.
  using Calls = std::vector<std::function<void()>>;
  // An append that waits for room.
  struct Waiting {
    TrajectorySummary summary;
    float priority = 1;
    uint32_t place = 0;  // see LogEntry
    std::string encoded;
    TimePoint since, deadline;
    Done done;
  };
  // mutex_, with the table up to date: appends of kOs and kMemory are acknowledged without the lock
  // and become pending here. Runs what that causes when it is unlocked.
  class FB_THREAD_ANNOTATION(scoped_lockable) Locked {
   public:
    explicit Locked(const Core& core) FB_THREAD_ANNOTATION(acquire_capability(core.mutex_));
    ~Locked() FB_THREAD_ANNOTATION(release_capability());
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    const Core& core_;
    Calls calls_;
  };
  enum class Place { kReserved, kWaits, kEnded };
  // Where trajectories lie, with the segments held so that they stay.
  struct Pinned {
    std::vector<Placed> placed;
    std::map<uint32_t, std::shared_ptr<Segment>> segments;
    Status error;  // why one cannot be opened now
  };
  struct Views;
  // A batch that is leased, to be read and logged.
  struct Leasing {
    int64_t sequence = 0;
    bool fresh = false;  // else a replay, which is in the log
    Pinned pinned;
  };

  Core(const BufferOptions& options, BufferListener listener, Table table, bool manual);
  static Status CheckOptions(const BufferOptions& options);
  Status StartLog(FileSystem* files, Recovered recovered);
  bool logged() const { return options_.durability != Durability::kMemory; }

  Status RefusalLocked() const FB_REQUIRES(mutex_);  // of what must be logged
  Status ClosedLocked() const FB_REQUIRES(mutex_);
  bool Note(RecordHeader header, std::string_view payload = {}, Done done = {}) FB_REQUIRES(mutex_);
  void EndWithoutTraining(const TrajectoryId& id, RejectReason reason, const Done& done);
  Status EndAttempt(const TrajectoryId& id, RejectReason reason, Calls& calls) FB_REQUIRES(mutex_);
  void NoteRejected(const std::vector<TrajectoryId>& ids, RejectReason reason, Calls& calls)
      FB_REQUIRES(mutex_);

  // ---- core_append.cc
  Place StartAppend(std::string_view encoded, const AppendOptions& options, Done& done,
                    LogSlot* slot);
  Status CheckAppend(const TrajectorySummary& summary, bool* duplicate, uint32_t* place, Done& done)
      FB_REQUIRES(mutex_);
  bool TryReserve(const TrajectorySummary& summary, float priority, size_t bytes, uint32_t place,
                  const Done& done, LogSlot* slot) FB_REQUIRES(mutex_);
  void FinishAppend(const LogSlot& slot);
  void ApplySettled(Calls& calls) FB_REQUIRES(mutex_);
  void Admit(Calls& calls);
  void Publish();
  Status SettleEntry(const LogEntry& entry, Calls& calls) FB_REQUIRES(mutex_);
  void TellTwins(int64_t trajectory_id, const Status& status, Calls& calls) FB_REQUIRES(mutex_);
  void EndWaiting(Waiting& waiting, const Status& why, Calls& calls) FB_REQUIRES(mutex_);
  void FailWaiting(const Status& why, Calls& calls) FB_REQUIRES(mutex_);
  void SweepDeadlines(TimePoint now);
  std::string RoomText() const FB_REQUIRES(mutex_);

  // ---- core_readers.cc
  bool CanLease(int64_t groups) const FB_REQUIRES(mutex_);
  Status LeaseTimedOut(int64_t groups) const FB_REQUIRES(mutex_);
  void WakeReaders() FB_REQUIRES(mutex_);
  Status WaitForGroups(int64_t groups, TimePoint deadline, uint64_t unblocked) FB_REQUIRES(mutex_);
  Pinned Pin(std::span<const int64_t> groups) const FB_REQUIRES(mutex_);
  void AppendIds(std::span<const int64_t> groups, std::vector<int64_t>* ids) const
      FB_REQUIRES(mutex_);
  Result<Taken> View(const Pinned& pinned, std::vector<TrajectoryId>* damaged) const;
  Result<std::vector<TrajectoryPtr>> Load(const Pinned& pinned,
                                          std::vector<TrajectoryId>* damaged) const;
  void Quarantine(const std::vector<TrajectoryId>& ids, Calls& calls) FB_REQUIRES(mutex_);
  std::optional<Batch> HandOut() FB_REQUIRES(mutex_);
  std::optional<Leasing> StartLease(int64_t groups, int64_t learner_version, Calls& calls)
      FB_REQUIRES(mutex_);
  Status WaitForLease(int64_t groups, TimePoint deadline, uint64_t unblocked) FB_REQUIRES(mutex_);
  Status ReadLeased(const Leasing& leasing);
  void LogLease(const BatchState& batch) FB_REQUIRES(mutex_);
  void EndLeasing() FB_REQUIRES(mutex_);
  void OnLeaseWritten(int64_t sequence, const Status& status);

  // ---- core_keeper.cc
  void OnLogFailure();
  void TellFailure();
  void Signal();
  void Keep();
  void Maintain();
  bool StateDue() FB_REQUIRES(mutex_, recycle_mutex_);
  std::vector<uint32_t> DeadSegments() const FB_REQUIRES(mutex_);
  Status WriteState() FB_REQUIRES(recycle_mutex_);
  void RecycleNow();
  void HelpNotes();
  void Recycle() FB_REQUIRES(recycle_mutex_);
  void SealMapped();
  void GiveUpOnTheDisk(const Status& prepared);
  void WriteStateTwice() FB_REQUIRES(recycle_mutex_);
  bool NeedsRoom() const;
  bool MakeRoom() FB_REQUIRES(recycle_mutex_);
  void Move(uint32_t number) FB_REQUIRES(recycle_mutex_);
  static void Run(Calls& calls);

  const BufferOptions options_;
  const BufferListener listener_;
  const bool manual_;
  std::unique_ptr<FileSystem> owned_files_;
  std::unique_ptr<FolderLock> folder_lock_;

  mutable AdaptiveMutex mutex_;
  AdaptiveCondVar readers_;  // Lease and Take wait here
  Table table_ FB_GUARDED_BY(mutex_);
  Rng rng_ FB_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ FB_GUARDED_BY(mutex_);  // for room
  // Who else appended a trajectory that waits or is being written.
  std::unordered_map<int64_t, std::vector<Done>> twins_ FB_GUARDED_BY(mutex_);
  // Somebody waits for what is settled: whoever settles applies it. Set with mutex_ held.
  std::atomic<bool> expected_;
  std::vector<LogEntry> settled_ FB_GUARDED_BY(mutex_);  // ApplySettled's
  // Lease: the batch that is being read or logged, and what was read for it.
  int64_t leasing_ FB_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::vector<TrajectoryPtr>> loaded_ FB_GUARDED_BY(mutex_);
  Status lease_error_ FB_GUARDED_BY(mutex_);
  // The least that a waiting reader needs; 0: none.
  int64_t groups_wanted_ FB_GUARDED_BY(mutex_) = 0;
  int64_t readers_waiting_ FB_GUARDED_BY(mutex_) = 0;  // for groups
  bool appends_paused_ FB_GUARDED_BY(mutex_) = false, readers_paused_ FB_GUARDED_BY(mutex_) = false;
  uint64_t unblocked_ FB_GUARDED_BY(mutex_) = 0;  // times
  std::string unblock_reason_ FB_GUARDED_BY(mutex_);
  Status failed_ FB_GUARDED_BY(mutex_);
  bool closed_ FB_GUARDED_BY(mutex_) = false;
  int64_t appends_ FB_GUARDED_BY(mutex_) = 0, duplicates_ FB_GUARDED_BY(mutex_) = 0;
  int64_t expired_takes_ FB_GUARDED_BY(mutex_) = 0;
  TimePoint keeper_sleeps_until_ FB_GUARDED_BY(mutex_){};
  double append_wait_seconds_ FB_GUARDED_BY(mutex_) = 0;

  TimePoint bad_since_{};  // the keeper's: the disk has failed those who wait since then
  Status disk_error_ FB_GUARDED_BY(mutex_);   // why no segment can be prepared now
  Status state_error_ FB_GUARDED_BY(mutex_);  // why the last state could not be written

  std::atomic<bool> failure_untold_{false};
  // Set when a segment was rolled: whoever did it recycles others, because the keeper may not get
  // a processor for milliseconds when many threads append.
  std::atomic<bool> recycle_due_{false};
  AdaptiveMutex recycle_mutex_;
  std::unique_ptr<StateFiles> states_;  // used under recycle_mutex_
  // Of the log when the last state was written, and of that state.
  int64_t state_at_bytes_ FB_GUARDED_BY(recycle_mutex_) = 0;
  int64_t state_bytes_ FB_GUARDED_BY(recycle_mutex_) = 0;
  std::vector<uint32_t> dead_at_last_state_ FB_GUARDED_BY(recycle_mutex_);
  std::atomic<uint32_t> work_{0};
  std::atomic<bool> stop_keeper_{false};
  std::unique_ptr<Log> log_;
  std::thread keeper_;
};

}  // namespace forebay::buffer
