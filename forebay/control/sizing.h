// How many actors keep the learner busy: Little's law on what a run measured. Pure.
#pragma once

#include <cstdint>

namespace forebay::control {

struct SizingInput {
  double episode_seconds = 0;      // mean wall time of an episode, from its start to its end
  double episode_seconds_p99 = 0;  // the slow ones: they must not be stale when they end
  double step_seconds = 0;         // device time of an optimizer step
  int64_t episodes_per_step = 0;
  int64_t actors = 0;      // concurrent episodes now
  double engine_busy = 0;  // fraction of time that the engine computes, 0..1
};

struct Sizing {
  double demand_per_s = 0;    // episodes that a learner that never waits trains in a second
  double supply_per_s = 0;    // episodes that the actors can finish in a second
  int64_t actors_needed = 0;  // to meet the demand, with 20 % to spare for unequal lengths
  // The least max_staleness that admits so many episodes and lets the slow ones end in time.
  int64_t staleness_needed = 0;
  double predicted_utilization = 0;  // with the actors of now: min(1, supply / demand)
  bool engine_bound = false;         // the engine is busy > 90 %: more actors only queue
};

// All zeros when nothing was measured.
Sizing ComputeSizing(const SizingInput& input);

}  // namespace forebay::control
