// Client: a connection to an MCP server whose tools are known.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/json_work.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env::mcp {

class Client {
 public:
  // Agrees on a version ("": any) and lists the tools. Errors as of MakeMcpTools.
  static Task<Result<std::shared_ptr<Client>>> Connect(std::shared_ptr<Transport> transport,
                                                       JsonWork work, std::string version,
                                                       TimePoint deadline);

  const std::vector<ToolSpec>& tools() const { return tools_; }
  const std::string& version() const { return version_; }
  bool broken() const { return transport_->broken(); }
  Transport& transport() { return *transport_; }

  static Task<Result<ToolResult>> Call(std::shared_ptr<Client> self, ToolCall call,
                                       TimePoint deadline);

 private:
  Client(std::shared_ptr<Transport> transport, JsonWork work)
      : transport_(std::move(transport)), work_(work) {}

  Task<Status> Agree(std::string version, TimePoint deadline);
  Task<Result<Reply>> Ask(std::string method, Json params, size_t params_bytes, TimePoint deadline);
  Task<Status> ListTools(TimePoint deadline);

  std::shared_ptr<Transport> transport_;
  const JsonWork work_;
  std::string version_;
  std::vector<ToolSpec> tools_;
};

}  // namespace forebay::env::mcp
