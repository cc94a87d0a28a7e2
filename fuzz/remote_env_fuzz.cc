// Whatever an MCP or OpenEnv server sends is a message or an error, and what an agent is shown of
// it is bounded.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/env/mcp.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/openenv/messages.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"
#include "forebay/env/tools/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forebay::env;  // NOLINT(google-build-using-namespace)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto message = mcp::ParseServerMessage(text); message.ok()) {
    if (const auto* reply = std::get_if<mcp::ReplyMessage>(&*message)) {
      std::vector<ToolSpec> tools;
      std::string cursor;
      const bool listed = mcp::AddTools(reply->reply.result, &tools, &cursor).ok();
      FB_CHECK(!listed || tools.size() <= kMcpToolsMax);
      if (listed) FB_CHECK(!ToolsJson(tools).empty() && !ToolsPrompt(tools).empty());
      const auto result = mcp::ToToolResult({.name = "f"}, reply->reply);
      if (result.ok()) FB_CHECK(PrintableText(result->text, 1000).size() < 4000);
    } else if (const auto* request = std::get_if<mcp::RequestMessage>(&*message)) {
      FB_CHECK(!mcp::AnswerText(*request).empty());
    }
  }
  if (const auto answer = openenv::ParseAnswer(text, ""); answer.ok() && answer->reward) {
    FB_CHECK(std::isfinite(*answer->reward));
  }
  const auto free = openenv::ActionText({}, text);
  FB_CHECK(free.text.empty() != free.error.empty());
  return 0;
}
