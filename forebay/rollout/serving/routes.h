// The endpoints' paths, shared by the server and the recording proxy.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/task.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"

namespace forebay::rollout::serving {

struct Route {
  enum class Kind { kGenerate, kModels, kHealth };
  Kind kind = Kind::kHealth;
  ApiKind api = ApiKind::kChat;  // kGenerate
  std::string model;             // kModels: one model's name, or "" for the list
};

// Listening there, with errors as JSON. GET /health needs no key where `authorize`, which may be
// null, asks for one.
HttpServerOptions HttpOptions(std::vector<std::string> listen, std::string certificate_file,
                              std::string key_file,
                              std::function<bool(const HttpRequest&)> authorize);

// Where a request goes; nullopt fills `error` (404, 405).
std::optional<Route> FindRoute(const HttpRequest& request, ApiError* error);

// {"object": "list", ...}, or one model; nullopt fills `error`.
std::optional<std::string> ModelsJson(const ServedModel& model, const Route& route,
                                      ApiError* error);

Task<void> RespondJson(HttpExchange& exchange, std::string json);

// Ids of requests: 24 hexadecimal digits, never the same twice in one process.
class RequestIds {
 public:
  explicit RequestIds(uint64_t seed) : seed_(seed) {}
  std::string Next();

 private:
  const uint64_t seed_;
  uint64_t count_ = 0;
};

}  // namespace forebay::rollout::serving
