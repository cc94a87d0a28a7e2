// The messages of MCP as far as tools need them. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env::mcp {

using Json = nlohmann::json;

inline constexpr std::string_view kNewest = "2025-11-25";     // with a handshake
inline constexpr std::string_view kStateless = "2026-07-28";  // without
bool KnownVersion(std::string_view version);

struct RpcError {
  int64_t code = 0;
  std::string message;
};

// Codes of JSON-RPC and MCP that mean something to us.
inline constexpr int64_t kMethodNotFound = -32601;
inline constexpr int64_t kInvalidParams = -32602;
inline constexpr int64_t kInvalidRequest = -32600;
inline constexpr int64_t kUnsupportedVersion = -32022;

// Of a request of ours.
struct Reply {
  Json result;                    // an object
  std::optional<RpcError> error;  // then there is no result
  size_t bytes = 0;               // of the message it came in
};

// What a server sends.
struct ReplyMessage {
  int64_t id = 0;
  Reply reply;
};
struct RequestMessage {  // the server asks us
  Json id;
  std::string method;
};
struct NotificationMessage {
  std::string method;
};
using ServerMessage = std::variant<ReplyMessage, RequestMessage, NotificationMessage>;

// kDataLoss: not one JSON-RPC message, with what is wrong and how it begins.
Result<ServerMessage> ParseServerMessage(std::string_view text);

// Without newlines. Bytes that are not UTF-8 become U+FFFD.
std::string RequestText(int64_t id, std::string_view method, const Json& params);
std::string NotificationText(std::string_view method, const Json& params);
// Our answer to a request of the server: pings are answered, the rest is not supported.
std::string AnswerText(const RequestMessage& request);

// "_meta" of a request without handshake.
Json StatelessMeta();
Json InitializeParams(std::string_view version);

// One page of tools/list. kDataLoss. `cursor` is that of the next page, "" at the last.
Status AddTools(const Json& result, std::vector<ToolSpec>* tools, std::string* cursor);
// The result of tools/call, or its error.
Result<ToolResult> ToToolResult(const ToolCall& call, const Reply& reply);

}  // namespace forebay::env::mcp
