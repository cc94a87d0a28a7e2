// BeginCall: the tool call that a client forces is begun for the model.
#pragma once

#include <optional>

#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"

namespace forebay::rollout::serving {

// Fills in begun_call if the request forces a call: what the chat template itself writes of a call
// in front of its arguments, or in front of its name where the model may choose. What the model
// writes then is not constrained. An error if the template does not write calls in a form that
// env/tool_calls.h reads.
std::optional<ApiError> BeginCall(const ServedModel& model, ApiRequest* request);

}  // namespace forebay::rollout::serving
