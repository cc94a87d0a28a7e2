#include "forebay/rollout/serving/api_error.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::rollout::serving {

using Json = nlohmann::ordered_json;

std::string ErrorJson(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  const Json out = {{"error",
                     {{"message", error.message},
                      {"type", error.type},
                      {"param", text_or_null(error.param)},
                      {"code", text_or_null(error.code)}}}};
  // The message may quote bytes that are no UTF-8.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiError EngineError(const Status& status) {
  ApiError error{.message = status.message()};
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return error;
    case StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "rate_limit_exceeded";
      return error;
    case StatusCode::kDeadlineExceeded:
      error.status = 504;
      error.type = "timeout_error";
      error.code = "timeout";
      return error;
    case StatusCode::kUnimplemented:
      error.status = 501;
      return error;
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      error.status = 503;
      error.type = "server_error";
      error.code = "unavailable";
      return error;
    default:
      error.status = 500;
      error.type = "server_error";
      return error;
  }
}

ApiError HttpError(int status, std::string_view message) {
  ApiError error{.status = status, .message = std::string(message)};
  if (status == 401) error.code = "invalid_api_key";
  if (status >= 500) error.type = "server_error";
  return error;
}

}  // namespace forebay::rollout::serving
