// Fleet: the requests and the servers of an HttpEngine, on its loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/publisher.h"
#include "forebay/rollout/external/server.h"
#include "forebay/rollout/external/wire.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout::external {

using Done = std::function<void(Result<GenerateResult>)>;

// What requests and publications get that a shutdown ends, or that come after it.
inline Status HasShutDown() { return Unavailable("the engine has been shut down"); }

// Each server has a coroutine that makes it ready, looks after it, and gives it new weights. All
// calls on the loop but the constructor and what says otherwise. Stop before destruction.
class Fleet {
 public:
  // Where the first weights are.
  struct Folders {
    std::string merged;         // all of them, if the servers reload from a folder
    std::string base, adapter;  // or what is under an adapter, and the adapter
  };
  // `initial`: its version, names and shapes, digest. Reads all of it.
  Fleet(Loop& loop, HttpClient& client, WorkerPool& workers, const HttpEngineOptions& options,
        const weights::Snapshot& initial, Folders folders);

  void Start();
  // Fails everything with kUnavailable. Only weights that are being written are told of later.
  void Stop();
  void Generate(uint64_t id, GenerateRequest request, Done done);
  void Cancel(uint64_t id);
  // `adapter`: null, or what the snapshot adds to the base model.
  void Publish(std::shared_ptr<const weights::Snapshot> snapshot, AdapterWriter adapter,
               std::function<void(Status)> taken);

  // Any thread. Waits until every server is ready, or one says that it never will be.
  Status AwaitStart(TimePoint deadline);
  int64_t policy_version() const { return policy_version_; }
  std::string digest() const;
  EngineStats stats() const;

 private:
  struct Member {
    std::unique_ptr<Server> server;
    std::unique_ptr<Publisher> publisher;  // if it takes weights over its socket
    bool ready = false;                    // gets requests
    bool usable = true;                    // ready, or it may be in a moment
    bool draining = false;                 // gets none until it has new weights
    int64_t active = 0;                    // requests on it
    int64_t version = -1;                  // of its weights; -1: unknown
    std::string adapter;                   // the one that samples, by its name there
    bool loads_adapters = true;            // as far as is known
    bool has_base = false;                 // the weights that adapters are loaded over
    int64_t version_max = -1;              // that it may have by now: it is being given
    int64_t failures = 0;                  // answers in a row that were 500 or garbage
    int64_t health_failures = 0;           // checks in a row, likewise
    bool processed = false;                // ServerFacts
    std::optional<std::string> label;      // of its weights at first, if we never reload
    Status trouble;                        // why it is not ready
    std::optional<OneShot<bool>> wake;
    uint64_t wake_timer = 0;
    Task<void> task;
  };
  struct Waiting {
    uint64_t id = 0;
    GenerateRequest request;
    Done done;
    TimePoint since;
    uint64_t timer = 0;  // its deadline; 0: none
  };
  struct Running {
    GenerateRequest request;
    Done done;
    TimePoint since, sent;
    int64_t version = 0;
    Member* member = nullptr;
    Task<void> task;
  };
  struct Target {
    int64_t version = 0;
    std::string digest;
    std::string folder, adapter_folder;                 // "": not written
    std::shared_ptr<const weights::Snapshot> snapshot;  // if a folder may have to be written yet
    std::shared_ptr<const Offering> offering;           // in place of a folder
    std::function<void(Status)> taken;                  // null: told already
  };
  struct Next {
    std::shared_ptr<const weights::Snapshot> snapshot;
    AdapterWriter adapter;
    std::function<void(Status)> taken;
  };

  // fleet.cc: requests.
  void Dispatch();
  void FailWaiting(const Status& status);
  void Begin(Waiting waiting, Member& member);
  Task<void> Serve(uint64_t id, Member* member);
  Result<GenerateResult> Judge(const Running& running, Result<WireAnswer> answer);
  void End(uint64_t id, Result<GenerateResult> result);
  void DropRequests(Member& member, const Status& status);
  Status CheckVersions(const Running& running, const WireAnswer& answer) const;
  Status NoServer() const;

  // fleet_servers.cc: servers.
  Task<void> Supervise(Member* member);
  Task<Status> Prepare(Member* member);
  Task<void> WaitFor(Member* member, Duration at_most);
  void Wake(Member& member);
  void Suspect(Member& member, const Status& why);
  void Lose(Member& member, const Status& why);
  // Awaits what the server is asked at length, and asks beside it whether it still answers. When it
  // does not, the work is dropped, the server lost, and its requests fail: kUnavailable.
  Task<Status> WhileItAnswers(Member* member, Task<Status> work);
  Task<void> AwaitSilence(Member* member, std::function<void(Status)> silent);
  static bool Passes(const Status& status, int64_t* in_a_row);
  void TellStart();
  void Log(const std::string& sentence) const;

  // fleet_weights.cc: weights.
  Status CheckCoverage(const weights::Snapshot& snapshot) const;
  void PublishNext();
  std::string MergedFolder(int64_t version) const;
  Task<void> Write(Next next);
  void Settle();
  Task<Status> PrepareReload(Member* member, ServerFacts facts);
  Task<Status> PreparePublisher(Member* member);
  Status CheckListedOnce(Member& member) const;
  Task<Status> Refresh(Member* member);
  Task<Status> Give(Member* member);
  Task<Status> LoadAdapter(Member* member);
  Task<Status> Reload(Member* member, bool base);
  Task<Status> TakeTurn(Member* member, TimePoint* began);
  Task<Status> WriteMerged();

  Loop& loop_;
  WorkerPool& workers_;
  const HttpEngineOptions& options_;
  const bool gives_;  // weights over sockets, while requests go on
  const bool gives_adapters_;
  const std::string base_folder_;
  const std::unique_ptr<Wire> wire_;
  std::map<std::string, xla::Shape> names_;  // of the model's tensors
  bool stopped_ = false;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::pair<int64_t, uint64_t>, Waiting> waiting_;  // by priority and id
  std::map<uint64_t, int64_t> priority_of_;                  // of those waiting
  std::map<uint64_t, Running> running_;
  Target target_;
  std::optional<Next> next_;
  std::optional<Task<void>> writing_;
  bool write_done_ = true;
  std::vector<std::string> folders_;   // of earlier versions
  std::vector<std::string> adapters_;  // likewise; the last one may still be read
  int64_t adapters_loaded_ = 0;
  Member* reloading_ = nullptr;
  const int64_t first_version_;
  const int64_t started_us_;  // tells names of ours from those of a run before

  std::atomic<int64_t> policy_version_;
  mutable Mutex mutex_;
  CondVar started_;  // may wait: whoever makes the engine, on another thread
  int64_t ready_at_start_ FB_GUARDED_BY(mutex_) = 0;
  Status start_error_ FB_GUARDED_BY(mutex_);
  Status start_trouble_ FB_GUARDED_BY(mutex_);
  std::string digest_ FB_GUARDED_BY(mutex_);
  EngineStats stats_ FB_GUARDED_BY(mutex_);
};

}  // namespace forebay::rollout::external
