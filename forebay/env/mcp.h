// Tools of an MCP server (Model Context Protocol), over stdio or HTTP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/tools.h"

namespace forebay::env {

struct McpOptions {
  // Exactly one of these. A command speaks on its standard input and output, one JSON text a line.
  std::vector<std::string> command;  // command[0] is looked up on PATH unless it has a '/'
  std::string url;                   // "http://127.0.0.1:8000/mcp", "https://...", "unix:..."

  std::string folder;                              // the command runs there; "" is ours
  std::map<std::string, std::string> environment;  // of the command, on top of ours
  std::string stderr_path;  // what commands write to stderr is appended here; "" drops it
  std::string bearer;       // the token of "Authorization: Bearer ..."; "" for none (HTTP)

  // "": what the server speaks, of "2025-11-25", "2025-06-18" (and the two before it, where tools
  // are the same) and "2026-07-28". Else only that one.
  std::string version;

  // Whether episodes share connections (and whatever the server keeps in them), or each has its
  // own.
  bool connection_per_episode = false;
  int64_t connections_max = 1;  // shared ones; of episodes' own: how many at once, others wait

  Duration start_deadline = std::chrono::seconds(60);  // until the tools are known
  size_t message_bytes_max = size_t{4} << 20;
  WorkerPool* workers = nullptr;  // read and write long messages (json_work.h); null: the loop does
  // After a failed start the next one waits this long, then twice that, ... up to `backoff_max`.
  Duration backoff = std::chrono::milliseconds(500);
  Duration backoff_max = std::chrono::seconds(30);
};

inline constexpr size_t kMcpToolsMax = 512;  // of one server

// Connections are made when they are first needed, and again when they have ended; a command that
// does not end when its input does is killed with its process group.
//
// kInvalidArgument names the option. Open: kUnavailable (it cannot be started or reached, with the
// last lines of stderr), kDeadlineExceeded, kDataLoss (not MCP), kUnimplemented (no version in
// common). Call: results with isError, unknown tools and wrong arguments are told to the model;
// kUnavailable, kDataLoss, kDeadlineExceeded (the server is told that the call is cancelled),
// kInternal (another error of the server).
Result<std::unique_ptr<ToolProvider>> MakeMcpTools(Loop& loop, McpOptions options);

}  // namespace forebay::env
