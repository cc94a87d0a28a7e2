// MakeEnvironment: the configured environment, on a loop.
#pragma once

#include <memory>
#include <string>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/control/config.h"
#include "forebay/env/cancellable.h"
#include "forebay/env/environment.h"

namespace forebay::apps {

// Which can be cancelled: a run that is interrupted waits for no tool. `stderr_path` takes what the
// environment's processes print; "" drops it. `workers` read and write long messages; null: the
// loop does. kInvalidArgument names the key.
Result<std::unique_ptr<env::CancellablePool>> MakeEnvironment(const control::Config& config,
                                                              const std::string& stderr_path,
                                                              Loop& loop, WorkerPool* workers);

// env.python_path in front of our PYTHONPATH; "" when it names no folder.
std::string PythonPath(const control::Config& config);

// Starts one episode of the evaluation split and ends it: finds a broken environment before
// anything is spent on the run. The error is the environment's own, with its command.
Task<Status> CheckEnvironment(Loop& loop, env::EnvironmentPool& pool, Duration start_deadline,
                              Duration reset_deadline);

}  // namespace forebay::apps
