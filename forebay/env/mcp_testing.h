// A small MCP server for tests, in Python with its standard library only.
#pragma once

#include <string>

#include "forebay/env/subprocess_testing.h"

namespace forebay::env {

// Writes the server into the folder; gives its path. Arguments of the program:
//   stdio | http FILE      how it is reached; over HTTP it writes its port into FILE
//   version                "handshake" (2025-11-25 and 2025-06-18), "stateless" (2026-07-28), both
//   mode                   of its answers over HTTP: json | sse
// Its tools: add {a, b}, fail (isError), picture, slow {seconds}, die, garbage, flood, count (calls
// so far), structured, long {bytes}, size {of}, ask (asks the client first), secret (the
// Authorization header).
std::string WriteMcpServer(const TempFolder& folder);

}  // namespace forebay::env
