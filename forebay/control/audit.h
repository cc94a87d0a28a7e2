// Audit: where a run's time went, from its run directory alone, and how many actors would keep the
// learner busy.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/sizing.h"

namespace forebay::control {

struct Percentiles {
  int64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
// Nearest-rank percentiles; sorts its argument. All zero for no values.
Percentiles ComputePercentiles(std::vector<double> values);

// Seconds of one environment's steps: of all of them, and of the same ones again by the tool that
// they used ("": none), so nobody adds a tool to `all`. No tools: by_tool is empty.
struct StepSeconds {
  Percentiles all;
  std::map<std::string, Percentiles> by_tool;
};

struct AuditReport {
  int64_t episodes = 0, trained_episodes = 0, steps = 0;
  std::map<std::string, int64_t> outcomes;
  std::map<std::string, StepSeconds> step_seconds_of;  // by environment
  // Of one answer of the policy: queue, prefill and decode together.
  Percentiles call_seconds;
  // Of an episode: all its calls, or all its steps, together.
  Percentiles queue_seconds, prefill_seconds, decode_seconds, environment_seconds, reward_seconds;
  Percentiles episode_seconds;  // from its start to its end
  Percentiles episode_tokens, episode_turns;
  // Of the time of all episodes: queue, prefill, decode, environment, reward, other (waiting for an
  // environment, its reset, tokenizing).
  std::map<std::string, double> share;
  // Of the learner's wall time: busy, lease_wait, dispatch_gap (a batch was there, and the device
  // had nothing to do), other.
  std::map<std::string, double> learner_share;
  Percentiles lease_wait_seconds, step_seconds;
  Percentiles ready_groups;  // complete groups in the buffer when a step began
  Percentiles pending;       // trajectories in the buffer when a step began
  // How late timers of the actors' loop ran at worst, of each step.
  Percentiles control_lag_seconds;
  Percentiles staleness;  // of trained trajectories, in policy versions
  double utilization = 0, padding_waste = 0;
  int64_t compiles_after_warmup = 0;
  Sizing sizing;
  std::vector<std::string> notes;  // unreadable lines, what was missing
};

// kNotFound when `run` holds no run; unreadable lines are counted in notes, never fatal.
Result<AuditReport> Audit(const std::string& run);

// The report as `forebay audit` prints it, and as one JSON object.
std::string FormatAudit(const AuditReport& report);
std::string AuditJson(const AuditReport& report);

}  // namespace forebay::control
