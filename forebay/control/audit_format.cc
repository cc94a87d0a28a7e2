#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "forebay/control/audit.h"
#include "forebay/control/sizing.h"

namespace forebay::control {
namespace {

using nlohmann::json;

// A value too wide for its column moves the rest to the right, but never touches its neighbour.
std::string Row(std::string_view name, const Percentiles& p, int digits) {
  return fmt::format("  {:<34} {:>7} {:>9.{}f} {:>9.{}f} {:>9.{}f} {:>9.{}f} {:>9.{}f}\n", name,
                     p.count, p.mean, digits, p.p50, digits, p.p90, digits, p.p99, digits, p.max,
                     digits);
}

std::string Header(std::string_view title) {
  return fmt::format("\n{:<36}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}\n", title, "count", "mean", "p50",
                     "p90", "p99", "max");
}

// Rows of one environment: its own, and below it, set in, the same steps again by tool.
std::string StepRows(std::string_view name, const StepSeconds& steps) {
  std::string out = Row(name, steps.all, 3);
  for (const auto& [tool, p] : steps.by_tool) {
    out += Row(tool.empty() ? "  of them without a tool" : "  of them with " + tool, p, 3);
  }
  return out;
}

// A share of the learner's time by its name in metrics.jsonl.
std::string_view LearnerShareName(std::string_view name) {
  if (name == "busy") return "computing (utilization)";
  if (name == "lease_wait") return "waiting for a batch";
  if (name == "dispatch_gap") return "a batch was there, nothing queued";
  return name;
}

json ToJson(const Percentiles& p) {
  return {{"count", p.count}, {"mean", p.mean}, {"p50", p.p50},
          {"p90", p.p90},     {"p99", p.p99},   {"max", p.max}};
}

std::string Notes(const AuditReport& r) {
  std::string out;
  for (const std::string& note : r.notes) out += "note: " + note + "\n";
  return out;
}

std::string Advice(const AuditReport& r) {
  const Sizing& s = r.sizing;
  if (s.actors_needed == 0) return "Too little was measured to size the actor pool.\n";
  std::string out = fmt::format(
      "A learner that never waits trains {:.2f} episodes/s; these actors can finish {:.2f}/s.\n"
      "Actors that keep it busy: {} (with buffer.max_staleness >= {}).\n",
      s.demand_per_s, s.supply_per_s, s.actors_needed, s.staleness_needed);
  if (s.engine_bound) {
    out +=
        "The engine computes more than 90 % of the time: more actors would only queue; give it "
        "more slots or devices.\n";
  } else if (s.predicted_utilization < 0.95) {
    out += fmt::format(
        "The pool is too small: with it the learner is busy at most {:.0f} % of the time.\n",
        100 * s.predicted_utilization);
  }
  return out;
}

// Of a run that ended, or was ended, before its first step: tables of zeros would say nothing.
std::string FormatNothingTrained(const AuditReport& r) {
  std::string out =
      r.episodes == 0
          ? "No step was trained, and no episode was played: the run ended while it was starting "
            "(loading, compiling or waiting for its environment), or has only just begun.\n"
          : fmt::format("No step was trained: {} episodes were played before the run ended.\n",
                        r.episodes);
  return out + "run.log in its folder says how far it came.\n";
}

}  // namespace

std::string FormatAudit(const AuditReport& r) {
  if (r.steps == 0 && r.episodes == 0) return FormatNothingTrained(r) + Notes(r);
  std::string out = r.steps == 0 ? FormatNothingTrained(r) + "\n" : std::string();
  out += fmt::format("{} episodes, {} of them trained on, in {} steps\n", r.episodes,
                     r.trained_episodes, r.steps);
  for (const auto& [outcome, count] : r.outcomes)
    out += fmt::format("  {:<34} {:>7}\n", outcome, count);
  out += Header("seconds of a step of an environment");
  for (const auto& [name, steps] : r.step_seconds_of) out += StepRows(name, steps);
  out += Header("seconds of a call of the policy");
  out += Row("queue, prefill and decode", r.call_seconds, 3);
  out += Header("of an episode, its turns together");
  out += Row("seconds in the queue for a slot", r.queue_seconds, 3);
  out += Row("seconds of prefill", r.prefill_seconds, 3);
  out += Row("seconds of decode", r.decode_seconds, 3);
  out += Row("seconds of the environment", r.environment_seconds, 3);
  out += Row("seconds of the reward", r.reward_seconds, 3);
  out += Row("seconds from start to end", r.episode_seconds, 3);
  out += Row("tokens", r.episode_tokens, 0);
  out += Row("turns", r.episode_turns, 1);
  out += "\nwhere the time of episodes went\n";
  for (const auto& [what, share] : r.share)
    out += fmt::format("  {:<34} {:>6.1f} %\n", what, 100 * share);
  if (r.steps == 0) return out + "\n" + Advice(r) + Notes(r);
  out += Header("of a step of the learner");
  out += Row("seconds waiting for a batch", r.lease_wait_seconds, 3);
  out += Row("seconds computing", r.step_seconds, 3);
  out += Row("buffer fill: complete groups", r.ready_groups, 1);
  out += Row("buffer fill: trajectories", r.pending, 1);
  out += Row("staleness (policy versions)", r.staleness, 1);
  out += Row("seconds the actors' loop was late", r.control_lag_seconds, 3);
  out += "\nwhere the learner's time went\n";
  for (const auto& [what, share] : r.learner_share)
    out += fmt::format("  {:<34} {:>6.1f} %\n", LearnerShareName(what), 100 * share);
  out += fmt::format("\n{:<36}{:>7.1f} %\n{:<36}{:>8}\n\n", "padding among the tokens of rows",
                     100 * r.padding_waste, "compilations after warm-up", r.compiles_after_warmup);
  out += Advice(r);
  return out + Notes(r);
}

std::string AuditJson(const AuditReport& r) {
  json environments = json::object();
  for (const auto& [name, steps] : r.step_seconds_of) {
    json& out = environments[name] = ToJson(steps.all);
    for (const auto& [tool, p] : steps.by_tool) out["by_tool"][tool] = ToJson(p);
  }
  const json out = {
      {"episodes", r.episodes},
      {"trained_episodes", r.trained_episodes},
      {"steps", r.steps},
      {"outcomes", r.outcomes},
      {"environments", environments},
      {"call_seconds", ToJson(r.call_seconds)},
      {"queue_seconds", ToJson(r.queue_seconds)},
      {"prefill_seconds", ToJson(r.prefill_seconds)},
      {"decode_seconds", ToJson(r.decode_seconds)},
      {"environment_seconds", ToJson(r.environment_seconds)},
      {"reward_seconds", ToJson(r.reward_seconds)},
      {"episode_seconds", ToJson(r.episode_seconds)},
      {"episode_tokens", ToJson(r.episode_tokens)},
      {"episode_turns", ToJson(r.episode_turns)},
      {"share", r.share},
      {"learner_share", r.learner_share},
      {"lease_wait_seconds", ToJson(r.lease_wait_seconds)},
      {"step_seconds", ToJson(r.step_seconds)},
      {"ready_groups", ToJson(r.ready_groups)},
      {"pending", ToJson(r.pending)},
      {"staleness", ToJson(r.staleness)},
      {"control_lag_seconds", ToJson(r.control_lag_seconds)},
      {"utilization", r.utilization},
      {"padding_waste", r.padding_waste},
      {"compiles_after_warmup", r.compiles_after_warmup},
      {"sizing",
       {{"demand_per_s", r.sizing.demand_per_s},
        {"supply_per_s", r.sizing.supply_per_s},
        {"actors_needed", r.sizing.actors_needed},
        {"staleness_needed", r.sizing.staleness_needed},
        {"predicted_utilization", r.sizing.predicted_utilization},
        {"engine_bound", r.sizing.engine_bound}}},
      {"notes", r.notes},
  };
  return out.dump();
}

}  // namespace forebay::control
