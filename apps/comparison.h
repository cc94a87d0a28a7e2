// Comparison: the synchronous loop beside the decoupled one, same configuration, same code, same
// rewards.
#pragma once

#include <cstddef>
#include <string>

#include "apps/report.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::apps {

struct Comparison {
  RunReport sync, decoupled;
  // The mean reward (over a window of batches) that both reached, and when each first did, in
  // seconds; -1 without a step.
  double common_reward = 0;
  double sync_seconds = -1, decoupled_seconds = -1;
  // 0: nothing to compare.
  double speedup() const {
    return sync_seconds >= 0 && decoupled_seconds > 0 ? sync_seconds / decoupled_seconds : 0;
  }
};

struct CompareOptions {
  std::string run;  // run/sync and run/decoupled are made
  bool overwrite = false;
  bool quiet = false;
};

// Runs both to config.run.steps, one after the other. The synchronous loop is the same program with
// max_staleness 0: a batch of episodes starts when the weights of the one before are published (a
// test shows that it equals a plain loop bit for bit).
Result<Comparison> CompareLoops(const control::Config& config, const CompareOptions& options);

// Fills in what both reached, from the reports. Pure. Rewards may be negative.
void CompareRewards(Comparison* comparison);

// The best mean reward of `window` batches in a row; -infinity with fewer. Pure, as the next one.
double BestWindow(const RunReport& report, size_t window);

// First time (seconds) at which the mean reward of the last `window` batches reached `reward`; -1
// if never.
double SecondsToReward(const RunReport& report, double reward, size_t window);

std::string FormatComparison(const Comparison& comparison);
std::string ComparisonJson(const Comparison& comparison);

}  // namespace forebay::apps
