// The JSON of tool calls. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "forebay/env/tool_calls.h"

namespace forebay::env {

struct ParsedCalls {
  std::vector<ToolCall> calls;
  std::string reason;  // why there is none, a sentence for the model; "" if all is well
};

// One call, a list of calls, or several of these separated by white space, commas or semicolons.
// All of them must be calls, with arguments if `arguments_needed`.
ParsedCalls ParseCallJson(std::string_view text, bool arguments_needed);

// It has the keys of a call, whatever else is wrong with it.
bool LooksLikeCall(std::string_view text);

}  // namespace forebay::env
