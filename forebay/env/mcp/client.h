// Client: a connection to an MCP server whose tools are known.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env::mcp {

class Client {
 public:
  // Agrees on a version ("": any) and lists the tools. Errors as of MakeMcpTools.
  static Task<Result<std::shared_ptr<Client>>> Connect(std::shared_ptr<Transport> transport,
                                                       std::string version, TimePoint deadline);

  const std::vector<ToolSpec>& tools() const { return tools_; }
  const std::string& version() const { return version_; }
  bool broken() const { return transport_->broken(); }
  Transport& transport() { return *transport_; }

  static Task<Result<ToolResult>> Call(std::shared_ptr<Client> self, ToolCall call,
                                       TimePoint deadline);

 private:
  explicit Client(std::shared_ptr<Transport> transport) : transport_(std::move(transport)) {}

  Task<Status> Agree(std::string version, TimePoint deadline);
  Task<Result<Reply>> Ask(std::string method, Json params, TimePoint deadline);
  Task<Status> ListTools(TimePoint deadline);

  std::shared_ptr<Transport> transport_;
  std::string version_;
  std::vector<ToolSpec> tools_;
};

}  // namespace forebay::env::mcp
