// An MCP server that is a process: one JSON text a line on its standard input and output.
#pragma once

#include <memory>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/subprocess/line_process.h"

namespace forebay::env::mcp {

Result<std::shared_ptr<Transport>> StartStdio(Loop& loop, LineProcessOptions options);

}  // namespace forebay::env::mcp
