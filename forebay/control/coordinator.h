// Coordinator: decides which episode starts when, so that everything that is started can still be
// trained on.
//
// Pure bookkeeping over the buffer's ledger; it owns no thread and never blocks. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::control {

struct CoordinatorOptions {
  uint64_t seed = 1;
  int64_t groups_per_step = 4;
  int32_t group_size = 8;
  int64_t max_staleness = 4;
  int64_t actors = 0;        // episodes played at once; 0: does not limit admission
  int64_t tasks = 0;         // cycled in shuffled epochs; 0: the task is the group's number
  int64_t attempts_max = 4;  // failures of one member of a group before its task is quarantined
};

struct CoordinatorStats {
  int64_t groups_started = 0;
  int64_t queued = 0;  // admitted members that no actor has taken yet
  // Admitted members that were not trained on when the published version was made.
  int64_t alive = 0;
  int64_t alive_max = 0;  // what pacing allows
  int64_t published_version = 0;
  int64_t replacements = 0;  // attempts beyond the first
  std::vector<int64_t> quarantined_tasks;
};

// Pacing. A group is admitted only while the episodes admitted and not trained on when the version
// that samples now was made number at most
//
//   min((max_staleness + 1) * batch, actors + kReadyBatches * batch)
//
// By Little's law a trajectory is as many versions old as there are batches admitted. The first
// term is what can be trained on in time at all. The second keeps the stock behind the actors
// small: a larger one would only age, up to the bound, and then every slow episode would be too
// old. With max_staleness = 0 this is the synchronous loop: a batch starts only when the one before
// it was published.
class Coordinator {
 public:
  // `buffer` must outlive it. `recovery` says what to dispatch again and where to go on (default: a
  // new run).
  Coordinator(const CoordinatorOptions& options, buffer::Buffer* buffer,
              const buffer::Recovery& recovery = {});

  // The next episode, logged in the buffer as dispatched; nullopt when pacing says wait (a wake
  // follows) or after Stop. Replacements come first, then the members of started groups, then a new
  // group.
  Result<std::optional<Assignment>> TryNext();

  // From the buffer's listener: the member needs another attempt. After a fault of the task that is
  // a new sample, with another seed. kStale is no fault: the same seed plays again, or else long
  // episodes would be traded for short ones until none is left in the data.
  //
  // Quarantine. A task is quarantined, and its group closed, once one member of the group has
  // failed `attempts_max` times. The members' failures are not added up: when a server or an
  // environment's process dies, every member in flight fails at once, through no fault of their
  // task. A task that always fails costs at most attempts_max * group_size attempts.
  void OnRejected(const TrajectoryId& id, buffer::RejectReason reason);
  // `version` now samples in the engine; `trained` trajectories had been trained on when it was
  // made (the ledger's count; it never falls).
  void OnPublished(int64_t version, int64_t trained);
  // Nothing is admitted any more.
  void Stop();

  // Called (on any thread, no lock held) when TryNext may succeed again. Set before use.
  void SetWake(std::function<void()> wake);

  CoordinatorStats stats() const;

  // What outlives the process, as JSON for the checkpoint: quarantined tasks and the faults of
  // groups. A resumed run goes on counting where this one stood at the checkpoint.
  std::string SaveState() const;
  // What SaveState gave, or "{}". Call before the first TryNext. kDataLoss for anything else:
  // nothing is restored then.
  Status RestoreState(std::string_view json);

  // Which task group `group_id` plays: pure.
  static int64_t TaskOf(const CoordinatorOptions& options, int64_t group_id);

 private:
  struct Member {
    int64_t group_id;
    int32_t member;
    int32_t attempt;
    int64_t task_id;
  };
  // Of one group: how often each member failed. Members that did not are left out.
  using Faults = std::map<int32_t, uint64_t>;

  // Old groups no longer fail: a bounded memory of faults is enough.
  static constexpr size_t kFaultGroupsMax = 4096;

  int64_t AliveMax() const;
  bool Admits() const FB_REQUIRES(mutex_);
  void StartGroup() FB_REQUIRES(mutex_);
  uint64_t SeedOf(const Member& member) const FB_REQUIRES(mutex_);

  const CoordinatorOptions options_;
  buffer::Buffer* const buffer_;
  mutable Mutex mutex_;
  std::deque<Member> replacements_ FB_GUARDED_BY(mutex_);
  std::deque<Member> queue_ FB_GUARDED_BY(mutex_);
  // By group_id, the newest groups only.
  std::map<int64_t, Faults> faults_ FB_GUARDED_BY(mutex_);
  std::set<int64_t> closed_groups_ FB_GUARDED_BY(mutex_);
  std::set<int64_t> quarantined_ FB_GUARDED_BY(mutex_);  // tasks
  int64_t next_trajectory_id_ FB_GUARDED_BY(mutex_);
  int64_t next_group_id_ FB_GUARDED_BY(mutex_);
  int64_t admitted_ FB_GUARDED_BY(mutex_);  // members of started and not closed groups, all time
  int64_t groups_started_ FB_GUARDED_BY(mutex_) = 0;
  int64_t published_version_ FB_GUARDED_BY(mutex_) = 0;
  // Of `admitted_`, when the published version was made.
  int64_t trained_ FB_GUARDED_BY(mutex_) = 0;
  int64_t replacement_count_ FB_GUARDED_BY(mutex_) = 0;
  bool stopped_ FB_GUARDED_BY(mutex_) = false;
  std::function<void()> wake_;
};

}  // namespace forebay::control
