#include "apps/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "apps/report.h"
#include "apps/train_run.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::apps {
namespace {

constexpr size_t kWindow = 3;  // batches whose mean reward counts as "reached"
// How far below the lower of the two best windows counts as reached by both, as a fraction of it:
// the runs see other samples, so their best windows differ a little.
constexpr double kHair = 0.05;

// Mean reward of the `window` batches before `end`.
double WindowMean(const RunReport& report, size_t end, size_t window) {
  double sum = 0;
  for (size_t i = end - window; i < end; ++i) sum += report.step_rewards[i];
  return sum / static_cast<double>(window);
}

}  // namespace

double BestWindow(const RunReport& report, size_t window) {
  double best = -std::numeric_limits<double>::infinity();
  for (size_t end = window; end <= report.step_rewards.size(); ++end)
    best = std::max(best, WindowMean(report, end, window));
  return best;
}

double SecondsToReward(const RunReport& report, double reward, size_t window) {
  for (size_t end = window; end <= report.step_rewards.size(); ++end) {
    if (WindowMean(report, end, window) >= reward) return report.step_seconds[end - 1];
  }
  return -1;
}

Result<Comparison> CompareLoops(const control::Config& config, const CompareOptions& options) {
  Comparison out;
  for (const bool sync : {true, false}) {
    control::Config c = config;
    c.run.mode = sync ? "sync" : "decoupled";
    TrainRunOptions run;
    run.run = options.run + (sync ? "/sync" : "/decoupled");
    run.mode = options.overwrite ? control::OpenMode::kOverwrite : control::OpenMode::kNew;
    run.quiet = options.quiet;
    FB_ASSIGN_OR_RETURN(RunReport report, RunTraining(c, run));
    (sync ? out.sync : out.decoupled) = std::move(report);
  }
  CompareRewards(&out);
  return out;
}

void CompareRewards(Comparison* c) {
  const size_t window =
      std::min({kWindow, c->sync.step_rewards.size(), c->decoupled.step_rewards.size()});
  if (window == 0) return;
  const double best = std::min(BestWindow(c->sync, window), BestWindow(c->decoupled, window));
  c->common_reward = best - kHair * std::abs(best);
  c->sync_seconds = SecondsToReward(c->sync, c->common_reward, window);
  c->decoupled_seconds = SecondsToReward(c->decoupled, c->common_reward, window);
}

std::string FormatComparison(const Comparison& c) {
  const auto row = [](std::string_view what, double sync, double decoupled, int digits) {
    return fmt::format("{:<34}{:>14.{}f}{:>14.{}f}\n", what, sync, digits, decoupled, digits);
  };
  std::string out = fmt::format("\n{:<34}{:>14}{:>14}\n", "", "synchronous", "decoupled");
  out += row("learner busy, %", 100 * c.sync.utilization(), 100 * c.decoupled.utilization(), 1);
  out += row("seconds for all steps", c.sync.seconds, c.decoupled.seconds, 1);
  out += row("seconds a step",
             c.sync.seconds / static_cast<double>(std::max<int64_t>(1, c.sync.steps)),
             c.decoupled.seconds / static_cast<double>(std::max<int64_t>(1, c.decoupled.steps)), 2);
  if (c.sync_seconds >= 0 && c.decoupled_seconds >= 0) {
    out += row(fmt::format("seconds to reward {:.3f}", c.common_reward), c.sync_seconds,
               c.decoupled_seconds, 1);
  }
  if (c.sync.before && c.sync.after && c.decoupled.before && c.decoupled.after) {
    out += row("held-out reward before", c.sync.before->reward, c.decoupled.before->reward, 3);
    out += row("held-out reward after", c.sync.after->reward, c.decoupled.after->reward, 3);
  }
  out += row("oldest token trained, versions", static_cast<double>(c.sync.max_staleness_trained()),
             static_cast<double>(c.decoupled.max_staleness_trained()), 0);
  out +=
      row("padding waste, %", 100 * c.sync.padding_waste(), 100 * c.decoupled.padding_waste(), 1);
  if (c.speedup() > 0) {
    out += fmt::format("\nDecoupled reaches that reward {:.1f} times sooner.\n", c.speedup());
  }
  return out;
}

std::string ComparisonJson(const Comparison& c) {
  const nlohmann::json out = {
      {"sync_utilization", c.sync.utilization()},
      {"decoupled_utilization", c.decoupled.utilization()},
      {"speedup_to_reward", c.speedup()},
      {"common_reward", c.common_reward},
      {"sync_seconds_to_reward", c.sync_seconds},
      {"decoupled_seconds_to_reward", c.decoupled_seconds},
      {"recompiles_after_warmup", c.sync.compiles_after_warmup + c.decoupled.compiles_after_warmup},
      {"padding_waste", c.decoupled.padding_waste()},
      {"max_staleness_trained", c.decoupled.max_staleness_trained()},
      {"max_staleness", c.decoupled.max_staleness},
      {"ledger_balanced", c.sync.ledger.balanced() && c.decoupled.ledger.balanced()},
      {"sync", nlohmann::json::parse(ReportJson(c.sync))},
      {"decoupled", nlohmann::json::parse(ReportJson(c.decoupled))}};
  return out.dump();
}

}  // namespace forebay::apps
