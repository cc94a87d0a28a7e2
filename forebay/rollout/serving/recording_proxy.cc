// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/recording_proxy.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
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
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/completion.h"
#include "forebay/rollout/serving/episode_record.h"
#include "forebay/rollout/serving/recorded_episode.h"
#include "forebay/rollout/serving/routes.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {
namespace {

using serving::ApiError;
using serving::ApiRequest;
using serving::CompletionEnd;
using serving::RecordedEpisode;
using serving::RecordedPrompt;

constexpr std::string_view kEpisodes = "/v1/episodes/";
constexpr std::string_view kReward = "/reward";

// 128 bits that nobody can guess: whoever has the key can write into the episode.
std::string NewKey(int64_t trajectory_id) {
  std::array<unsigned char, 16> bytes{};
  FB_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
           "the kernel gives random bytes");
  std::string out = fmt::format("fb-{}-", trajectory_id);
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

// What the loop knows of an episode.
struct Session {
  Session(std::shared_ptr<RecordedEpisode> e, TimePoint now)
      : episode(std::move(e)), idle_since(now) {}

  // How long the harness has had no call running, in microseconds.
  int64_t IdleMicros(TimePoint now) const {
    if (calls_running > 0) return 0;
    return std::chrono::duration_cast<std::chrono::microseconds>(now - idle_since).count();
  }

  const std::shared_ptr<RecordedEpisode> episode;
  std::map<HttpExchange*, std::function<void()>> running;  // how to cancel it
  int64_t calls_running = 0;
  TimePoint idle_since;
  std::string last_refusal;
  bool closed = false;
};

class Proxy final : public RecordingProxy {
 public:
  Proxy(Loop& loop, const ServedModel& model, const RecordingProxyOptions& options)
      : loop_(loop),
        model_(model),
        options_(options),
        workers_(options.workers),
        ids_(Now().time_since_epoch().count()) {}

  Status Listen() {
    HttpServerOptions http =
        serving::HttpOptions(options_.listen, options_.certificate_file, options_.key_file,
                             [this](const HttpRequest& request) { return Knows(request); });
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
    sessions_[key] = std::make_shared<Session>(
        std::make_shared<RecordedEpisode>(model_, assignment, options), loop_.Now());
    const std::string& base = addresses().front();
    return {.base_url = base + "/v1",
            .api_key = key,
            .reward_url =
                fmt::format("{}{}{}{}", base, kEpisodes, assignment.id.trajectory_id, kReward)};
  }

  Task<Trajectory> Close(std::string api_key, HarnessEnd end, Status* reason) override {
    const auto it = sessions_.find(api_key);
    FB_CHECK(it != sessions_.end(), "an episode is closed once");
    const std::shared_ptr<Session> session = std::move(it->second);
    sessions_.erase(it);
    session->closed = true;
    const int64_t idle_us = session->IdleMicros(loop_.Now());
    for (const auto& [exchange, cancel] : session->running) cancel();
    Task<Trajectory> closing = Offload(&loop_, workers_, [&session, &end, idle_us, reason] {
      return session->episode->Close(end, session->last_refusal, idle_us, reason);
    });
    co_return co_await std::move(closing);
  }

 private:
  bool Knows(const HttpRequest& request) const {
    return sessions_.contains(std::string(request.bearer()));
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
        Task<std::optional<std::string>> posting = PostReward(request, session, &error);
        json = co_await std::move(posting);
      } else {
        route = serving::FindRoute(request, &error);
      }
    }
    if (route && route->kind == serving::Route::Kind::kGenerate) {
      Task<void> calling = Generate(exchange, route->api, session);
      co_await std::move(calling);
      co_return;
    }
    // short: one card.
    if (route) json = serving::ModelsJson(model_, *route, &error);
    if (json) {
      Task<void> responding = serving::RespondJson(exchange, std::move(*json));
      co_await std::move(responding);
    } else {
      if (session) session->last_refusal = Refusal(request, error.status, error.message);
      Task<void> responding = serving::RespondError(exchange, std::move(error));
      co_await std::move(responding);
    }
  }

  static std::string Refusal(const HttpRequest& request, int status, std::string_view message) {
    return fmt::format("{} {} got {}, \"{}\"", request.method.substr(0, 20),
                       request.path().substr(0, 100), status, message.substr(0, 500));
  }

  // A harness that sends tools is only as good as what the model sees of them.
  void NoteTools() {
    if (std::exchange(tools_noted_, true) || !options_.note) return;
    options_.note(
        "the harness sends tools, and the chat template of the model knows none: they stand in "
        "the system message, calls are expected between <tool_call> tags (docs/serving.md)");
  }

  Task<std::optional<std::string>> PostReward(const HttpRequest& request,
                                              std::shared_ptr<Session> session, ApiError* error) {
    std::string_view id = request.path().substr(kEpisodes.size());
    if (request.method != "POST" || !id.ends_with(kReward)) {
      *error = {.status = 404, .message = "POST /v1/episodes/ID/reward is what there is"};
      co_return std::nullopt;
    }
    id.remove_suffix(kReward.size());
    const int64_t own = session->episode->assignment().id.trajectory_id;
    if (id != "self" && id != std::to_string(own)) {
      *error = {.status = 403,
                .message = fmt::format("this key is of episode {}: write its id or 'self'", own)};
      co_return std::nullopt;
    }
    Task<std::optional<std::string>> posting = Offload(
        &loop_, workers_, [&] { return session->episode->PostReward(request.body, error); });
    co_return co_await std::move(posting);
  }

  Task<void> Generate(HttpExchange& exchange, serving::ApiKind kind,
                      std::shared_ptr<Session> session) {
    const std::shared_ptr<RecordedEpisode> episode = session->episode;
    const int64_t idle_us = session->IdleMicros(loop_.Now());
    ++session->calls_running;
    std::vector<std::string> tools;
    std::vector<RecordedPrompt> prompts;
    bool begun = false;
    bool plain_tools = false;
    serving::CompletionHooks hooks;
    hooks.adjust = [&](ApiRequest* asked) {
      begun = true;
      // on a worker: as CompletionHooks says.
      return episode->Begin(asked, idle_us);
    };
    int64_t reserved = 0, unfinished = 0;  // tokens, answers
    hooks.prompts = [&](ApiRequest* asked, std::vector<std::vector<int32_t>>* out) {
      tools = asked->tool_names;
      plain_tools = !tools.empty() && !KnowsTools(model_);
      // on a worker: as above.
      auto error = episode->Prompts(asked, &prompts, &reserved);
      unfinished = asked->n * static_cast<int64_t>(prompts.size());
      for (const RecordedPrompt& prompt : prompts) out->push_back(prompt.ids);
      return error;
    };
    hooks.finished = [&](size_t prompt, const GenerateResult& result,
                         const serving::Answer& answer) {
      // on a worker: as above.
      episode->Add(tools, prompts[prompt], result, answer);
      // Before the client knows: its next call has what is left.
      if (--unfinished == 0) episode->Release(std::exchange(reserved, 0));
    };
    hooks.failed = [&](const Status& status) { episode->Fail(status); };
    hooks.running = [&](std::function<void()> cancel) {
      // The episode may have ended while the prompt was made.
      if (session->closed) return cancel();
      session->running[&exchange] = std::move(cancel);
    };
    const std::string id = ids_.Next();
    const serving::CompletionDeps deps{.loop = &loop_,
                                       .workers = workers_,
                                       .model = &model_,
                                       .request_deadline = episode->options().generate_deadline,
                                       .id = id,
                                       .hooks = &hooks};
    Task<CompletionEnd> completing = serving::Complete(deps, exchange, kind);
    const CompletionEnd end = co_await std::move(completing);
    if (reserved > 0) {
      Task<bool> releasing = Offload(&loop_, workers_, [&] {
        episode->Release(reserved);
        return true;
      });
      co_await std::move(releasing);
    }
    if (!end.error.empty()) {
      session->last_refusal = Refusal(exchange.request(), end.status, end.error);
    }
    if (plain_tools) NoteTools();
    session->running.erase(&exchange);
    --session->calls_running;
    // A request that was refused before it began is the harness's time.
    if (begun) session->idle_since = loop_.Now();
  }

  Loop& loop_;
  const ServedModel model_;
  const RecordingProxyOptions options_;
  WorkerPool* const workers_;
  bool tools_noted_ = false;
  serving::RequestIds ids_;
  std::unordered_map<std::string, std::shared_ptr<Session>> sessions_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<RecordingProxy>> RecordingProxy::Start(
    Loop& loop, const ServedModel& model, const RecordingProxyOptions& options) {
  FB_CHECK(model.engine != nullptr && model.tokenizer != nullptr, "a model to serve");
  auto proxy = std::make_unique<Proxy>(loop, model, options);
  FB_RETURN_IF_ERROR(proxy->Listen());
  return std::unique_ptr<RecordingProxy>(std::move(proxy));
}

}  // namespace forebay::rollout
