// ApiError: why a request to the OpenAI endpoints was refused, in their form.
#pragma once

#include <string>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::rollout::serving {

struct ApiError {
  int status = 400;  // of HTTP
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field that is wrong; "" if it is none
  std::string code;   // "model_not_found"; "" if there is none
};

// {"error": {"message", "type", "param", "code"}}
std::string ErrorJson(const ApiError& error);

// What the engine reports, for whoever asked.
ApiError EngineError(const Status& status);
// 400, 401, ... as the HTTP server finds them.
ApiError HttpError(int status, std::string_view message);

}  // namespace forebay::rollout::serving
