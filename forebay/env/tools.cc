#include "forebay/env/tools.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "forebay/env/json.h"

namespace forebay::env {
namespace {

using Json = nlohmann::ordered_json;

Json Described(const ToolSpec& tool) {
  Json parameters = Json::parse(tool.parameters, nullptr, /*allow_exceptions=*/false);
  if (!parameters.is_object()) parameters = Json{{"type", "object"}};
  Json function = {{"name", tool.name}, {"description", tool.description}};
  function["parameters"] = std::move(parameters);
  return {{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace

std::string ToolsJson(std::span<const ToolSpec> tools) {
  Json list = Json::array();
  for (const ToolSpec& tool : tools) list.push_back(Described(tool));
  return Dump(list);
}

std::string ToolsPrompt(std::span<const ToolSpec> tools) {
  std::string lines;
  for (const ToolSpec& tool : tools) lines += Dump(Described(tool)) + "\n";
  return fmt::format(
      "You may call these tools:\n"
      "<tools>\n{}</tools>\n"
      "To call one, write its name and arguments as JSON:\n"
      "<tool_call>\n"
      R"({{"name": <name of the tool>, "arguments": <object of arguments>}})"
      "\n</tool_call>\n"
      "What it answers comes back between <tool_response> tags.",
      lines);
}

}  // namespace forebay::env
