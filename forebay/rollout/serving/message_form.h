// Messages in a form in which a harness's quote of an answer equals the answer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "forebay/env/tool_calls.h"

namespace forebay::rollout::serving {

// Each message of a checked request (ApiRequest::messages_json). White space around contents does
// not count, nor do names of fields that say nothing, nor the ids of an assistant's tool calls.
std::vector<std::string> MessageForms(std::string_view messages_json);

// What MessageForms makes of an assistant's message with this text and these calls.
std::string AnswerForm(std::string_view text, const std::vector<env::ToolCall>& calls);

// The messages with those at `places` as plain assistant turns of these contents.
std::string WithPlaceholders(std::string_view messages_json, const std::vector<size_t>& places,
                             const std::vector<std::string>& contents);

}  // namespace forebay::rollout::serving
