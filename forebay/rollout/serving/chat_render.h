// RenderChat: a chat request's messages as the prompt's text.
#pragma once

#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/api_request.h"

namespace forebay::rollout::serving {

inline constexpr const char* kNoTemplate =
    "this model has no chat template (a base model): use /v1/completions";

struct ChatText {
  std::string_view messages_json, tools_json;
  std::string_view variables_json;  // of the template: a JSON object, or ""
  bool add_generation_prompt = true;
  // The text ends with the last message's content: what comes after it is for the model to write.
  bool continue_final_message = false;
};

// What a request says of it; the text views of it live as long as the request.
ChatText ChatTextOf(const ApiRequest& request);

// With a template that knows no tools they are written as serving/plain_tools.h does.
// kInvalidArgument: the template's reason.
Result<std::string> RenderChat(const ServedModel& model, const ChatText& chat);

}  // namespace forebay::rollout::serving
