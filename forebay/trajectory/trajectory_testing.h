// Random and simple trajectories for the tests of every room that handles them.
#pragma once

#include <cstdint>

#include "forebay/base/rng.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay {

// A valid trajectory with anything the format allows: empty columns, several versions, odd names.
Trajectory RandomTrajectory(Rng& rng, int64_t tokens_max = 200);

// A finished episode: `prompt` prompt tokens, then `action` tokens sampled at policy_version.
Trajectory SimpleTrajectory(const TrajectoryId& id, int64_t policy_version, int32_t prompt = 4,
                            int32_t action = 8);

}  // namespace forebay
