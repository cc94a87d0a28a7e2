// Tools for a model whose chat template knows none: as text that every template carries.
#pragma once

#include <string>
#include <string_view>

namespace forebay::rollout::serving {

// The messages of a chat request (a JSON array, as ReadMessages makes them) without anything that
// such a template would drop. In the form of env.tools_prompt = "system", so that a model that was
// trained with tools there knows them here: the tools (a JSON array, or "") in the system message,
// calls between <tool_call> tags, results as messages of the user between <tool_response> tags, one
// message for those that follow each other.
std::string WithPlainTools(std::string_view messages_json, std::string_view tools_json);

// Whether there is anything to change: tools, calls or results.
bool MentionsTools(std::string_view messages_json, std::string_view tools_json);

}  // namespace forebay::rollout::serving
