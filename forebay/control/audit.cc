#include "forebay/control/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/sizing.h"

namespace forebay::control {
namespace {

using nlohmann::json;

constexpr double kMicro = 1e-6;

// Calls `use` with each line that is a JSON object; returns how many were not, or -1 without a
// file.
int64_t ForEachLine(const std::string& path, const std::function<void(const json&)>& use) {
  std::ifstream file(path);
  if (!file) return -1;
  int64_t bad = 0;
  std::string line;
  while (std::getline(file, line)) {
    const json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object()) {
      ++bad;
      continue;
    }
    try {
      use(value);
    } catch (const json::exception&) {  // a field of another type
      ++bad;
    }
  }
  return bad;
}

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// What the lines of trajectories.jsonl add up to.
struct Episodes {
  std::map<std::string, std::map<std::string, std::vector<double>>> steps;  // environment, tool
  std::vector<double> calls, queue, prefill, decode, environment, reward, wall, tokens, turns;
  int64_t clamped = 0;  // episodes whose time is that of their turns
  AuditReport* report;

  void Add(const json& line) {
    const std::string name = line.at("environment").get<std::string>();
    double queue_s = 0, prefill_s = 0, decode_s = 0, reward_s = 0, environment_s = 0;
    std::vector<std::pair<std::string, double>> by_tool;
    std::vector<double> answers;
    for (const json& turn : line.at("turns")) {
      const double waited = turn.at("queue_us").get<double>() * kMicro;
      const double filled = turn.at("prefill_us").get<double>() * kMicro;
      const double decoded = turn.at("decode_us").get<double>() * kMicro;
      queue_s += waited;
      prefill_s += filled;
      decode_s += decoded;
      answers.push_back(waited + filled + decoded);
      reward_s += turn.at("reward_us").get<double>() * kMicro;
      const double step = turn.at("environment_us").get<double>() * kMicro;
      environment_s += step;
      by_tool.emplace_back(turn.at("tool").get<std::string>(), step);
    }
    double wall_s =
        (line.at("ended_us").get<double>() - line.at("started_us").get<double>()) * kMicro;
    // Runs of older versions took both from the wall clock: it was set back meanwhile.
    const bool impossible = wall_s < 0;
    if (impossible) wall_s = queue_s + prefill_s + decode_s + environment_s + reward_s;
    const double token_count = line.at("tokens").get<double>();
    const std::string outcome = line.at("outcome").get<std::string>();
    // Every field was read: from here on nothing fails half-way.
    ++report->episodes;
    clamped += impossible ? 1 : 0;
    ++report->outcomes[outcome];
    for (const auto& [tool, seconds] : by_tool) steps[name][tool].push_back(seconds);
    calls.insert(calls.end(), answers.begin(), answers.end());
    queue.push_back(queue_s);
    prefill.push_back(prefill_s);
    decode.push_back(decode_s);
    reward.push_back(reward_s);
    environment.push_back(environment_s);
    wall.push_back(wall_s);
    tokens.push_back(token_count);
    turns.push_back(static_cast<double>(by_tool.size()));
  }

  void Finish() {
    AuditReport& r = *report;
    if (clamped > 0) {
      r.notes.push_back(
          fmt::format("{} episodes end before they begin (the clock was set back, in a run of an "
                      "older version): the time of their turns is taken instead",
                      clamped));
    }
    const double total = Sum(wall);
    if (total > 0) {
      r.share["queue"] = Sum(queue) / total;
      r.share["prefill"] = Sum(prefill) / total;
      r.share["decode"] = Sum(decode) / total;
      r.share["environment"] = Sum(environment) / total;
      r.share["reward"] = Sum(reward) / total;
      double known = 0;
      for (const auto& [what, share] : r.share) known += share;
      r.share["other"] = std::max(0.0, 1.0 - known);
    }
    for (auto& [name, by_tool] : steps) {
      StepSeconds& out = r.step_seconds_of[name];
      const bool tools = by_tool.size() > 1 || !by_tool.begin()->first.empty();
      std::vector<double> all;
      for (auto& [tool, seconds] : by_tool) {
        all.insert(all.end(), seconds.begin(), seconds.end());
        if (tools) out.by_tool[tool] = ComputePercentiles(std::move(seconds));
      }
      out.all = ComputePercentiles(std::move(all));
    }
    r.environment_seconds = ComputePercentiles(std::move(environment));
    r.call_seconds = ComputePercentiles(std::move(calls));
    r.queue_seconds = ComputePercentiles(std::move(queue));
    r.prefill_seconds = ComputePercentiles(std::move(prefill));
    r.decode_seconds = ComputePercentiles(std::move(decode));
    r.reward_seconds = ComputePercentiles(std::move(reward));
    r.episode_seconds = ComputePercentiles(std::move(wall));
    r.episode_tokens = ComputePercentiles(std::move(tokens));
    r.episode_turns = ComputePercentiles(std::move(turns));
  }
};

// Above this, the loop that times all episodes does not keep up.
constexpr double kLagAlarmSeconds = 1.0;

void AddSteps(const std::map<int64_t, json>& steps, AuditReport* report) {
  AuditReport& r = *report;
  std::vector<double> wait, busy, ready, pending, staleness, lag;
  double wall = 0, gap = 0, tokens = 0, padded = 0, engine_busy = 0;
  int64_t actors = 0;
  for (const auto& [step, line] : steps) {
    ++r.steps;
    wall += line.value("wall_s", 0.0);
    gap += line.value("dispatch_gap_s", 0.0);
    wait.push_back(line.value("lease_wait_s", 0.0));
    busy.push_back(line.value("busy_s", 0.0));
    ready.push_back(line.value("ready_groups", 0.0));
    pending.push_back(line.value("pending", 0.0));
    lag.push_back(line.value("control_lag_max_s", 0.0));
    tokens += line.value("tokens", 0.0);
    padded += line.value("padded_tokens", 0.0);
    engine_busy += line.value("engine_busy_s", 0.0);
    r.trained_episodes += line.value("episodes", int64_t{0});
    r.compiles_after_warmup =
        std::max(r.compiles_after_warmup, line.value("compiles_after_warmup", int64_t{0}));
    actors = std::max(actors, line.value("actors", int64_t{0}));
    const json histogram = line.value("staleness", json::object());
    for (const auto& [version, count] : histogram.items()) {
      staleness.insert(staleness.end(), count.get<size_t>(), std::stod(version));
    }
  }
  const double busy_total = Sum(busy);
  if (wall > 0) {
    r.utilization = busy_total / wall;
    r.learner_share["busy"] = r.utilization;
    r.learner_share["lease_wait"] = Sum(wait) / wall;
    r.learner_share["dispatch_gap"] = gap / wall;
    r.learner_share["other"] =
        std::max(0.0, 1.0 - r.utilization - r.learner_share["lease_wait"] - gap / wall);
  }
  if (padded > 0) r.padding_waste = 1.0 - tokens / padded;
  if (r.steps > 0) {
    r.sizing = ComputeSizing({
        .episode_seconds = r.episode_seconds.mean,
        .episode_seconds_p99 = r.episode_seconds.p99,
        .step_seconds = busy_total / static_cast<double>(r.steps),
        .episodes_per_step = r.trained_episodes / r.steps,
        .actors = actors,
        .engine_busy = wall > 0 ? engine_busy / wall : 0,
    });
  }
  r.lease_wait_seconds = ComputePercentiles(std::move(wait));
  r.step_seconds = ComputePercentiles(std::move(busy));
  r.ready_groups = ComputePercentiles(std::move(ready));
  r.pending = ComputePercentiles(std::move(pending));
  r.control_lag_seconds = ComputePercentiles(std::move(lag));
  if (r.control_lag_seconds.max >= kLagAlarmSeconds) {
    r.notes.push_back(
        fmt::format("the actors' loop ran up to {:.1f} s late: deadlines came late and finished "
                    "episodes waited; give the "
                    "actors a processor of their own, or lower rollout.actors",
                    r.control_lag_seconds.max));
  }
  r.staleness = ComputePercentiles(std::move(staleness));
}

}  // namespace

Percentiles ComputePercentiles(std::vector<double> values) {
  Percentiles out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto rank = [&](double p) {
    const auto index = static_cast<size_t>(std::ceil(p * static_cast<double>(values.size())));
    return values[std::clamp<size_t>(index, 1, values.size()) - 1];
  };
  out.count = static_cast<int64_t>(values.size());
  out.mean = Sum(values) / static_cast<double>(values.size());
  out.p50 = rank(0.50);
  out.p90 = rank(0.90);
  out.p99 = rank(0.99);
  out.max = values.back();
  return out;
}

Result<AuditReport> Audit(const std::string& run) {
  AuditReport report;
  Episodes episodes;
  episodes.report = &report;
  const int64_t bad_episodes =
      ForEachLine(run + "/trajectories.jsonl", [&](const json& line) { episodes.Add(line); });
  std::map<int64_t, json> steps;  // a resumed run repeats steps: the last line of a step counts
  const int64_t bad_steps = ForEachLine(run + "/metrics.jsonl", [&](const json& line) {
    steps[line.at("step").get<int64_t>()] = line;
  });
  if (bad_episodes < 0 && bad_steps < 0) {
    return NotFound("'" + run +
                    "' holds no run: it has neither metrics.jsonl nor trajectories.jsonl");
  }
  if (bad_episodes > 0)
    report.notes.push_back(std::to_string(bad_episodes) +
                           " unreadable lines in trajectories.jsonl");
  if (bad_steps > 0)
    report.notes.push_back(std::to_string(bad_steps) + " unreadable lines in metrics.jsonl");
  episodes.Finish();
  try {
    AddSteps(steps, &report);
  } catch (const std::exception& error) {  // a field of another type, a staleness that is no number
    return DataLoss("'" + run + "/metrics.jsonl' is not what a run writes: " + error.what());
  }
  return report;
}

}  // namespace forebay::control
