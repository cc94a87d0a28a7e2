#include "forebay/rollout/serving/message_form.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/text.h"
#include "forebay/env/tool_calls.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;
using SortedJson = nlohmann::json;  // keys in order: harnesses write them in any

std::string Form(std::string_view role, std::string_view content, const SortedJson& calls,
                 std::string_view tool_call_id) {
  return SortedJson(
             {{"role", role}, {"content", Trim(content)}, {"calls", calls}, {"id", tool_call_id}})
      .dump(-1, ' ', false, SortedJson::error_handler_t::replace);
}

// The arguments compare as JSON if they are JSON.
SortedJson ArgumentsOf(const SortedJson& arguments) {
  if (!arguments.is_string()) return arguments;
  SortedJson parsed = SortedJson::parse(arguments.get_ref<const std::string&>(), nullptr,
                                        /*allow_exceptions=*/false);
  return parsed.is_discarded() ? arguments : parsed;
}

}  // namespace

std::vector<std::string> MessageForms(std::string_view messages_json) {
  std::vector<std::string> out;
  for (const SortedJson& message : SortedJson::parse(messages_json)) {
    SortedJson calls = SortedJson::array();
    for (const SortedJson& call : message.value("tool_calls", SortedJson::array())) {
      calls.push_back({call["function"]["name"], ArgumentsOf(call["function"]["arguments"])});
    }
    out.push_back(Form(message["role"].get_ref<const std::string&>(),
                       message["content"].get_ref<const std::string&>(), calls,
                       message.value("tool_call_id", "")));
  }
  return out;
}

std::string AnswerForm(std::string_view text, const std::vector<env::ToolCall>& calls) {
  SortedJson list = SortedJson::array();
  for (const env::ToolCall& call : calls) list.push_back({call.name, ArgumentsOf(call.arguments)});
  return Form("assistant", text, list, "");
}

std::string WithPlaceholders(std::string_view messages_json, const std::vector<size_t>& places,
                             const std::vector<std::string>& contents) {
  Json messages = Json::parse(messages_json);
  for (size_t i = 0; i < places.size(); ++i) {
    messages[places[i]] = {{"role", "assistant"}, {"content", contents[i]}};
  }
  return messages.dump();
}

}  // namespace forebay::rollout::serving
