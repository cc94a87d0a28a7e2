// StepLog: what each optimizer step leaves in the run directory, on the display and in the report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "apps/progress.h"
#include "apps/report.h"
#include "apps/run_actors.h"
#include "forebay/base/clock.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/config.h"
#include "forebay/control/run_directory.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/rollout/engine.h"

namespace forebay::apps {

// Lives while the learner runs, on its thread.
class StepLog {
 public:
  struct Deps {
    const control::Config* config;
    std::string config_id;  // of its line in starts.jsonl
    control::RunDirectory* run;
    Progress* progress;
    buffer::Buffer* buffer;
    rollout::Engine* engine;
    RunReport* report;
    std::function<RunActors::Lag()> take_lag;
    std::function<int64_t()> compiles_after_warmup;
  };
  explicit StepLog(Deps deps);

  void Step(const learner::StepMetrics& metrics);
  // Sums up; call once, after the last step.
  void Finish();

 private:
  const Deps deps_;
  const TimePoint start_;
  const int64_t sampled_before_;
  double engine_busy_before_;
  int64_t steps_here_ = 0;  // of this process
};

// The line of evals.jsonl.
std::string EvalLine(int64_t step, const EvalResult& result);

}  // namespace forebay::apps
