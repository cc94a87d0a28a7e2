// SlowEnv: an environment with the timing of slow tools and a task that a small policy can learn.
//
// The agent is told a letter. The reward of each turn is the fraction of its text's characters that
// are that letter (either case), divided by the number of turns, so that an episode earns at
// most 1. Everything random (number of turns, latencies) derives from the request's seed.
#pragma once

#include <cstdint>
#include <memory>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env {

struct SlowOptions {
  int64_t turns_min = 1;  // uniform in [turns_min, turns_max]
  int64_t turns_max = 3;
  // Of each step; log-normal, cut at four times the 99th percentile. 0: none.
  double latency_p50_s = 2.0;
  double latency_p99_s = 6.0;
  double reset_p50_s = 0.0;  // of each reset, with the same spread
  int64_t letters = 4;       // tasks ask for one of the first so many letters of the alphabet
  int64_t episodes_max = 1 << 20;
};

// kInvalidArgument naming the option.
Result<std::unique_ptr<EnvironmentPool>> MakeSlowPool(const SlowOptions& options, Loop& loop);

}  // namespace forebay::env
