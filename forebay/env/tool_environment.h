// Any environment, with tools: the model's tool calls go to the tools, everything else it writes to
// the environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/environment.h"
#include "forebay/env/tools.h"

namespace forebay::env {

struct ToolEnvironmentOptions {
  // How the model learns of its tools.
  enum class Prompt {
    kTemplate,  // by the model's chat template (Environment::tools_json); results have role "tool"
    kSystem,    // by a system message of ours (ToolsPrompt); results are user messages
  };
  Prompt prompt = Prompt::kTemplate;
  Duration call_deadline = std::chrono::seconds(60);  // of one call, within the step's deadline
  int64_t calls_per_turn_max = 16;                    // the rest is refused
  size_t result_bytes_max = size_t{16} << 10;         // longer results are shortened
  WorkerPool* workers = nullptr;  // read long actions (json_work.h); null: the loop does
};

// The inner environment gives the first messages and grades what the model writes when it calls no
// tool. A call that is broken, names no tool or fails for its arguments is answered by an error
// that the model sees. Calls of one turn run one after the other.
//
// kInvalidArgument: no providers, an option. Errors of episodes are those of the inner environment
// and the tools; two tools of one name fail the reset.
Result<std::unique_ptr<EnvironmentPool>> MakeToolEnvironment(
    Loop& loop, std::unique_ptr<EnvironmentPool> inner,
    std::vector<std::unique_ptr<ToolProvider>> providers, const ToolEnvironmentOptions& options);

}  // namespace forebay::env
