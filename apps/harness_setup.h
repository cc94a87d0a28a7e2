// HarnessEpisodes: a run whose episodes are played by a command of the user's
// (env.kind = "harness").
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "apps/lifeline.h"
#include "apps/model_setup.h"
#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/control/config.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/harness_episode.h"
#include "forebay/rollout/recording_proxy.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {

// Owns the recording proxy, on a loopback port of its own. All calls on the loop; what is passed to
// Start must outlive it.
class HarnessEpisodes {
 public:
  using OnFailure = std::function<void(const TrajectoryId&, Outcome, const Status&)>;

  // kInvalidArgument names the key.
  static Result<std::unique_ptr<HarnessEpisodes>> Start(Loop& loop, const control::Config& config,
                                                        const LoadedModel& model,
                                                        rollout::Engine* engine,
                                                        WorkerPool* workers);

  // Starts env.command for each episode. Must not outlive this.
  rollout::EpisodePlayer Player(const std::string& split, double temperature,
                                OnFailure on_failure) const;

  // Starts the command once, on a task of the evaluation split: it must play, or have played part
  // of, an episode within env.start_deadline_s. The error says what it did instead. `abort` as of
  // a player; then kCancelled.
  Task<Status> Check(std::function<bool()> abort) const;

  // Ends connections; once, when no episode runs.
  Task<void> Stop(TimePoint deadline) { return proxy_->Stop(deadline); }

 private:
  HarnessEpisodes(Loop& loop, const control::Config& config, WorkerPool* workers, Lifeline lifeline,
                  std::unique_ptr<rollout::RecordingProxy> proxy)
      : loop_(loop),
        config_(config),
        workers_(workers),
        lifeline_(std::move(lifeline)),
        proxy_(std::move(proxy)) {}
  rollout::HarnessOptions Options(const std::string& split, double temperature) const;

  Loop& loop_;
  const control::Config& config_;
  WorkerPool* const workers_;
  const Lifeline lifeline_;
  const std::unique_ptr<rollout::RecordingProxy> proxy_;
};

}  // namespace forebay::apps
