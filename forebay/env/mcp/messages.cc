#include "forebay/env/mcp/messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/json_depth.h"
#include "forebay/base/status.h"
#include "forebay/env/json.h"
#include "forebay/env/mcp.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"
#include "forebay/env/tools/text.h"

namespace forebay::env::mcp {
namespace {

constexpr size_t kShownBytes = 200;
constexpr size_t kDescriptionBytesMax = 16 * 1024;
constexpr size_t kSchemaBytesMax = 64 * 1024;  // more than any prompt has room for
constexpr std::array<std::string_view, 4> kHandshakes = {kNewest, "2025-06-18", "2025-03-26",
                                                         "2024-11-05"};

Status NotMcp(std::string_view why, std::string_view text) {
  return DataLoss(fmt::format("the MCP server sent {}: {}", why, PrintableText(text, kShownBytes)));
}

std::string TextOf(const Json& object, const char* key) {
  const Json* value = Find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

Json ClientInfo() { return {{"name", "forebay"}, {"version", "1"}}; }

// One element of a result's content, as text.
std::string ContentText(const Json& block) {
  const std::string type = TextOf(block, "type");
  if (type == "text") return TextOf(block, "text");
  if (type == "resource") {
    if (const Json* resource = Find(block, "resource")) {
      const std::string text = TextOf(*resource, "text");
      return text.empty() ? fmt::format("[resource {}]", TextOf(*resource, "uri")) : text;
    }
  }
  if (type == "resource_link") return fmt::format("[resource {}]", TextOf(block, "uri"));
  return fmt::format("[{} {}]", type.empty() ? "content" : type, TextOf(block, "mimeType"));
}

}  // namespace

bool KnownVersion(std::string_view version) {
  return version == kStateless || std::ranges::find(kHandshakes, version) != kHandshakes.end();
}

Result<ServerMessage> ParseServerMessage(std::string_view text) {
  if (TooDeep(text)) return NotMcp("JSON that is nested too deep", text);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return NotMcp("something that is no JSON object", text);
  const Json* id = Find(json, "id");
  if (const Json* method = Find(json, "method")) {
    if (!method->is_string()) return NotMcp("a message whose method is no text", text);
    auto name = method->get<std::string>();
    if (id != nullptr) return ServerMessage(RequestMessage{.id = *id, .method = std::move(name)});
    return ServerMessage(NotificationMessage{.method = std::move(name)});
  }
  ReplyMessage message;
  if (const Json* error = Find(json, "error"); error != nullptr && error->is_object()) {
    const Json* code = Find(*error, "code");
    message.reply.error =
        RpcError{.code = code != nullptr && code->is_number_integer() ? code->get<int64_t>() : 0,
                 .message = PrintableText(TextOf(*error, "message"), kDescriptionBytesMax)};
  } else if (const auto result = json.find("result"); result != json.end() && result->is_object()) {
    message.reply.result = std::move(*result);
  } else {
    return NotMcp("a message that is no request, result or error", text);
  }
  // An error may lack the id of a request that the server could not read.
  if (id == nullptr || !id->is_number_integer()) {
    return NotMcp("an answer without the number of its request", text);
  }
  message.id = id->get<int64_t>();
  message.reply.bytes = text.size();
  return ServerMessage(std::move(message));
}

std::string RequestText(int64_t id, std::string_view method, const Json& params) {
  return Dump({{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", params}});
}

std::string NotificationText(std::string_view method, const Json& params) {
  Json message = {{"jsonrpc", "2.0"}, {"method", method}};
  if (!params.empty()) message["params"] = params;
  return Dump(message);
}

std::string AnswerText(const RequestMessage& request) {
  Json message = {{"jsonrpc", "2.0"}, {"id", request.id}};
  if (request.method == "ping") {
    message["result"] = Json::object();
  } else {
    message["error"] = {{"code", kMethodNotFound}, {"message", "Method not found"}};
  }
  return Dump(message);
}

Json StatelessMeta() {
  return {{"io.modelcontextprotocol/protocolVersion", kStateless},
          {"io.modelcontextprotocol/clientInfo", ClientInfo()},
          {"io.modelcontextprotocol/clientCapabilities", Json::object()}};
}

Json InitializeParams(std::string_view version) {
  return {
      {"protocolVersion", version}, {"capabilities", Json::object()}, {"clientInfo", ClientInfo()}};
}

Status AddTools(const Json& result, std::vector<ToolSpec>* tools, std::string* cursor) {
  const Json* list = Find(result, "tools");
  if (list == nullptr || !list->is_array()) {
    return NotMcp("a list of tools without \"tools\"", Dump(result).substr(0, kShownBytes));
  }
  for (const Json& tool : *list) {
    ToolSpec spec{.name = TextOf(tool, "name"),
                  .description = PrintableText(TextOf(tool, "description"), kDescriptionBytesMax)};
    if (spec.name.empty() || spec.name.size() > kToolNameBytesMax) {
      return NotMcp("a tool whose name is missing or too long", Dump(tool).substr(0, kShownBytes));
    }
    if (const Json* schema = Find(tool, "inputSchema"); schema != nullptr && schema->is_object()) {
      spec.parameters = Dump(*schema);
      if (spec.parameters.size() > kSchemaBytesMax) {
        return DataLoss(fmt::format(
            "the MCP server's tool '{}' has an inputSchema of {} bytes; at most {} are possible",
            PrintableText(spec.name, kToolNameBytesMax), spec.parameters.size(), kSchemaBytesMax));
      }
    }
    tools->push_back(std::move(spec));
    if (tools->size() > kMcpToolsMax) {
      return DataLoss(fmt::format("the MCP server has more than {} tools", kMcpToolsMax));
    }
  }
  *cursor = TextOf(result, "nextCursor");
  return OkStatus();
}

Result<ToolResult> ToToolResult(const ToolCall& call, const Reply& reply) {
  if (reply.error) {
    if (reply.error->code == kInvalidParams) {
      return ToolResult{.text = reply.error->message, .error = true};
    }
    return Internal(fmt::format("the MCP server failed to call '{}': {} (code {})", call.name,
                                reply.error->message, reply.error->code));
  }
  if (TextOf(reply.result, "resultType") == "input_required") {
    return ToolResult{.text = "the tool asks for something that nobody here can answer",
                      .error = true};
  }
  ToolResult result;
  if (const Json* error = Find(reply.result, "isError")) {
    result.error = error->is_boolean() && error->get<bool>();
  }
  const Json* content = Find(reply.result, "content");
  if (content != nullptr && content->is_array()) {
    for (const Json& block : *content) {
      if (!result.text.empty()) result.text += "\n";
      result.text += ContentText(block);
    }
  }
  const Json* structured = Find(reply.result, "structuredContent");
  if (result.text.empty() && structured != nullptr) result.text = Dump(*structured);
  return result;
}

}  // namespace forebay::env::mcp
