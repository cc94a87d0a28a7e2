#include "forebay/rollout/serving/begun_call.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/env/tool_calls.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/chat_render.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

// A call that no template has reason to change, to see how this one writes it.
constexpr std::string_view kName = "nameofthecall";
constexpr std::string_view kMessages =
    R"([{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": )"
    R"([{"id": "call00001", "type": "function", "function": )"
    R"({"name": "nameofthecall", "arguments": {"x": 1}}}]}])";
// Between the mark of a call and its name.
constexpr size_t kOpeningBytesMax = 200;

// A call in parts: what stands before its name (with the opening quote) and between its name and
// its arguments.
struct WrittenCall {
  std::string before, between;
};

std::optional<WrittenCall> HowCallsAreWritten(std::string_view rendered) {
  const size_t name = rendered.rfind('"' + std::string(kName) + '"');
  if (name == std::string_view::npos) return std::nullopt;
  const std::string_view head = rendered.substr(0, name);
  size_t begin = std::string_view::npos;
  for (const std::string_view mark : {"<tool_call>", "<|python_tag|>", "```", "\n{", "\n[", ">{"}) {
    const size_t at = head.rfind(mark);
    if (at == std::string_view::npos || name - at > kOpeningBytesMax) continue;
    // Of a bare object, the mark's first character is what stands before it.
    begin = at + (mark.size() == 2 ? 1 : 0);
    break;
  }
  if (begin == std::string_view::npos) return std::nullopt;
  const env::ToolAnswer read = env::ParseToolAnswer(rendered.substr(begin));
  if (read.calls.size() != 1 || read.calls.front().name != kName ||
      Json::parse(read.calls.front().arguments) != Json{{"x", 1}}) {
    return std::nullopt;
  }
  const size_t after = name + kName.size() + 1;
  const size_t arguments = rendered.find('{', after);
  if (arguments == std::string_view::npos) return std::nullopt;
  std::string_view between = rendered.substr(after, arguments - after);
  // A space in front of the arguments belongs to the token that begins them.
  while (between.ends_with(' ')) between.remove_suffix(1);
  return WrittenCall{.before = std::string(rendered.substr(begin, name + 1 - begin)),
                     .between = std::string(between)};
}

// As JSON writes it between quotes.
std::string Quoted(const std::string& name) {
  const std::string quoted = Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

std::optional<ApiError> BeginCall(const ServedModel& model, ApiRequest* request) {
  if (!request->forced_tool || model.chat == nullptr) return std::nullopt;
  const Result<std::string> rendered =
      RenderChat(model, {.messages_json = kMessages,
                         .tools_json = request->tools_json,
                         .variables_json = request->template_variables_json,
                         .add_generation_prompt = false});
  const std::optional<WrittenCall> written =
      rendered.ok() ? HowCallsAreWritten(*rendered) : std::nullopt;
  if (!written) {
    return ApiError{
        .message =
            "a call cannot be forced: the chat template of this model does not write calls "
            "in a form that is understood here; use \"tool_choice\": \"auto\"",
        .param = "tool_choice"};
  }
  request->begun_call = written->before;
  if (!request->forced_tool->empty()) {
    request->begun_call += Quoted(*request->forced_tool) + written->between;
  }
  return std::nullopt;
}

}  // namespace forebay::rollout::serving
