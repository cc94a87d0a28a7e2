#include "forebay/control/sizing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace forebay::control {

Sizing ComputeSizing(const SizingInput& in) {
  constexpr double kHeadroom = 1.2;
  constexpr double kEngineBusyMax = 0.9;
  Sizing out;
  if (in.episode_seconds <= 0 || in.step_seconds <= 0 || in.episodes_per_step <= 0) return out;
  out.demand_per_s = static_cast<double>(in.episodes_per_step) / in.step_seconds;
  out.supply_per_s = static_cast<double>(in.actors) / in.episode_seconds;
  out.actors_needed =
      static_cast<int64_t>(std::ceil(out.demand_per_s * in.episode_seconds * kHeadroom));
  // Pacing admits (max_staleness + 1) batches in all; one of them is the batch being trained on.
  const double batches =
      static_cast<double>(out.actors_needed) / static_cast<double>(in.episodes_per_step);
  const double steps_of_the_slow = in.episode_seconds_p99 / in.step_seconds;
  out.staleness_needed = static_cast<int64_t>(std::ceil(std::max(batches, steps_of_the_slow)));
  out.predicted_utilization = std::min(1.0, out.supply_per_s / out.demand_per_s);
  out.engine_bound = in.engine_busy > kEngineBusyMax;
  return out;
}

}  // namespace forebay::control
