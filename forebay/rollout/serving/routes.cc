// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/serving/routes.h"

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

struct Path {
  std::string_view path, method;
  Route::Kind kind;
  ApiKind api = ApiKind::kChat;
};

constexpr std::array kPaths = {
    Path{"/v1/chat/completions", "POST", Route::Kind::kGenerate, ApiKind::kChat},
    Path{"/v1/completions", "POST", Route::Kind::kGenerate, ApiKind::kCompletion},
    Path{"/inference/v1/generate", "POST", Route::Kind::kGenerate, ApiKind::kTokens},
    Path{"/v1/models", "GET", Route::Kind::kModels},
    Path{"/health", "GET", Route::Kind::kHealth},
};

}  // namespace

HttpServerOptions HttpOptions(std::vector<std::string> listen, std::string certificate_file,
                              std::string key_file,
                              std::function<bool(const HttpRequest&)> authorize) {
  HttpServerOptions out;
  out.listen = std::move(listen);
  out.certificate_file = std::move(certificate_file);
  out.key_file = std::move(key_file);
  if (authorize) {
    out.authorize = [authorize = std::move(authorize)](const HttpRequest& request) {
      return request.path() == "/health" || authorize(request);
    };
  }
  out.error_content_type = "application/json";
  out.error_body = [](int status, std::string_view message) {
    ApiError error = HttpError(status, message);
    if (status == 403) error.message += "; 'forebay serve --allowed-host NAME' allows a name";
    // short: a message.
    return ErrorJson(error);
  };
  return out;
}

std::optional<Route> FindRoute(const HttpRequest& request, ApiError* error) {
  std::string_view path = request.path();
  Route route;
  constexpr std::string_view kModel = "/v1/models/";
  if (path.starts_with(kModel) && path.size() > kModel.size()) {
    route.model = path.substr(kModel.size());
    path = "/v1/models";
  }
  for (const Path& known : kPaths) {
    if (known.path != path) continue;
    const bool head = known.method == "GET" && request.method == "HEAD";
    if (known.method != request.method && !head) {
      *error = {.status = 405,
                .message = fmt::format("{} takes {} only", known.path, known.method)};
      return std::nullopt;
    }
    route.kind = known.kind;
    route.api = known.api;
    return route;
  }
  *error = {.status = 404,
            .message = fmt::format("there is nothing at '{}'; a base URL ends with /v1",
                                   path.substr(0, 200)),
            .code = "not_found"};
  return std::nullopt;
}

std::optional<std::string> ModelsJson(const ServedModel& model, const Route& route,
                                      ApiError* error) {
  const Json card = {{"id", model.name},
                     {"object", "model"},
                     {"created", 0},
                     {"owned_by", "forebay"},
                     {"max_model_len", model.engine->context_max()},
                     {"policy_version", model.engine->policy_version()},
                     {"weights_digest", model.engine->weights_digest()}};
  if (route.model.empty()) return Json({{"object", "list"}, {"data", {card}}}).dump();
  if (route.model == model.name) return card.dump();
  *error = {.status = 404,
            .message = fmt::format("the model '{}' is not served here: this is '{}'",
                                   route.model.substr(0, 100), model.name),
            .code = "model_not_found"};
  return std::nullopt;
}

Task<void> RespondJson(HttpExchange& exchange, std::string json) {
  HttpResponse response{.headers = {{"Content-Type", "application/json"}}, .body = std::move(json)};
  Task<Status> responding = exchange.Respond(std::move(response));
  const Status ignored = co_await std::move(responding);
  static_cast<void>(ignored);
}

std::string RequestIds::Next() {
  ++count_;
  return fmt::format("{:016x}{:08x}", DeriveSeed(seed_, count_), static_cast<uint32_t>(count_));
}

}  // namespace forebay::rollout::serving
