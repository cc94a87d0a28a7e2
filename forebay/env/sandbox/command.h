// The command line of a sandbox. Pure functions, but for a look at how the host arranges /bin and
// /lib.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/sandbox.h"

namespace forebay::env {

// What the output of a run begins with once the sandbox stands; else what came is bwrap's failure.
inline constexpr std::string_view kSandboxReady = "\001ready\n";

// kInvalidArgument: empty, or too long for the kernel.
Status CheckSandboxCommand(const std::vector<std::string>& command);
// kInvalidArgument names the option.
Status CheckSandboxOptions(const SandboxOptions& options);

std::vector<std::string> SandboxCommand(const SandboxOptions& options,
                                        const std::vector<std::string>& command);

}  // namespace forebay::env
