#include "forebay/env/mcp/client.h"

#include <fmt/core.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env::mcp {
namespace {

constexpr int kPagesMax = 64;  // of the list of tools

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
                                                      std::string version, TimePoint deadline) {
  const std::shared_ptr<Client> client(new Client(std::move(transport)));
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
  Task<Result<Reply>> asking = transport_->Request("initialize", std::move(params), deadline);
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

Task<Result<Reply>> Client::Ask(std::string method, Json params, TimePoint deadline) {
  if (version_ == kStateless) params["_meta"] = StatelessMeta();
  Task<Result<Reply>> asking = transport_->Request(std::move(method), std::move(params), deadline);
  Result<Reply> reply = co_await std::move(asking);
  co_return reply;
}

Task<Status> Client::ListTools(TimePoint deadline) {
  std::string cursor;
  for (int page = 0; page < kPagesMax; ++page) {
    Json params = Json::object();
    if (!cursor.empty()) params["cursor"] = cursor;
    Task<Result<Reply>> asking = Ask("tools/list", std::move(params), deadline);
    const Result<Reply> reply = co_await std::move(asking);
    if (!reply.ok()) co_return reply.status().WithContext("tools/list");
    if (reply->error) co_return Failed("to list its tools", *reply->error);
    const Status added = AddTools(reply->result, &tools_, &cursor);
    if (!added.ok() || cursor.empty()) co_return added;
  }
  co_return DataLoss("the MCP server's list of tools does not end");
}

Task<Result<ToolResult>> Client::Call(std::shared_ptr<Client> self, ToolCall call,
                                      TimePoint deadline) {
  const Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) {
    co_return ToolResult{.text = "the arguments are not a JSON object", .error = true};
  }
  Json params = {{"name", call.name}, {"arguments", arguments}};
  Task<Result<Reply>> asking = self->Ask("tools/call", std::move(params), deadline);
  const Result<Reply> reply = co_await std::move(asking);
  if (!reply.ok()) co_return reply.status().WithContext("tool '" + call.name + "'");
  co_return ToToolResult(call, *reply);
}

}  // namespace forebay::env::mcp
