#include "apps/environment_remote.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/secrets.h"
#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/control/config.h"
#include "forebay/env/calculator.h"
#include "forebay/env/environment.h"
#include "forebay/env/mcp.h"
#include "forebay/env/openenv.h"
#include "forebay/env/sandbox_tools.h"
#include "forebay/env/tool_environment.h"
#include "forebay/env/tools.h"

namespace forebay::apps {
namespace {

bool Has(const control::EnvSection& env, std::string_view tool) {
  return std::ranges::find(env.tools, tool) != env.tools.end();
}

// Beside the file of the environment's own processes, which is rotated by them.
std::string McpLog(const std::string& stderr_path) {
  if (stderr_path.empty()) return "";
  return std::filesystem::path(stderr_path).replace_filename("mcp.log").string();
}

Result<std::unique_ptr<env::ToolProvider>> MakeMcp(const control::Config& config,
                                                   const std::string& stderr_path, Loop& loop,
                                                   WorkerPool* workers) {
  const control::EnvSection& e = config.env;
  env::McpOptions options{.command = e.mcp_command,
                          .url = e.mcp_url,
                          .folder = config.folder,
                          .stderr_path = McpLog(stderr_path),
                          .connection_per_episode = e.mcp_connection_per_episode,
                          .connections_max = e.mcp_connections,
                          .start_deadline = FromSeconds(e.start_deadline_s),
                          .workers = workers};
  FB_ASSIGN_OR_RETURN(options.bearer,
                      TokenFromVariable("env.mcp_token_variable", e.mcp_token_variable));
  return env::MakeMcpTools(loop, std::move(options));
}

Result<std::unique_ptr<env::ToolProvider>> MakeSandbox(const control::EnvSection& e, Loop& loop) {
  env::SandboxToolsOptions options{.python = Has(e, "python"), .shell = Has(e, "shell")};
  options.sandbox.cpu_s_max = e.sandbox_cpu_s;
  options.sandbox.memory_bytes_max = e.sandbox_memory_mb << 20;
  options.sandbox.processes_max = e.sandbox_processes;
  options.sandbox.parallel_max = e.sandbox_parallel;
  options.sandbox.wall_max = FromSeconds(e.sandbox_wall_s);
  return env::MakeSandboxTools(loop, std::move(options));
}

}  // namespace

Result<std::unique_ptr<env::EnvironmentPool>> MakeOpenEnv(const control::Config& config,
                                                          const nlohmann::json& options, Loop& loop,
                                                          WorkerPool* workers) {
  env::OpenEnvOptions openenv;
  openenv.workers = workers;
  openenv.url = config.env.url;
  FB_ASSIGN_OR_RETURN(openenv.bearer,
                      TokenFromVariable("env.token_variable", config.env.token_variable));
  for (const auto& [key, value] : options.items()) {
    std::string* const text = key == "observation" ? &openenv.observation
                              : key == "system"    ? &openenv.system
                                                   : nullptr;
    if (text != nullptr && value.is_string()) {
      *text = value.get<std::string>();
    } else if (key == "action" && value == "json") {
      openenv.action.clear();
    } else if ((key == "action" || key == "reset") && value.is_object()) {
      (key == "action" ? openenv.action : openenv.reset) = value.dump();
    } else if (key == "sessions_max" && value.is_number_integer()) {
      openenv.sessions_max = value.get<int64_t>();
    } else {
      return InvalidArgument(fmt::format(
          "env.options of an OpenEnv server has no '{}' of this kind; it has: action (an object, "
          "or "
          "\"json\"), reset (an object), observation (a text), system (a text), sessions_max (a "
          "whole number)",
          key));
    }
  }
  return env::MakeOpenEnvPool(loop, std::move(openenv));
}

Result<std::unique_ptr<env::EnvironmentPool>> AddTools(
    const control::Config& config, const std::string& stderr_path, Loop& loop, WorkerPool* workers,
    std::unique_ptr<env::EnvironmentPool> inner) {
  const control::EnvSection& e = config.env;
  if (e.tools.empty()) return inner;
  std::vector<std::unique_ptr<env::ToolProvider>> providers;
  if (Has(e, "calculator")) providers.push_back(env::MakeCalculator());
  if (Has(e, "python") || Has(e, "shell")) {
    FB_ASSIGN_OR_RETURN(std::unique_ptr<env::ToolProvider> sandbox, MakeSandbox(e, loop));
    providers.push_back(std::move(sandbox));
  }
  if (Has(e, "mcp")) {
    FB_ASSIGN_OR_RETURN(std::unique_ptr<env::ToolProvider> mcp,
                        MakeMcp(config, stderr_path, loop, workers));
    providers.push_back(std::move(mcp));
  }
  const env::ToolEnvironmentOptions options{
      .prompt = e.tools_prompt == "system" ? env::ToolEnvironmentOptions::Prompt::kSystem
                                           : env::ToolEnvironmentOptions::Prompt::kTemplate,
      .call_deadline = FromSeconds(e.tool_deadline_s),
      .workers = workers};
  return env::MakeToolEnvironment(loop, std::move(inner), std::move(providers), options);
}

}  // namespace forebay::apps
