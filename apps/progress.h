// Progress: what a run shows while it trains. One line a step, rewritten in place on a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "forebay/base/mutex.h"

namespace forebay::apps {

struct StepView {
  int64_t step = 0, steps = 0;
  double reward = 0;         // mean of the batch
  double utilization = 0;    // of the run so far
  int64_t pending = 0;       // trajectories in the buffer
  double staleness = 0;      // mean, in policy versions
  double tokens_per_s = 0;   // trained
  double sampled_per_s = 0;  // by the engine
  double eta_seconds = 0;
};

// "step 12/40  reward 0.43  learner 97 % busy  buffer 24  staleness 1.2  118 tok/s trained, 96
// sampled  ETA 3:20".
std::string FormatStep(const StepView& view);

// Thread-safe.
class Progress {
 public:
  // `quiet` prints nothing at all.
  explicit Progress(bool quiet);
  void Say(const std::string& sentence);  // a line of its own
  void Step(const StepView& view);
  void End();  // leaves the last line standing

 private:
  void EndLine() FB_REQUIRES(mutex_);

  const bool quiet_;
  const bool terminal_;
  Mutex mutex_;
  bool open_ FB_GUARDED_BY(mutex_) = false;  // an unfinished line stands on the terminal
};

}  // namespace forebay::apps
