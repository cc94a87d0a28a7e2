// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/recording_proxy.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
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
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/completion.h"
#include "forebay/rollout/serving/episode_record.h"
#include "forebay/rollout/serving/rewards_json.h"
#include "forebay/rollout/serving/routes.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {
namespace {

using serving::ApiError;
using serving::ApiRequest;
using serving::CompletionEnd;
using serving::RecordedPrompt;
using Json = nlohmann::ordered_json;

constexpr std::string_view kEpisodes = "/v1/episodes/";
constexpr std::string_view kReward = "/reward";
enum SeedUse : uint64_t { kSampling = 1 };  // as rollout/episode.cc derives it

// 128 bits that nobody can guess: whoever has the key can write into the episode.
std::string NewKey(int64_t trajectory_id) {
  std::array<unsigned char, 16> bytes{};
  FB_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
           "the kernel gives random bytes");
  std::string out = fmt::format("fb-{}-", trajectory_id);
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

struct Session {
  Session(const ServedModel& model, const Assignment& a, const RecordingOptions& o)
      : assignment(a), options(o), record(model) {}

  const Assignment assignment;
  const RecordingOptions options;
  serving::EpisodeRecord record;
  std::map<std::string, double> rewards;
  std::map<HttpExchange*, std::function<void()>> running;
  int64_t started_us = WallMicros();
  int64_t calls = 0;
  bool out_of_tokens = false, out_of_calls = false;
  bool closed = false;
  Status engine_failure;
};

// What would change the distribution in a way that the loss cannot follow is refused; what is only
// a taste is replaced by the run's.
std::optional<ApiError> AdjustSampling(const Session& session, ApiRequest* request) {
  GenerateRequest& s = request->sampling;
  const char* field = nullptr;
  if (s.repetition_penalty != 1) field = "repetition_penalty";
  if (s.presence_penalty != 0) field = "presence_penalty";
  if (s.frequency_penalty != 0) field = "frequency_penalty";
  if (!s.logit_bias.empty()) field = "logit_bias";
  if (field != nullptr) {
    return ApiError{.message = fmt::format("'{}' changes what is sampled in a way that training "
                                           "cannot follow: leave it out",
                                           field),
                    .param = field};
  }
  s.temperature = session.options.temperature;
  s.top_k = 0;
  s.top_p = 1;
  s.min_p = 0;
  const int32_t most = session.options.new_tokens_per_call_max;
  s.new_tokens_max = s.new_tokens_max == 0 ? most : std::min(s.new_tokens_max, most);
  s.priority = session.assignment.id.group_id;  // old groups finish first
  request->seed =
      DeriveSeed(session.assignment.seed, kSampling, static_cast<uint64_t>(session.calls));
  return std::nullopt;
}

class Proxy final : public RecordingProxy {
 public:
  Proxy(Loop& loop, const ServedModel& model)
      : loop_(loop), model_(model), ids_(Now().time_since_epoch().count()) {}

  Status Listen(const RecordingProxyOptions& options) {
    HttpServerOptions http;
    http.listen = options.listen;
    http.certificate_file = options.certificate_file;
    http.key_file = options.key_file;
    http.authorize = [this](const HttpRequest& request) {
      return request.path() == "/health" || Find(request) != nullptr;
    };
    http.error_content_type = "application/json";
    http.error_body = [](int status, std::string_view message) {
      return serving::ErrorJson(serving::HttpError(status, message));
    };
    FB_ASSIGN_OR_RETURN(
        http_, HttpServer::Start(loop_, std::move(http),
                                 [this](HttpExchange& exchange) { return Handle(exchange); }));
    return OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return http_->addresses(); }
  int64_t open() const override { return static_cast<int64_t>(sessions_.size()); }
  Task<void> Stop(TimePoint deadline) override { return http_->Stop(deadline); }

  EpisodeAccess Open(const Assignment& assignment, const RecordingOptions& options) override {
    const std::string key = NewKey(assignment.id.trajectory_id);
    sessions_[key] = std::make_shared<Session>(model_, assignment, options);
    const std::string& base = addresses().front();
    return {.base_url = base + "/v1",
            .api_key = key,
            .reward_url =
                fmt::format("{}{}{}{}", base, kEpisodes, assignment.id.trajectory_id, kReward)};
  }

  std::map<std::string, double> Rewards(const std::string& api_key) const override {
    const auto it = sessions_.find(api_key);
    return it == sessions_.end() ? std::map<std::string, double>() : it->second->rewards;
  }

  Trajectory Close(const std::string& api_key, const HarnessEnd& end, Status* reason) override {
    const auto it = sessions_.find(api_key);
    FB_CHECK(it != sessions_.end(), "an episode is closed once");
    const std::shared_ptr<Session> session = std::move(it->second);
    sessions_.erase(it);
    session->closed = true;
    for (const auto& [exchange, cancel] : session->running) cancel();

    Trajectory out;
    out.id = session->assignment.id;
    out.environment = session->options.environment;
    out.temperature = session->options.temperature;
    out.started_us = session->started_us;
    out.ended_us = WallMicros();
    out.rewards = session->rewards;
    for (const auto& [name, value] : end.rewards) out.rewards[name] = value;
    session->record.Write(&out);
    out.outcome = Judge(*session, end, out, reason);
    if (const Status valid = Validate(out); !valid.ok()) {
      *reason = valid;
      Trajectory empty;
      empty.id = out.id;
      empty.environment = out.environment;
      empty.temperature = out.temperature;
      empty.started_us = out.started_us;
      empty.ended_us = out.ended_us;
      empty.outcome = Outcome::kEnvError;
      return empty;
    }
    return out;
  }

 private:
  static Outcome Judge(const Session& session, const HarnessEnd& end, const Trajectory& trajectory,
                       Status* reason) {
    if (!session.engine_failure.ok()) {
      *reason = session.engine_failure;
      return Outcome::kEngineError;
    }
    if (end.outcome != Outcome::kDone) {
      *reason = end.reason;
      return end.outcome;
    }
    if (trajectory.loss_tokens() == 0) {
      *reason = DataLoss(
          session.calls == 0
              ? "the harness ended without asking the policy: does it take OPENAI_BASE_URL and "
                "OPENAI_API_KEY?"
              : "the harness asked the policy, but none of its calls was answered");
      return Outcome::kEnvError;
    }
    if (session.out_of_tokens) return Outcome::kTruncatedTokens;
    if (trajectory.rewards.empty()) {
      *reason = FailedPrecondition(
          "the harness ended and nobody has given a reward: post one, or configure a grader");
      return Outcome::kGraderError;
    }
    return session.out_of_calls ? Outcome::kTruncatedTurns : Outcome::kDone;
  }

  Session* Find(const HttpRequest& request) const {
    const auto it = sessions_.find(std::string(request.bearer()));
    return it == sessions_.end() ? nullptr : it->second.get();
  }

  Task<void> Handle(HttpExchange& exchange) {
    const HttpRequest& request = exchange.request();
    const auto it = sessions_.find(std::string(request.bearer()));
    if (request.path() == "/health") {
      Task<void> responding = serving::RespondJson(exchange, "{\"status\": \"ok\"}");
      co_await std::move(responding);
      co_return;
    }
    ApiError error = serving::HttpError(401, "the episode of this key has ended");
    std::optional<std::string> json;
    std::optional<serving::Route> route;
    std::shared_ptr<Session> session;
    if (it != sessions_.end()) {
      session = it->second;
      if (request.path().starts_with(kEpisodes)) {
        json = PostReward(request, session.get(), &error);
      } else {
        route = serving::FindRoute(request, &error);
      }
    }
    if (route && route->kind == serving::Route::Kind::kGenerate) {
      Task<void> calling = Generate(exchange, route->api, session);
      co_await std::move(calling);
      co_return;
    }
    if (route) json = serving::ModelsJson(model_, *route, &error);
    if (json) {
      Task<void> responding = serving::RespondJson(exchange, std::move(*json));
      co_await std::move(responding);
    } else {
      Task<void> responding = serving::RespondError(exchange, std::move(error));
      co_await std::move(responding);
    }
  }

  static std::optional<std::string> PostReward(const HttpRequest& request, Session* session,
                                               ApiError* error) {
    std::string_view id = request.path().substr(kEpisodes.size());
    if (request.method != "POST" || !id.ends_with(kReward)) {
      *error = {.status = 404, .message = "POST /v1/episodes/ID/reward is what there is"};
      return std::nullopt;
    }
    id.remove_suffix(kReward.size());
    if (id != "self" && id != std::to_string(session->assignment.id.trajectory_id)) {
      *error = {.status = 403,
                .message = fmt::format("this key is of episode {}: write its id or 'self'",
                                       session->assignment.id.trajectory_id)};
      return std::nullopt;
    }
    const std::string wrong = serving::ReadRewards(request.body, &session->rewards);
    if (!wrong.empty()) {
      *error = {.message = wrong, .param = "reward"};
      return std::nullopt;
    }
    return Json({{"rewards", session->rewards}}).dump();
  }

  Task<void> Generate(HttpExchange& exchange, serving::ApiKind kind,
                      std::shared_ptr<Session> session) {
    std::vector<RecordedPrompt> prompts;
    serving::CompletionHooks hooks;
    hooks.adjust = [&](ApiRequest* request) -> std::optional<ApiError> {
      if (session->calls >= session->options.calls_max) {
        session->out_of_calls = true;
        return ApiError{.message = fmt::format("this episode may make {} calls and has made them",
                                               session->options.calls_max),
                        .code = "episode_over"};
      }
      if (auto error = AdjustSampling(*session, request)) return error;
      ++session->calls;
      return std::nullopt;
    };
    hooks.prompts = [&](const ApiRequest& request, std::vector<std::vector<int32_t>>* out) {
      auto error = session->record.Prompts(request, &prompts);
      // What these calls can add at most.
      int64_t tokens = session->record.tokens();
      for (const RecordedPrompt& prompt : prompts) {
        tokens += request.n * static_cast<int64_t>(prompt.ids.size());
        out->push_back(prompt.ids);
      }
      if (!error && tokens >= session->options.tokens_max) {
        session->out_of_tokens = true;
        error = ApiError{.message = fmt::format("this episode has used up its {} tokens",
                                                session->options.tokens_max),
                         .code = "episode_over"};
      }
      return error;
    };
    hooks.finished = [&](size_t prompt, const GenerateResult& result,
                         const serving::Answer& answer) {
      if (!session->closed) session->record.Add(prompts[prompt], result, answer);
    };
    hooks.running = [&](std::function<void()> cancel) {
      session->running[&exchange] = std::move(cancel);
    };
    hooks.failed = [&](const Status& status) {
      // Too many waiting, or a prompt that cannot be: the harness is told and may try again.
      const bool infrastructure = status.code() != StatusCode::kResourceExhausted &&
                                  status.code() != StatusCode::kInvalidArgument &&
                                  status.code() != StatusCode::kCancelled;
      if (infrastructure && session->engine_failure.ok()) session->engine_failure = status;
    };
    const std::string id = ids_.Next();
    const serving::CompletionDeps deps{.loop = &loop_,
                                       .model = &model_,
                                       .request_deadline = session->options.generate_deadline,
                                       .id = id,
                                       .hooks = &hooks};
    Task<CompletionEnd> completing = serving::Complete(deps, exchange, kind);
    const CompletionEnd end = co_await std::move(completing);
    static_cast<void>(end);  // what it recorded is what counts
    session->running.erase(&exchange);
  }

  Loop& loop_;
  const ServedModel model_;
  serving::RequestIds ids_;
  std::unordered_map<std::string, std::shared_ptr<Session>> sessions_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<RecordingProxy>> RecordingProxy::Start(
    Loop& loop, const ServedModel& model, const RecordingProxyOptions& options) {
  FB_CHECK(model.engine != nullptr && model.tokenizer != nullptr, "a model to serve");
  auto proxy = std::make_unique<Proxy>(loop, model);
  FB_RETURN_IF_ERROR(proxy->Listen(options));
  return std::unique_ptr<RecordingProxy>(std::move(proxy));
}

}  // namespace forebay::rollout
