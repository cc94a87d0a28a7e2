#include "forebay/rollout/serving/plain_tools.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/env/tools.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToolsText(std::string_view tools_json) {
  std::vector<env::ToolSpec> specs;
  for (const Json& tool : Json::parse(tools_json)) {
    const Json& function = tool["function"];
    const Json description = function.value("description", Json());
    env::ToolSpec spec{
        .name = function["name"].get<std::string>(),
        .description = description.is_string() ? description.get<std::string>() : std::string()};
    if (const auto it = function.find("parameters"); it != function.end() && it->is_object()) {
      spec.parameters = Text(*it);
    }
    specs.push_back(std::move(spec));
  }
  return env::ToolsPrompt(specs);
}

std::string CallText(const Json& call) {
  const Json& function = call["function"];
  const Json& arguments = function["arguments"];
  return fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
                     Text(function["name"]),
                     arguments.is_string() ? arguments.get<std::string>() : Text(arguments));
}

bool IsResult(const Json& message) { return message["role"] == "tool"; }
bool HasCalls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && !calls->empty();
}

}  // namespace

std::string WithPlainTools(std::string_view messages_json, std::string_view tools_json) {
  Json out = Json::array();
  bool after_result = false;
  for (Json& message : Json::parse(messages_json)) {
    const bool result = IsResult(message);
    std::string content = message["content"].get<std::string>();
    if (result) {
      content = fmt::format("<tool_response>\n{}\n</tool_response>", content);
      if (after_result) {
        std::string& before = out.back()["content"].get_ref<std::string&>();
        before += '\n' + content;
        continue;
      }
      message = {{"role", "user"}, {"content", std::move(content)}};
    } else if (HasCalls(message)) {
      for (const Json& call : message["tool_calls"]) {
        if (!content.empty()) content += '\n';
        content += CallText(call);
      }
      message.erase("tool_calls");
      message["content"] = std::move(content);
    }
    after_result = result;
    out.push_back(std::move(message));
  }
  if (!tools_json.empty()) {
    const std::string text = ToolsText(tools_json);
    if (out.front()["role"] == "system") {
      std::string& system = out.front()["content"].get_ref<std::string&>();
      system += (system.empty() ? "" : "\n\n") + text;
    } else {
      out.insert(out.begin(), Json{{"role", "system"}, {"content", text}});
    }
  }
  return Text(out);
}

bool MentionsTools(std::string_view messages_json, std::string_view tools_json) {
  if (!tools_json.empty()) return true;
  const Json messages = Json::parse(messages_json);
  return std::ranges::any_of(
      messages, [](const Json& message) { return IsResult(message) || HasCalls(message); });
}

}  // namespace forebay::rollout::serving
