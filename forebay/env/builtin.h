// The environments that come with the program, by name.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env {

// "slow": a letter game whose answers take a log-normal time, for benchmarks and simulations
// (builtin/slow.h lists its options). Works on any loop, virtual ones included. `options` is an
// object; null stands for {}. kNotFound for another name, kInvalidArgument for an unknown option or
// a wrong value.
Result<std::unique_ptr<EnvironmentPool>> MakeBuiltin(std::string_view name,
                                                     const nlohmann::json& options, Loop& loop);

}  // namespace forebay::env
