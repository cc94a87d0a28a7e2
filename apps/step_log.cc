#include "apps/step_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "apps/run_actors.h"
#include "forebay/base/clock.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/fingerprint.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/rollout/engine.h"

namespace forebay::apps {
using nlohmann::json;

// A loop that runs later than this is overloaded: deadlines end episodes too late, and finished
// ones wait.
constexpr double kLagAlarmSeconds = 1.0;

StepLog::StepLog(Deps deps)
    : deps_(std::move(deps)),
      start_(Now()),
      sampled_before_(deps_.engine->stats().sampled_tokens),
      engine_busy_before_(deps_.engine->stats().busy_seconds) {}

void StepLog::Step(const learner::StepMetrics& m) {
  RunReport& r = *deps_.report;
  const double seconds = Seconds(Now() - start_);
  if (++steps_here_ == 1) r.fill_seconds = m.lease_wait_s;
  r.steps = m.step;
  r.busy_seconds += m.device_s;
  r.gap_seconds += m.dispatch_gap_s;
  r.seconds = seconds;
  r.trained_episodes += m.trajectories;
  r.tokens += m.packed_tokens;
  r.padded_tokens += m.padded_tokens;
  for (const auto& [age, count] : m.staleness) r.staleness[age] += count;
  r.step_rewards.push_back(m.reward_mean);
  r.step_seconds.push_back(seconds);

  const buffer::BufferStats buffer = deps_.buffer->stats();
  const buffer::Ledger ledger = deps_.buffer->ledger();
  const rollout::EngineStats engine = deps_.engine->stats();
  const RunActors::Lag lag = deps_.take_lag();
  if (lag.max_s >= kLagAlarmSeconds) {
    deps_.run->Log(
        fmt::format("the actors' loop ran up to {:.1f} s late since the last step (99 % of its "
                    "timers within {:.3f} s): "
                    "the machine has too few processors for what runs on it, or for rollout.actors",
                    lag.max_s, lag.p99_s));
  }
  json staleness = json::object();
  for (const auto& [age, count] : m.staleness) staleness[std::to_string(age)] = count;
  json fingerprint = json::object();
  for (const auto& field : learner::Fingerprint(m)) fingerprint[field.name] = field.bits;
  const json line = {{"step", m.step},
                     {"time_us", WallMicros()},
                     {"policy_version", m.policy_version},
                     {"batch_sequence", m.batch_sequence},
                     {"replay", m.replay},
                     {"updated", m.updated},
                     {"reward_mean", m.reward_mean},
                     {"reward_std", m.reward_std},
                     {"loss", m.loss},
                     {"grad_norm", m.grad_norm},
                     {"learning_rate", m.learning_rate},
                     {"entropy", m.entropy},
                     {"kl", m.kl},
                     {"ratio_mean", m.ratio_mean},
                     {"capped_fraction", m.capped_fraction},
                     {"logprob_gap_max", m.logprob_gap_max},
                     {"episodes", m.trajectories},
                     {"trajectory_ids", m.trajectory_ids},
                     {"zero_advantage", m.zero_advantage},
                     {"staleness", staleness},
                     {"tokens", m.packed_tokens},
                     {"padded_tokens", m.padded_tokens},
                     {"loss_tokens", m.loss_tokens},
                     {"micro_batches", m.micro_batches},
                     {"shapes", m.shapes},
                     {"programs_ahead", m.programs_ahead},
                     {"compile_ahead_error", m.compile_ahead_error},
                     {"config", deps_.config_id},
                     {"fingerprint", fingerprint},
                     {"wall_s", m.wall_s},
                     {"busy_s", m.device_s},
                     {"lease_wait_s", m.lease_wait_s},
                     {"dispatch_gap_s", m.dispatch_gap_s},
                     {"pack_s", m.pack_s},
                     {"upload_s", m.upload_s},
                     {"publish_s", m.publish_s},
                     {"digest_s", m.digest_s},
                     {"ready_groups", buffer.ready_groups},
                     {"pending", ledger.pending},
                     {"buffer_disk_bytes", buffer.disk_bytes},
                     {"buffer_memory_bytes", buffer.memory_bytes},
                     {"control_lag_p99_s", lag.p99_s},
                     {"control_lag_max_s", lag.max_s},
                     {"actors", deps_.config->rollout.actors},
                     {"engine_busy_s", engine.busy_seconds - engine_busy_before_},
                     {"engine_active", engine.active},
                     {"engine_waiting", engine.waiting},
                     {"sampled_tokens", engine.sampled_tokens},
                     {"reused_tokens", engine.reused_tokens},
                     {"engine_stall_s", engine.publish_stall_seconds},
                     {"compiles_after_warmup", deps_.compiles_after_warmup()},
                     {"ledger", json::parse(LedgerJson(ledger))}};
  engine_busy_before_ = engine.busy_seconds;
  deps_.run->WriteMetrics(line.dump());

  const double per_step = seconds / static_cast<double>(steps_here_);
  deps_.progress->Step(
      {.step = m.step,
       .steps = deps_.config->run.steps,
       .reward = m.reward_mean,
       .utilization = r.utilization(),
       .pending = ledger.pending,
       .staleness = m.staleness_mean,
       .tokens_per_s = static_cast<double>(r.tokens) / seconds,
       .sampled_per_s = static_cast<double>(engine.sampled_tokens - sampled_before_) / seconds,
       .eta_seconds = per_step * static_cast<double>(deps_.config->run.steps - m.step)});
}

void StepLog::Finish() {
  deps_.report->sampled_tokens = deps_.engine->stats().sampled_tokens - sampled_before_;
}

std::string EvalLine(int64_t step, const EvalResult& e) {
  return json{{"step", step},       {"reward", e.reward},         {"episodes", e.episodes},
              {"failed", e.failed}, {"components", e.components}, {"seconds", e.seconds}}
      .dump();
}

}  // namespace forebay::apps
