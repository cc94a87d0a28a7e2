#include "apps/environment_setup.h"

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "apps/environment_remote.h"
#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/control/config.h"
#include "forebay/env/builtin.h"
#include "forebay/env/cancellable.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess.h"

namespace forebay::apps {
namespace {

// The environment without env.tools.
Result<std::unique_ptr<env::EnvironmentPool>> MakeInner(const control::Config& config,
                                                        const std::string& stderr_path, Loop& loop,
                                                        WorkerPool* workers) {
  const control::EnvSection& e = config.env;
  const nlohmann::json env_options = nlohmann::json::parse(e.options, nullptr, false);
  if (!env_options.is_object()) {
    return InvalidArgument("env.options must be a JSON object, for instance '{\"digits\": 1}'");
  }
  if (e.kind == "openenv") return MakeOpenEnv(config, env_options, loop, workers);
  if (e.kind == "builtin") return env::MakeBuiltin(e.builtin, env_options, loop, config.folder);

  env::SubprocessOptions options;
  options.command = e.command;
  options.folder = config.folder;
  options.environment["FOREBAY_ENV_OPTIONS"] = e.options;
  if (const std::string path = PythonPath(config); !path.empty()) {
    options.environment["PYTHONPATH"] = path;
  }
  options.processes = e.processes;
  options.episodes_per_process = e.episodes_per_process;
  options.start_deadline = FromSeconds(e.start_deadline_s);
  options.stderr_path = stderr_path;
  options.workers = workers;
  FB_ASSIGN_OR_RETURN(std::unique_ptr<env::SubprocessPool> pool,
                      env::SubprocessPool::Create(loop, std::move(options)));
  return std::unique_ptr<env::EnvironmentPool>(std::move(pool));
}

}  // namespace

std::string PythonPath(const control::Config& config) {
  std::string out;
  for (const std::string& folder : config.env.python_path) {
    if (!out.empty()) out += ':';
    out += config.Resolve(folder);
  }
  if (const char* inherited = std::getenv("PYTHONPATH"); inherited && *inherited && !out.empty()) {
    out += std::string(":") + inherited;
  }
  return out;
}

Result<std::unique_ptr<env::CancellablePool>> MakeEnvironment(const control::Config& config,
                                                              const std::string& stderr_path,
                                                              Loop& loop, WorkerPool* workers) {
  FB_ASSIGN_OR_RETURN(std::unique_ptr<env::EnvironmentPool> inner,
                      MakeInner(config, stderr_path, loop, workers));
  FB_ASSIGN_OR_RETURN(std::unique_ptr<env::EnvironmentPool> all,
                      AddTools(config, stderr_path, loop, workers, std::move(inner)));
  return env::MakeCancellable(loop, std::move(all));
}

Task<Status> CheckEnvironment(Loop& loop, env::EnvironmentPool& pool, Duration start_deadline,
                              Duration reset_deadline) {
  auto environment = co_await pool.Acquire(loop.Now() + start_deadline);
  if (!environment.ok())
    co_return environment.status().WithContext("the environment does not start");
  env::ResetRequest request;
  request.split = "eval";
  auto messages = co_await (*environment)->Reset(std::move(request), loop.Now() + reset_deadline);
  if (!messages.ok())
    co_return messages.status().WithContext("the environment starts, but its first reset fails");
  if (messages->empty())
    co_return DataLoss(
        "the environment's reset gave no message: the agent would have nothing to act on");
  co_return OkStatus();
}

}  // namespace forebay::apps
