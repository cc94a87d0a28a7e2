// Tools that run what the model writes in a sandbox: "python" and "shell".
#pragma once

#include <memory>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/sandbox.h"
#include "forebay/env/tools.h"

namespace forebay::env {

struct SandboxToolsOptions {
  bool python = true;  // {"code": ...}, run by /usr/bin/python3
  bool shell = false;  // {"command": ...}, run by /bin/sh
  SandboxOptions sandbox;
};

// Each call begins anew: files do not last from one to the next. The model sees both streams, the
// exit code if it is not 0, and which limit ended it. Errors as of Sandbox::Create;
// kInvalidArgument as well when neither tool is wanted.
Result<std::unique_ptr<ToolProvider>> MakeSandboxTools(Loop& loop, SandboxToolsOptions options);

}  // namespace forebay::env
