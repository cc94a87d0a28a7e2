#include "forebay/env/mcp/client.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/json_work.h"
#include "forebay/env/mcp.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env::mcp {
namespace {

constexpr int kPagesMax = 64;  // of the list of tools

struct Page {
  std::vector<ToolSpec> tools;
  std::string cursor;
};

Status Failed(std::string_view what, const RpcError& error) {
  return Internal(
      fmt::format("the MCP server failed {}: {} (code {})", what, error.message, error.code));
}

// A server that has no handshake says so in one of these ways.
bool HasNoHandshake(const RpcError& error) {
  return error.code == kMethodNotFound || error.code == kInvalidRequest ||
         error.code == kInvalidParams || error.code == kUnsupportedVersion;
}

}  // namespace

Task<Result<std::shared_ptr<Client>>> Client::Connect(std::shared_ptr<Transport> transport,
                                                      JsonWork work, std::string version,
                                                      TimePoint deadline) {
  const std::shared_ptr<Client> client(new Client(std::move(transport), work));
  Task<Status> agreeing = client->Agree(std::move(version), deadline);
  const Status agreed = co_await std::move(agreeing);
  if (!agreed.ok()) co_return agreed;
  Task<Status> listing = client->ListTools(deadline);
  const Status listed = co_await std::move(listing);
  if (!listed.ok()) co_return listed;
  co_return client;
}

Task<Status> Client::Agree(std::string version, TimePoint deadline) {
  const auto use = [this](std::string agreed) {
    version_ = std::move(agreed);
    transport_->UseVersion(version_);
  };
  if (version == kStateless) {
    use(std::move(version));
    co_return OkStatus();
  }
  Json params = InitializeParams(version.empty() ? kNewest : std::string_view(version));
  Task<Result<Reply>> asking = transport_->Request("initialize", std::move(params), 0, deadline);
  const Result<Reply> reply = co_await std::move(asking);
  if (!reply.ok()) co_return reply.status().WithContext("initialize");
  if (reply->error) {
    if (!version.empty() || !HasNoHandshake(*reply->error)) {
      co_return Failed("to initialize", *reply->error);
    }
    use(std::string(kStateless));
    co_return OkStatus();
  }
  const auto spoken = reply->result.find("protocolVersion");
  if (spoken == reply->result.end() || !spoken->is_string()) {
    co_return DataLoss("the MCP server answered initialize without a protocolVersion");
  }
  const auto theirs = spoken->get<std::string>();
  if (!KnownVersion(theirs) || theirs == kStateless || (!version.empty() && theirs != version)) {
    co_return Unimplemented(fmt::format(
        "the MCP server speaks version '{}', which is not {}", theirs,
        version.empty() ? "known here" : fmt::format("the '{}' that was asked for", version)));
  }
  use(theirs);
  Task<Status> telling = transport_->Notify("notifications/initialized", Json::object(), deadline);
  const Status told = co_await std::move(telling);
  co_return told;
}

Task<Result<Reply>> Client::Ask(std::string method, Json params, size_t params_bytes,
                                TimePoint deadline) {
  if (version_ == kStateless) params["_meta"] = StatelessMeta();
  Task<Result<Reply>> asking =
      transport_->Request(std::move(method), std::move(params), params_bytes, deadline);
  Result<Reply> reply = co_await std::move(asking);
  co_return reply;
}

Task<Status> Client::ListTools(TimePoint deadline) {
  std::string cursor;
  for (int page = 0; page < kPagesMax; ++page) {
    Json params = Json::object();
    if (!cursor.empty()) params["cursor"] = cursor;
    Task<Result<Reply>> asking = Ask("tools/list", std::move(params), 0, deadline);
    Result<Reply> reply = co_await std::move(asking);
    if (!reply.ok()) co_return reply.status().WithContext("tools/list");
    if (reply->error) co_return Failed("to list its tools", *reply->error);
    const size_t bytes = reply->bytes;
    Task<Result<Page>> reading =
        work_.Run(bytes, deadline, [reply = std::make_shared<Reply>(std::move(*reply))] {
          Page read;
          const Status added = AddTools(reply->result, &read.tools, &read.cursor);
          return added.ok() ? Result<Page>(std::move(read)) : Result<Page>(added);
        });
    Result<Page> read = co_await std::move(reading);
    if (!read.ok()) co_return read.status();
    std::move(read->tools.begin(), read->tools.end(), std::back_inserter(tools_));
    if (tools_.size() > kMcpToolsMax) {
      co_return DataLoss(fmt::format("the MCP server has more than {} tools", kMcpToolsMax));
    }
    cursor = std::move(read->cursor);
    if (cursor.empty()) co_return OkStatus();
  }
  co_return DataLoss("the MCP server's list of tools does not end");
}

Task<Result<ToolResult>> Client::Call(std::shared_ptr<Client> self, ToolCall call,
                                      TimePoint deadline) {
  const auto what = std::make_shared<const ToolCall>(std::move(call));
  const size_t sent_bytes = what->arguments.size();
  Task<Result<Json>> writing = self->work_.Run(sent_bytes, deadline, [what]() -> Result<Json> {
    Json arguments = Json::parse(what->arguments, nullptr, /*allow_exceptions=*/false);
    if (!arguments.is_object()) return InvalidArgument("the arguments are not a JSON object");
    return Json{{"name", what->name}, {"arguments", std::move(arguments)}};
  });
  Result<Json> params = co_await std::move(writing);
  if (params.status().code() == StatusCode::kInvalidArgument) {
    co_return ToolResult{.text = params.status().message(), .error = true};
  }
  if (!params.ok()) co_return params.status();
  Task<Result<Reply>> asking = self->Ask("tools/call", std::move(*params), sent_bytes, deadline);
  Result<Reply> reply = co_await std::move(asking);
  if (!reply.ok()) co_return reply.status().WithContext("tool '" + what->name + "'");
  const size_t bytes = reply->bytes;
  Task<Result<ToolResult>> reading = self->work_.Run(
      bytes, deadline, [what, got = std::make_shared<const Reply>(std::move(*reply))] {
        return ToToolResult(*what, *got);
      });
  Result<ToolResult> result = co_await std::move(reading);
  co_return result;
}

}  // namespace forebay::env::mcp
