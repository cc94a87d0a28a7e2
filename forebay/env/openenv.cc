#include "forebay/env/openenv.h"

#include <fmt/core.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/websocket.h"
#include "forebay/env/environment.h"
#include "forebay/env/json_work.h"
#include "forebay/env/openenv/messages.h"
#include "forebay/env/places.h"

namespace forebay::env {
namespace {

using openenv::Answer;
using openenv::Template;

constexpr Duration kCloseGrace = std::chrono::seconds(5);
constexpr Duration kAskAgain = std::chrono::milliseconds(200);  // a server that is full

struct Shared {
  Loop& loop;
  OpenEnvOptions options;
  Template action, reset;
  std::shared_ptr<Places> places;
  JsonWork work;
  int64_t closing = 0;                       // connections that say goodbye
  std::optional<OneShot<bool>> none_left{};  // set when they have
};

Task<void> CloseSocket(std::shared_ptr<Shared> shared, Places::Place place,
                       std::unique_ptr<WebSocket> socket) {
  const Places::Place held = std::move(place);
  const TimePoint deadline = shared->loop.Now() + kCloseGrace;
  Task<Status> sending = socket->Send(R"({"type":"close"})", deadline);
  const Status sent = co_await std::move(sending);
  if (sent.ok()) {
    Task<void> closing = socket->Close(deadline);
    co_await std::move(closing);
  }
  socket.reset();
  if (--shared->closing == 0 && shared->none_left) shared->none_left->Set(true);
}

class OpenEnvironment final : public Environment {
 public:
  OpenEnvironment(std::shared_ptr<Shared> shared, Places::Place place)
      : shared_(std::move(shared)), place_(std::move(place)) {}
  ~OpenEnvironment() override {
    if (!socket_ || socket_->broken()) return;
    ++shared_->closing;
    shared_->loop.Spawn(CloseSocket(shared_, std::move(place_), std::move(socket_)));
  }

  Task<Result<std::vector<Message>>> Reset(ResetRequest request, TimePoint deadline) override {
    const std::string text = openenv::ResetText(shared_->reset, request);
    while (true) {
      Task<Status> opening = Open(deadline);
      const Status opened = co_await std::move(opening);
      if (!opened.ok()) co_return opened;
      Task<Result<Answer>> asking = Ask(text, deadline);
      const Result<Answer> answer = co_await std::move(asking);
      if (!answer.ok()) co_return answer.status().WithContext("reset");
      if (!answer->invalid.empty()) {
        co_return Internal("the OpenEnv server refuses the reset: " + answer->invalid);
      }
      if (!answer->full) co_return First(*answer);
      socket_.reset();
      if (shared_->loop.Now() + kAskAgain >= deadline) {
        co_return DeadlineExceeded(
            "the OpenEnv server had no place for another session until the deadline: set "
            "sessions_max to its limit, or raise that");
      }
      const OneShot<bool> over(shared_->loop);
      shared_->loop.RunAt(shared_->loop.Now() + kAskAgain, [over] { over.Set(true); });
      co_await over.Wait();
    }
  }

  Task<Result<StepResult>> Step(std::string action, TimePoint deadline) override {
    if (!socket_) co_return Internal("a step before the reset of its episode");
    StepResult result;
    const size_t bytes = action.size();
    Task<Result<openenv::Action>> writing =
        shared_->work.Run(bytes, deadline, [shared = shared_, action = std::move(action)] {
          return Result<openenv::Action>(openenv::ActionText(shared->action, action));
        });
    Result<openenv::Action> sent = co_await std::move(writing);
    if (!sent.ok()) co_return sent.status().WithContext("step");
    std::string invalid = std::move(sent->error);
    if (invalid.empty()) {
      Task<Result<Answer>> asking = Ask(std::move(sent->text), deadline);
      Result<Answer> answer = co_await std::move(asking);
      if (!answer.ok()) co_return answer.status().WithContext("step");
      invalid = answer->invalid;
      if (invalid.empty()) {
        if (answer->reward) result.rewards["reward"] = *answer->reward;
        result.done = answer->done;
        result.tool = "openenv";
        result.messages.push_back({.role = "user", .content = std::move(answer->observation)});
      }
    }
    if (!invalid.empty()) {
      result.messages.push_back({.role = "user", .content = "error: " + invalid});
    }
    co_return result;
  }

 private:
  Task<Status> Open(TimePoint deadline) {
    const OpenEnvOptions& options = shared_->options;
    WebSocketOptions socket{.message_bytes_max = options.message_bytes_max, .messages_max = 4};
    if (!options.bearer.empty()) socket.headers.Add("Authorization", "Bearer " + options.bearer);
    Task<Result<std::unique_ptr<WebSocket>>> connecting =
        WebSocket::Connect(shared_->loop, options.url, std::move(socket), deadline);
    Result<std::unique_ptr<WebSocket>> connected = co_await std::move(connecting);
    if (!connected.ok()) co_return connected.status().WithContext("the OpenEnv server");
    socket_ = std::move(*connected);
    co_return OkStatus();
  }

  Task<Result<Answer>> Ask(std::string text, TimePoint deadline) {
    Task<Status> sending = socket_->Send(std::move(text), deadline);
    const Status sent = co_await std::move(sending);
    // A server that is full says so and hangs up: its word counts.
    if (!sent.ok() && sent.code() != StatusCode::kUnavailable) co_return sent;
    Task<Result<std::string>> receiving = socket_->Receive(deadline);
    Result<std::string> message = co_await std::move(receiving);
    if (!message.ok()) co_return message.status();
    const size_t bytes = message->size();
    Task<Result<Answer>> reading = shared_->work.Run(
        bytes, deadline,
        [shared = shared_, message = std::make_shared<const std::string>(std::move(*message))] {
          return openenv::ParseAnswer(*message, shared->options.observation);
        });
    Result<Answer> answer = co_await std::move(reading);
    co_return answer;
  }

  std::vector<Message> First(const Answer& answer) const {
    std::vector<Message> messages;
    if (!shared_->options.system.empty()) {
      messages.push_back({.role = "system", .content = shared_->options.system});
    }
    messages.push_back({.role = "user", .content = answer.observation});
    return messages;
  }

  std::shared_ptr<Shared> shared_;
  Places::Place place_;
  std::unique_ptr<WebSocket> socket_;
};

class OpenEnvPool final : public EnvironmentPool {
 public:
  explicit OpenEnvPool(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Task<Result<std::unique_ptr<Environment>>> Acquire(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    Task<Result<Places::Place>> taking = Places::Take(shared->places, deadline);
    Result<Places::Place> place = co_await std::move(taking);
    if (!place.ok()) co_return place.status();
    co_return std::unique_ptr<Environment>(
        std::make_unique<OpenEnvironment>(shared, std::move(*place)));
  }

  Task<void> Shutdown(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    shared->places->Stop(Cancelled("the environment pool is shut down"));
    if (shared->closing == 0) co_return;
    const OneShot<bool> none_left(shared->loop);
    shared->none_left = none_left;
    const uint64_t timer = shared->loop.RunAt(deadline, [none_left] { none_left.Set(false); });
    co_await none_left.Wait();
    shared->loop.Cancel(timer);
  }

 private:
  std::shared_ptr<Shared> shared_;
};

// The URL with its path.
Result<std::string> SocketUrl(const std::string& url) {
  std::string http = url;
  if (http.starts_with("ws")) http.replace(0, 2, "http");
  const Result<HttpUrl> parsed = ParseUrl(http);
  if (!parsed.ok()) {
    return InvalidArgument(fmt::format(
        "the url of an OpenEnv server must be like http://127.0.0.1:8000, not '{}'", url));
  }
  if (parsed->target != "/" || !parsed->unix_path.empty()) return url;
  return url + (url.ends_with('/') ? "ws" : "/ws");
}

}  // namespace

Result<std::unique_ptr<EnvironmentPool>> MakeOpenEnvPool(Loop& loop, OpenEnvOptions options) {
  FB_ASSIGN_OR_RETURN(options.url, SocketUrl(options.url));
  FB_ASSIGN_OR_RETURN(Template action, Template::Parse("action", options.action));
  FB_ASSIGN_OR_RETURN(Template reset, Template::Parse("reset", options.reset));
  if (options.sessions_max < 1) {
    return InvalidArgument(fmt::format(
        "sessions_max of an OpenEnv server must be 1 or more, not {}", options.sessions_max));
  }
  if (options.message_bytes_max < 1024) {
    return InvalidArgument("message_bytes_max of an OpenEnv server must be 1024 or more");
  }
  auto places = std::make_shared<Places>(loop, options.sessions_max, "sessions_max");
  const JsonWork work(loop, options.workers);
  return std::unique_ptr<EnvironmentPool>(
      std::make_unique<OpenEnvPool>(std::make_shared<Shared>(Shared{.loop = loop,
                                                                    .options = std::move(options),
                                                                    .action = std::move(action),
                                                                    .reset = std::move(reset),
                                                                    .places = std::move(places),
                                                                    .work = work})));
}

}  // namespace forebay::env
