// The configured OpenEnv server, and the tools of an environment.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/control/config.h"
#include "forebay/env/environment.h"

namespace forebay::apps {

// `options`: env.options (docs/environments.md lists them). kInvalidArgument names the key.
Result<std::unique_ptr<env::EnvironmentPool>> MakeOpenEnv(const control::Config& config,
                                                          const nlohmann::json& options, Loop& loop,
                                                          WorkerPool* workers);

// `inner` with env.tools; `inner` itself when there are none. What an MCP server prints goes into
// mcp.log beside `stderr_path`; nowhere if that is "".
Result<std::unique_ptr<env::EnvironmentPool>> AddTools(const control::Config& config,
                                                       const std::string& stderr_path, Loop& loop,
                                                       WorkerPool* workers,
                                                       std::unique_ptr<env::EnvironmentPool> inner);

}  // namespace forebay::apps
