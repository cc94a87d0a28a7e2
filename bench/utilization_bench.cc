// The headline: one small model on a slow environment, the synchronous loop against the decoupled
// one, same code, same rewards, about the same wall time for each.
//
// Sizes, and why. The environment's step is log-normal with p50 2 s and p99 10 s, 4 to 8 turns: an
// episode takes about 17 s, the slowest of a batch 30 to 40 s. The model (4 layers, width 192) and
// the batch (20 groups of 4 episodes, 24 thousand tokens) make an optimizer step of 1 to 4 s on 2
// shared cores: long against a decode step, short against an episode, as on real hardware with real
// models. Engine and learner share the cores, so decoupled steps take longer than synchronous ones;
// only waiting counts against utilization. An episode of 40 to 60 s spans up to 15 steps, and what
// takes longer than max_staleness steps is dropped and played again: hence 20. Sequences without
// advantage are computed too, so that a step costs the same whatever was learned. Actions are
// short: with 24 tokens the engine, not the environment, limited the episodes. 960 actors are twice
// what the steady state needs: the first wave must last until the second is back.
//
// The task is one letter for all episodes, so that a handful of synchronous steps learns something
// to compare.
//
// What utilization counts. The synchronous loop waits before every step, so all of its time counts:
// as many waits as steps. The decoupled loop fills its pipeline once a run, so it counts from its
// first batch. Both are reported the other way too (from_first_batch, with_fill).
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/comparison.h"
#include "apps/report.h"
#include "apps/train_run.h"
#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/control/run_directory.h"

namespace forebay::bench {
namespace {

// --quick: the environment is four times as fast, the optimizer step as much smaller, so that the
// ratios stay.
struct Sizes {
  double latency_p50_s = 2, latency_p99_s = 10;
  int64_t groups_per_step = 20, actors = 960;
  int64_t sync_steps = 8, decoupled_steps = 110;
};
constexpr Sizes kFull;
constexpr Sizes kQuick = {.latency_p50_s = 0.5,
                          .latency_p99_s = 2.5,
                          .groups_per_step = 5,
                          .actors = 240,
                          .sync_steps = 3,
                          .decoupled_steps = 40};

std::string ConfigText(const Sizes& sizes) {
  return fmt::format(R"toml(
[run]
seed = 7

[model]
path = "tiny:"
tiny_layers = 4
tiny_width = 192
tiny_heads = 6
tiny_kv_heads = 2
tiny_ff = 512

[env]
name = "slow"
kind = "builtin"
builtin = "slow"
options = '{{"turns_min": 4, "turns_max": 8, "latency_p50_s": {p50}, "latency_p99_s": {p99}, "letters": 1}}'

[rollout]
actors = {actors}
slots = 64
context = 448
tokens_max = 448
turns_max = 8
new_tokens_per_turn_max = 8

[buffer]
max_staleness = 20

[learner]
groups_per_step = {groups}
group_size = 4
learning_rate = 1e-2
skip_zero_advantage = false
row_lengths = [256, 320, 384, 448]
tokens_per_program = 2048

[checkpoint]
every_steps = 0

[eval]
tasks = 0
)toml",
                     fmt::arg("p50", sizes.latency_p50_s), fmt::arg("p99", sizes.latency_p99_s),
                     fmt::arg("actors", sizes.actors), fmt::arg("groups", sizes.groups_per_step));
}

Result<apps::RunReport> Train(const Sizes& sizes, const std::string& mode, int64_t steps) {
  const std::string folder = std::string(FOREBAY_SOURCE_DIR) + "/runs/bench_utilization";
  FB_ASSIGN_OR_RETURN(control::Config config,
                      control::ParseConfig(ConfigText(sizes), "the benchmark", folder, {}));
  config.run.mode = mode;
  config.run.steps = steps;
  return apps::RunTraining(
      config, {.run = folder + "/" + mode, .mode = control::OpenMode::kOverwrite, .quiet = true});
}

double WithFill(const apps::RunReport& report) {
  return report.seconds > 0 ? report.busy_seconds / report.seconds : 0;
}

nlohmann::ordered_json Describe(const apps::RunReport& report, double seconds_to_reward) {
  return {
      {"steps", report.steps},
      {"seconds", report.seconds},
      {"fill_seconds", report.fill_seconds},
      {"busy_seconds", report.busy_seconds},
      {"seconds_a_step", report.seconds / static_cast<double>(std::max<int64_t>(1, report.steps))},
      {"trained_episodes", report.trained_episodes},
      {"tokens", report.tokens},
      {"step_rewards", report.step_rewards},
      {"seconds_to_reward", seconds_to_reward},
      {"max_staleness_trained", report.max_staleness_trained()},
      {"rejected", report.ledger.rejected_total()},
      {"padding_waste", report.padding_waste()}};
}

}  // namespace

Result<nlohmann::ordered_json> UtilizationBench(const BenchOptions& options) {
  const Sizes& sizes = options.quick ? kQuick : kFull;
  options.Say(fmt::format("the synchronous loop, {} steps", sizes.sync_steps));
  FB_ASSIGN_OR_RETURN(const apps::RunReport sync, Train(sizes, "sync", sizes.sync_steps));
  options.Say(fmt::format("decoupled, {} steps", sizes.decoupled_steps));
  FB_ASSIGN_OR_RETURN(const apps::RunReport decoupled,
                      Train(sizes, "decoupled", sizes.decoupled_steps));

  // The reward that both reached. One batch is the window: a synchronous run has only a few.
  constexpr size_t kWindow = 1;
  const double reward =
      std::min(apps::BestWindow(sync, kWindow), apps::BestWindow(decoupled, kWindow));
  const double sync_seconds = apps::SecondsToReward(sync, reward, kWindow);
  const double decoupled_seconds = apps::SecondsToReward(decoupled, reward, kWindow);

  nlohmann::ordered_json fields;
  fields["sync_utilization"] = WithFill(sync);
  fields["decoupled_utilization"] = decoupled.utilization();
  fields["speedup_to_reward"] = decoupled_seconds > 0 ? sync_seconds / decoupled_seconds : 0;
  fields["recompiles_after_warmup"] = sync.compiles_after_warmup + decoupled.compiles_after_warmup;
  fields["padding_waste"] = decoupled.padding_waste();
  fields["max_staleness_trained"] = decoupled.max_staleness_trained();
  fields["ledger_balanced"] = sync.ledger.balanced() && decoupled.ledger.balanced();
  fields["max_staleness"] = decoupled.max_staleness;
  fields["common_reward"] = reward;
  fields["latency_p50_s"] = sizes.latency_p50_s;
  fields["latency_p99_s"] = sizes.latency_p99_s;
  fields["sync_utilization_from_first_batch"] = sync.utilization();
  fields["decoupled_utilization_with_fill"] = WithFill(decoupled);
  fields["sync"] = Describe(sync, sync_seconds);
  fields["decoupled"] = Describe(decoupled, decoupled_seconds);
  return fields;
}

}  // namespace forebay::bench
