// Core: the Buffer over a Table and, unless it is in memory only, a LogWriter.
//
// Two threads of its own: the writer's (records, acknowledgements) and a keeper that ends appends
// which waited for room until their deadline. One mutex guards the table; no callback runs with it
// held.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/core/mirror.h"
#include "forebay/buffer/core/recover.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/writer.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

class Core : public Buffer {
 public:
  // As Buffer::Open, over any file system (owned by the caller, outliving the Core). Manual: no
  // threads; Pump writes, and deadlines end at the next Pump (simulations).
  static Result<std::unique_ptr<Core>> Open(FileSystem* files, const BufferOptions& options,
                                            int64_t committed_batch, BufferListener listener,
                                            Recovery* recovery, bool manual = false);
  ~Core() override;
  // Keeps the file system that it was opened over.
  void Own(std::unique_ptr<FileSystem> files) { files_ = std::move(files); }

  Status Dispatch(const TrajectoryId& id) override;
  void Append(Trajectory trajectory, TimePoint deadline, std::function<void(Status)> done) override;
  Status Reject(const TrajectoryId& id, RejectReason reason) override;
  Status CloseGroup(int64_t group_id) override;
  Result<Batch> Lease(int64_t groups, int64_t learner_version, TimePoint deadline) override;
  Status MarkTrained(int64_t batch_sequence) override;
  Status Commit(int64_t batch_sequence) override;
  Ledger ledger() const override;
  BufferStats stats() const override;
  void Close() override;

  void Pump();
  // The state now, for inspection.
  Table table() const {
    MutexLock lock(mutex_);
    return table_;
  }

 private:
  using Done = std::function<void(Status)>;
  // Callbacks that were decided under the lock and run after it.
  using Calls = std::vector<std::function<void()>>;
  struct Waiting {
    TrajectoryId id;
    TrajectoryPtr trajectory;
    std::string encoded;
    int64_t min_version = 0, memory_bytes = 0;
    TimePoint since, deadline;
    Done done;
  };

  Core(const BufferOptions& options, BufferListener listener, Table table, bool manual);
  static Status CheckOptions(const BufferOptions& options);
  Status StartLog(FileSystem* files, Recovered recovered);

  Status RefusalLocked() const FB_REQUIRES(mutex_);
  bool CanLease(int64_t groups) const FB_REQUIRES(mutex_);
  Status LeaseTimedOut(int64_t groups) const FB_REQUIRES(mutex_);
  void EndWithoutTraining(const TrajectoryId& id, RejectReason reason, const Done& done);
  void NoteRejected(const std::vector<TrajectoryId>& ids, RejectReason reason, Calls& calls)
      FB_REQUIRES(mutex_);
  void Admit(Calls& calls) FB_REQUIRES(mutex_);
  void Write(Waiting waiting) FB_REQUIRES(mutex_);
  void OnWritten(const std::shared_ptr<Waiting>& waiting, const Status& status);
  void Finish(Waiting& waiting, PendingInfo info, Calls& calls) FB_REQUIRES(mutex_);
  void OnLeaseWritten(int64_t sequence, const Status& status);
  void OnLogFailure(const Status& why);
  void OnRoom();
  void FailWaiting(const Status& why, Calls& calls) FB_REQUIRES(mutex_);
  void SweepDeadlines(TimePoint now);
  void Keep();
  void Submit(RecordType type, std::string payload) FB_REQUIRES(mutex_);
  std::string RoomText() const FB_REQUIRES(mutex_);
  static void Run(Calls& calls);

  const BufferOptions options_;
  const BufferListener listener_;
  const bool manual_;
  std::unique_ptr<FileSystem> files_;
  std::unique_ptr<FolderLock> folder_lock_;

  mutable Mutex mutex_;
  CondVar learner_;  // Lease waits here
  CondVar keeper_wake_;
  Table table_ FB_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ FB_GUARDED_BY(mutex_);  // for room
  std::set<int64_t> appending_ FB_GUARDED_BY(mutex_);  // waiting or being written
  int64_t writing_memory_ FB_GUARDED_BY(mutex_) = 0;   // of trajectories being written
  int64_t writing_disk_ FB_GUARDED_BY(mutex_) = 0;
  bool disk_blocked_ FB_GUARDED_BY(mutex_) = false;  // until segments are recycled
  int64_t leasing_ FB_GUARDED_BY(mutex_) = 0;        // the batch whose lease is being written
  Status lease_error_ FB_GUARDED_BY(mutex_);
  Status failed_ FB_GUARDED_BY(mutex_);
  bool closed_ FB_GUARDED_BY(mutex_) = false;
  bool stop_keeper_ FB_GUARDED_BY(mutex_) = false;
  int64_t appends_ FB_GUARDED_BY(mutex_) = 0;
  double append_wait_seconds_ FB_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<TableMirror> mirror_;  // the writer's
  std::unique_ptr<LogWriter> writer_;    // null: in memory only
  std::thread keeper_;
};

}  // namespace forebay::buffer
