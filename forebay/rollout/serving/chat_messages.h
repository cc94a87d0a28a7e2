// The messages and tools of a chat request, in the form that chat templates take.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/field_reader.h"

namespace forebay::rollout::serving {

inline constexpr size_t kMessagesMax = 16384;
inline constexpr size_t kToolsMax = 512;

// "messages" into out->messages_json: contents become texts (parts are joined, null is ""), the
// role developer becomes system, the arguments of tool calls become objects.
void ReadMessages(FieldReader& fields, ApiRequest* out);
// "tools" and "tool_choice" into tools_json, tool_names, tool_calls and forced_tool; after what
// says how the prompt ends.
void ReadTools(const nlohmann::ordered_json& object, FieldReader& fields, ApiRequest* out);

}  // namespace forebay::rollout::serving
