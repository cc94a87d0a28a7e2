// The environments that come with the program, by name.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env {

// "slow": a letter game whose answers take a log-normal time, for benchmarks and simulations
// (builtin/slow.h lists its options). "dataset": prompts with answers from a file of JSON lines,
// graded by built-in rewards (builtin/dataset.h); reads it here, so that this call blocks. Both
// work on any loop, virtual ones included. `options` is an object; null stands for {}. Names of
// files in it are relative to `folder`. kNotFound for another name or a missing file,
// kInvalidArgument for an unknown option or a wrong value.
Result<std::unique_ptr<EnvironmentPool>> MakeBuiltin(std::string_view name,
                                                     const nlohmann::json& options, Loop& loop,
                                                     const std::string& folder = {});

}  // namespace forebay::env
