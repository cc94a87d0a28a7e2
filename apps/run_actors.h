// RunActors: the acting half of a run: a loop thread with environments, actors and evaluation on
// it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/harness_setup.h"
#include "apps/model_setup.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/config.h"
#include "forebay/control/coordinator.h"
#include "forebay/control/run_directory.h"
#include "forebay/env/cancellable.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"

namespace forebay::apps {

struct EvalResult {
  int64_t episodes = 0;                      // that count (Trains(outcome))
  int64_t failed = 0;                        // infrastructure outcomes
  double reward = 0;                         // mean
  std::map<std::string, double> components;  // means
  double seconds = 0;
};

// Owns the loop's thread; the calls below block and come from one other thread. The coordinator is
// told of rejections on the loop, as it requires.
class RunActors {
 public:
  struct Deps {
    const control::Config* config;
    const LoadedModel* model;
    rollout::Engine* engine;
    control::RunDirectory* run;
    // Called once, on the loop, when acting cannot go on: the reason. Must not block.
    std::function<void(const Status&)> on_failure;
  };
  // Starts the thread and the environment (or, for a harness, its endpoint), and checks that one
  // episode can begin.
  static Result<std::unique_ptr<RunActors>> Create(const Deps& deps);
  ~RunActors();  // drains

  // Listener for the buffer; valid before Start.
  buffer::BufferListener listener();

  // Plays config.eval on the current weights.
  EvalResult Evaluate();
  // Any thread: the run ends, and nothing of it that is under way is wanted. Nobody waits for an
  // environment or tool any more, no episode is begun, and Drain is quick: episodes get
  // kAbortDrain, environments kAbortGrace, then they are killed.
  void Abort();

  // Any thread: how late the timers of the actors' loop ran since the last call (99th percentile
  // and worst, in seconds).
  struct Lag {
    double p99_s = 0, max_s = 0;
  };
  Lag TakeLag();

  // Any thread: a finished trajectory has waited long for room in the buffer.
  bool AppendsWait() const;

  // Starts config.rollout.actors actors.
  void Start(control::Coordinator* coordinator, buffer::Buffer* buffer);

  // Stops admission, aborts episodes (those that wait for an environment at once, the others at
  // their next turn) and waits for them until the deadline, while the environments are ended.
  // Idempotent.
  void Drain(Duration deadline);

 private:
  class Client;
  struct EvalState;
  explicit RunActors(const Deps& deps);

  // Runs `fn` on the loop and waits for it.
  void OnLoop(const std::function<void()>& fn);
  void Await(std::function<Task<void>()> make);
  rollout::EpisodeOptions Episode(const std::string& split, double temperature) const;
  rollout::EpisodePlayer Player(const std::string& split, double temperature) const;
  Status MakePlayers();
  // Whether an episode can begin; `abort` as of a player.
  Task<Status> Check(std::function<bool()> abort);
  Task<void> EvaluateAll(EvalResult* result);
  Task<void> EvaluateSome(std::shared_ptr<EvalState> state);
  Task<void> DrainAll(TimePoint deadline);
  Task<void> EndEnvironments(TimePoint deadline);

  const Deps deps_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<WorkerPool> workers_;
  std::thread thread_;
  std::unique_ptr<env::CancellablePool> environments_;  // null with a harness
  std::unique_ptr<HarnessEpisodes> harness_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<rollout::ActorPool> pool_;
  control::Coordinator* coordinator_ = nullptr;  // on the loop
  buffer::Buffer* buffer_ = nullptr;
  bool drained_ = false;
  std::atomic<bool> aborted_ = false;
};

}  // namespace forebay::apps
