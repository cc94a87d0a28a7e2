// Whether this machine has the programs that a configuration names.
#pragma once

#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::control {

// kInvalidArgument when a program that `config` would start (env.command, env.mcp_command) is not
// there or cannot be run. A name without '/' is looked for on our PATH, any other in config.folder,
// as when it is started. Looks at files, starts nothing. Not part of LoadConfig: what a run was
// told can be read on machines that could not play it.
Status CheckPrograms(const Config& config);

}  // namespace forebay::control
