// RunTraining: one training run, wired from the rooms: what `forebay train`, `compare` and the
// benchmark share.
#pragma once

#include <string>

#include "apps/report.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/control/run_directory.h"

namespace forebay::apps {

struct TrainRunOptions {
  std::string run;  // run directory
  control::OpenMode mode = control::OpenMode::kNew;
  bool quiet = false;
};

// Trains to config.run.steps (from the newest checkpoint with kResume), evaluates before and after,
// and writes report.json. Blocks; handles SIGINT and SIGTERM by a checkpoint and kCancelled. Errors
// carry the reason of whatever died first; the run can be resumed then too. kAlreadyExists: a
// resumed run has taken all its steps and has its report, and nothing was changed.
Result<RunReport> RunTraining(const control::Config& config, const TrainRunOptions& options);

// "runs/quickstart" for "examples/quickstart.toml".
std::string DefaultRunFolder(const std::string& config_path);

}  // namespace forebay::apps
