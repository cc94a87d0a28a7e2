#include "apps/servers_gap.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>

#include "forebay/learner/step_metrics.h"

namespace forebay::apps {
namespace {

// bf16 is away from f32 by hundredths, on any weights.
constexpr double kGapAlways = 0.05;
constexpr double kGapFactor = 4;

}  // namespace

std::optional<std::string> ServersGap::Look(const learner::StepMetrics& metrics) {
  if (!reloads_ || told_ || !metrics.updated) return std::nullopt;
  if (!first_) {
    first_ = metrics.logprob_gap_max;
    return std::nullopt;
  }
  // Older tokens differ because the weights do.
  if (metrics.staleness_max > 0) return std::nullopt;
  if (metrics.logprob_gap_max <= std::max(kGapAlways, kGapFactor * *first_)) return std::nullopt;
  told_ = true;
  return fmt::format(
      "the log-probabilities that the rollout servers tell are up to {:.2f} away from the "
      "learner's "
      "for the same weights (in the first step {:.1e}): they may not have taken the new weights, "
      "or not all of them (docs/external_engines.md)",
      metrics.logprob_gap_max, *first_);
}

}  // namespace forebay::apps
