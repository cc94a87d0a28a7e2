// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "apps/harness_setup.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/environment_setup.h"
#include "apps/lifeline.h"
#include "apps/model_setup.h"
#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/control/config.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/harness_episode.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/recording_proxy.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

constexpr uint64_t kCheckSeed = 4;  // control/coordinator.cc derives 1 and 2, run_actors.cc 3
constexpr int kChecks = 3;          // a harness that fails now and then may fail at once

}  // namespace

Result<std::unique_ptr<HarnessEpisodes>> HarnessEpisodes::Start(Loop& loop,
                                                                const control::Config& config,
                                                                const LoadedModel& model,
                                                                rollout::Engine* engine,
                                                                WorkerPool* workers) {
  FB_ASSIGN_OR_RETURN(Lifeline lifeline, Lifeline::Create());
  FB_ASSIGN_OR_RETURN(auto proxy, rollout::RecordingProxy::Start(
                                      loop, Served(model, "policy", engine),
                                      {.workers = workers, .note = [](const std::string& note) {
                                         std::fprintf(stderr, "note: %s\n", note.c_str());
                                       }}));
  return std::unique_ptr<HarnessEpisodes>(
      new HarnessEpisodes(loop, config, workers, std::move(lifeline), std::move(proxy)));
}

rollout::HarnessOptions HarnessEpisodes::Options(const std::string& split,
                                                 double temperature) const {
  const control::EnvSection& e = config_.env;
  const control::RolloutSection& r = config_.rollout;
  rollout::HarnessOptions out;
  out.command = lifeline_.Wrap(e.command);
  out.folder = config_.folder;
  out.variables["FOREBAY_OPTIONS"] = e.options;
  if (const std::string path = PythonPath(config_); !path.empty()) {
    out.variables["PYTHONPATH"] = path;
  }
  out.split = split;
  out.workers = workers_;
  out.deadline = FromSeconds(e.episode_deadline_s);
  out.recording = {.environment = e.name,
                   .temperature = temperature,
                   .new_tokens_per_call_max = static_cast<int32_t>(r.new_tokens_per_turn_max),
                   .calls_max = static_cast<int32_t>(r.turns_max),
                   .tokens_max = e.episode_tokens_max,
                   .generate_deadline = FromSeconds(r.generate_deadline_s)};
  return out;
}

rollout::EpisodePlayer HarnessEpisodes::Player(const std::string& split, double temperature,
                                               OnFailure on_failure) const {
  rollout::HarnessOptions options = Options(split, temperature);
  options.on_failure = std::move(on_failure);
  return [this, options](Assignment assignment, std::function<bool()> abort) {
    return rollout::RunHarnessEpisode(loop_, *proxy_, options, assignment, std::move(abort));
  };
}

Task<Status> HarnessEpisodes::Check(std::function<bool()> abort) const {
  Status why;
  rollout::HarnessOptions options = Options("eval", config_.eval.temperature);
  const double wait_s = config_.env.start_deadline_s;
  options.deadline = std::min(options.deadline, FromSeconds(wait_s));
  options.on_failure = [&why](const TrajectoryId&, Outcome, const Status& status) { why = status; };
  for (int i = 0; i < kChecks; ++i) {
    Assignment assignment;
    assignment.seed =
        DeriveSeed(static_cast<uint64_t>(config_.run.seed), kCheckSeed, static_cast<uint64_t>(i));
    Task<Trajectory> playing =
        rollout::RunHarnessEpisode(loop_, *proxy_, options, assignment, abort);
    const Trajectory played = co_await std::move(playing);
    if (Trains(played.outcome)) co_return OkStatus();
    if (played.outcome == Outcome::kAborted) co_return Cancelled("the harness was stopped");
    if (played.outcome != Outcome::kEnvTimeout) continue;
    if (played.loss_tokens() > 0) co_return OkStatus();  // it plays; an episode takes longer
    co_return DeadlineExceeded(
        fmt::format("the harness ran for {:g} s (env.start_deadline_s) and had no answer from the "
                    "policy: it must ask the endpoint of OPENAI_BASE_URL with OPENAI_API_KEY",
                    Seconds(options.deadline)));
  }
  co_return Unavailable(fmt::format(
      "env.command was started {} times and never played an episode to its end; the last time: {}",
      kChecks, why.message()));
}

}  // namespace forebay::apps
