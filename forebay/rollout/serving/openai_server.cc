// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/openai_server.h"

#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/completion.h"
#include "forebay/rollout/serving/routes.h"
#include "forebay/rollout/weights_endpoint.h"

namespace forebay::rollout {
namespace {

using serving::ApiError;
using serving::CompletionEnd;
using serving::Route;

class Server final : public OpenAiServer {
 public:
  Server(Loop& loop, const ServedModel& model, const OpenAiServerOptions& options)
      : loop_(loop), model_(model), options_(options), ids_(options.seed) {}

  Status Listen() {
    std::function<bool(const HttpRequest&)> authorize;
    if (!options_.token.empty()) {
      authorize = [this](const HttpRequest& request) {
        return SecretsEqual(request.bearer(), options_.token);
      };
    }
    HttpServerOptions http = serving::HttpOptions(options_.listen, options_.certificate_file,
                                                  options_.key_file, std::move(authorize));
    http.allowed_hosts = options_.allowed_hosts;
    FB_ASSIGN_OR_RETURN(
        http_, HttpServer::Start(loop_, std::move(http),
                                 [this](HttpExchange& exchange) { return Handle(exchange); }));
    return OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return http_->addresses(); }
  OpenAiServerStats stats() const override {
    OpenAiServerStats out = stats_;
    const HttpServerStats http = http_->stats();
    out.refused += http.refused;
    out.connections = http.connections;
    return out;
  }
  Task<void> Stop(TimePoint deadline) override { return http_->Stop(deadline); }

 private:
  // Whether the publisher that the request is for is the one whose weights answer it.
  bool Admit(const HttpRequest& request, std::shared_ptr<void>* admission, ApiError* error) {
    if (options_.weights == nullptr) {
      if (!request.headers.Get("forebay-publisher")) return true;
      *error =
          serving::HttpError(404, "this server takes no weights: start it with --take-weights");
      return false;
    }
    Result<std::shared_ptr<void>> admitted = options_.weights->Admit(request);
    if (admitted.ok()) {
      *admission = std::move(*admitted);
      return true;
    }
    const bool restarted = admitted.status().code() == StatusCode::kUnavailable;
    *error = serving::HttpError(restarted ? 410 : 409, admitted.status().message());
    return false;
  }

  Task<void> Handle(HttpExchange& exchange) {
    ++stats_.requests;
    ApiError error;
    const std::optional<Route> route = serving::FindRoute(exchange.request(), &error);
    CompletionEnd end;
    std::optional<std::string> json;
    std::shared_ptr<void> admission;  // held until it is answered
    bool piece = false;               // of weights, of which a new version has many
    if (options_.weights != nullptr && options_.weights->Owns(exchange.request())) {
      piece = !exchange.request().path().ends_with("/commit");
      Task<int> taking = options_.weights->Handle(exchange);
      end.status = co_await std::move(taking);
    } else if (!route || (route->kind == Route::Kind::kGenerate &&
                          !Admit(exchange.request(), &admission, &error))) {
      end.status = error.status;
    } else if (route->kind == Route::Kind::kGenerate) {
      const std::string id = ids_.Next();
      const serving::CompletionDeps deps{
          .loop = &loop_,
          .workers = options_.workers,
          .model = &model_,
          .request_deadline = options_.request_deadline,
          .stalled_reader_deadline = options_.stalled_reader_deadline,
          .id = id,
          .seed = DeriveSeed(options_.seed, ++seeds_)};
      Task<CompletionEnd> completing = serving::Complete(deps, exchange, route->api);
      end = co_await std::move(completing);
    } else if (route->kind == Route::Kind::kModels) {
      // short: one card.
      json = serving::ModelsJson(model_, *route, &error);
      if (!json) end.status = error.status;
    } else {
      json = "{\"status\": \"ok\"}";
    }
    if (json) {
      Task<void> responding = serving::RespondJson(exchange, std::move(*json));
      co_await std::move(responding);
    } else if (!exchange.begun() && !end.cancelled) {
      Task<void> responding = serving::RespondError(exchange, std::move(error));
      co_await std::move(responding);
    }
    if (end.cancelled) ++stats_.cancelled;
    if (!end.cancelled && end.status >= 400) ++stats_.refused;
    if (options_.log && (!piece || end.status >= 400)) {
      options_.log(fmt::format("{} {} {}", exchange.request().method,
                               exchange.request().path().substr(0, 200), end.status));
    }
  }

  Loop& loop_;
  const ServedModel model_;
  const OpenAiServerOptions options_;
  serving::RequestIds ids_;
  uint64_t seeds_ = 0;
  OpenAiServerStats stats_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<OpenAiServer>> OpenAiServer::Start(Loop& loop, const ServedModel& model,
                                                          const OpenAiServerOptions& options) {
  FB_CHECK(model.engine != nullptr && model.tokenizer != nullptr, "a model to serve");
  auto server = std::make_unique<Server>(loop, model, options);
  FB_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<OpenAiServer>(std::move(server));
}

}  // namespace forebay::rollout
