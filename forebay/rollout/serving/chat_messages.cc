#include "forebay/rollout/serving/chat_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/bounded_json.h"
#include "forebay/rollout/serving/field_reader.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

// A text, or what is wrong with it.
struct Text {
  std::string text, problem;
};

Text ContentOf(const Json& message) {
  const auto it = message.find("content");
  if (it == message.end() || it->is_null()) return {};
  if (it->is_string()) return {.text = it->get<std::string>()};
  if (!it->is_array()) return {.problem = "its 'content' must be a text or a list of parts"};
  Text out;
  for (const Json& part : *it) {
    const Json type = part.is_object() ? part.value("type", Json()) : Json();
    const char* key = type == "refusal" ? "refusal" : "text";
    if ((type != "text" && type != "refusal") || !part.contains(key) || !part[key].is_string()) {
      return {.problem = fmt::format(
                  "the parts of its 'content' must be of type \"text\" with a text, not {}",
                  Excerpt(part))};
    }
    if (!out.text.empty()) out.text += '\n';
    out.text += part[key].get_ref<const std::string&>();
  }
  return out;
}

// One call of an assistant's message; null: it is not one.
Json CallOf(const Json& call) {
  if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) return {};
  const Json& function = call["function"];
  if (!function.contains("name") || !function["name"].is_string()) return {};
  Json arguments = function.value("arguments", Json::object());
  if (arguments.is_string()) {
    // Templates write the arguments of a call as JSON: a string would be quoted twice.
    std::optional<Json> parsed = ParseBounded(arguments.get_ref<const std::string&>());
    if (parsed && parsed->is_object()) {
      arguments = std::move(*parsed);
    } else if (arguments == "") {
      arguments = Json::object();
    }
  }
  Json out;
  if (call.contains("id") && call["id"].is_string()) out["id"] = call["id"];
  out["type"] = "function";
  out["function"] = {{"name", function["name"]}, {"arguments", std::move(arguments)}};
  return out;
}

// "auto", "none", "required" or {"type": "function", "function": {"name": "f"}}
void ReadToolChoice(const Json& choice, FieldReader& fields, ApiRequest* out) {
  if (choice.is_null() || choice == "auto") return;
  if (choice == "none") {
    out->tool_calls = false;
    return;
  }
  const Json function = choice.is_object() && choice.value("type", Json()) == "function"
                            ? choice.value("function", Json())
                            : Json();
  const Json name = function.is_object() ? function.value("name", Json()) : Json();
  if (choice != "required" && !name.is_string()) {
    return fields.Fail("tool_choice",
                       "'tool_choice' must be \"auto\", \"none\", \"required\" or {\"type\": "
                       "\"function\", \"function\": {\"name\": ...}}, not " +
                           Excerpt(choice));
  }
  if (out->tool_names.empty()) {
    return fields.Fail("tool_choice", "'tool_choice' asks for a call, and there are no 'tools'");
  }
  if (choice == "required") {
    out->forced_tool = out->tool_names.size() == 1 ? out->tool_names.front() : std::string();
  } else if (std::ranges::find(out->tool_names, name.get<std::string>()) == out->tool_names.end()) {
    return fields.Fail(
        "tool_choice",
        fmt::format("'tool_choice' names {}, which is none of the 'tools'", Excerpt(name)));
  } else {
    out->forced_tool = name.get<std::string>();
  }
  if (out->continue_final_message || !out->add_generation_prompt) {
    fields.Fail("tool_choice",
                "'tool_choice' begins the answer, so it needs 'add_generation_prompt' and excludes "
                "'continue_final_message'");
  }
}

}  // namespace

void ReadMessages(FieldReader& fields, ApiRequest* out) {
  const Json* messages = fields.Get("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMessagesMax) {
    return fields.Fail("messages",
                       fmt::format("'messages' must be a list of 1 to {} messages", kMessagesMax));
  }
  Json list = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const auto fail = [&](const std::string& problem) {
      fields.Fail("messages", fmt::format("message {}: {}", i, problem));
    };
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
        message["role"].get_ref<const std::string&>().size() > 64) {
      return fail("it must be an object with a 'role' and a 'content'");
    }
    Text content = ContentOf(message);
    if (!content.problem.empty()) return fail(content.problem);
    Json clean;
    // Templates know no developer, which is what OpenAI calls the system since.
    clean["role"] = message["role"] == "developer" ? Json("system") : message["role"];
    clean["content"] = std::move(content.text);
    for (const char* key : {"name", "tool_call_id", "reasoning_content"}) {
      if (message.contains(key) && message[key].is_string()) clean[key] = message[key];
    }
    if (const auto calls = message.find("tool_calls");
        calls != message.end() && !calls->is_null() && !calls->empty()) {
      if (!calls->is_array()) return fail("its 'tool_calls' must be a list");
      for (const Json& call : *calls) {
        Json clean_call = CallOf(call);
        if (clean_call.is_null()) {
          return fail("each of its 'tool_calls' must have a 'function' with a 'name'");
        }
        clean["tool_calls"].push_back(std::move(clean_call));
      }
    }
    list.push_back(std::move(clean));
  }
  out->messages_json = list.dump();
}

void ReadTools(const Json& object, FieldReader& fields, ApiRequest* out) {
  const Json* tools = fields.Get("tools");
  if (tools != nullptr && !tools->is_array()) {
    return fields.Fail("tools", "'tools' must be a list");
  }
  const bool any = tools != nullptr && !tools->empty();
  if (any) {
    if (tools->size() > kToolsMax) {
      return fields.Fail("tools", fmt::format("'tools' has more than {} tools", kToolsMax));
    }
    for (const Json& tool : *tools) {
      const bool good = tool.is_object() && tool.value("type", Json()) == "function" &&
                        tool.contains("function") && tool["function"].is_object() &&
                        tool["function"].contains("name") && tool["function"]["name"].is_string();
      if (!good) {
        return fields.Fail(
            "tools",
            "each tool must be {\"type\": \"function\", \"function\": {\"name\": ...}}, "
            "not " +
                Excerpt(tool));
      }
    }
    out->tools_json = tools->dump();
    for (const Json& tool : *tools) {
      out->tool_names.push_back(tool["function"]["name"].get<std::string>());
    }
  }
  out->tool_calls = any;
  ReadToolChoice(object.value("tool_choice", Json()), fields, out);
}

}  // namespace forebay::rollout::serving
