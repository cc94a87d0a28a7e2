#include "forebay/env/mcp.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/json_work.h"
#include "forebay/env/mcp/client.h"
#include "forebay/env/mcp/http.h"
#include "forebay/env/mcp/messages.h"
#include "forebay/env/mcp/stdio.h"
#include "forebay/env/mcp/transport.h"
#include "forebay/env/places.h"
#include "forebay/env/subprocess/line_process.h"
#include "forebay/env/subprocess/stderr_log.h"
#include "forebay/env/tool_calls.h"
#include "forebay/env/tools.h"

namespace forebay::env {
namespace {

constexpr int64_t kStderrFileBytesMax = int64_t{64} << 20;
constexpr Duration kCloseGrace = std::chrono::seconds(10);  // of an episode's own connection

using ClientResult = Result<std::shared_ptr<mcp::Client>>;

struct Shared : std::enable_shared_from_this<Shared> {
  Shared(Loop& l, McpOptions o)
      : loop(l),
        options(std::move(o)),
        log(std::make_shared<RotatingLog>(options.stderr_path, kStderrFileBytesMax)),
        places(std::make_shared<Places>(loop, options.connections_max, "connections_max")),
        trials(std::make_shared<Places>(loop, 1, "the start after a failure")),
        slots(options.connection_per_episode ? 0 : static_cast<size_t>(options.connections_max)) {}

  // A shared connection: at most one is being made, others wait for it.
  struct Slot {
    std::shared_ptr<mcp::Client> client;
    std::shared_ptr<Places> turn;
  };

  Loop& loop;
  const McpOptions options;
  std::shared_ptr<HttpClient> http;
  std::shared_ptr<RotatingLog> log;
  std::shared_ptr<Places> places;  // of episodes' own connections
  std::shared_ptr<Places> trials;  // one: to start a server after failures
  std::vector<Slot> slots;
  size_t next_slot = 0;
  // Episodes' own connections, until they have ended.
  std::map<uint64_t, std::shared_ptr<mcp::Client>> own;
  uint64_t last_own = 0;
  std::optional<OneShot<bool>> none_left;  // set when `own` becomes empty
  int64_t failures = 0;                    // in a row
  Status last_failure;
  TimePoint start_after{};
  bool stopped = false;

  // Why nobody was asked: after failures the next start has to wait.
  Status Paused(const Status& why) const {
    if (stopped) return why.ok() ? Cancelled("the MCP tools are shut down") : why;
    return Unavailable(
        fmt::format("the MCP server failed to start {} times in a row and was not "
                    "started again before the deadline; the last time: {}",
                    failures, last_failure.message()));
  }

  Result<std::shared_ptr<mcp::Transport>> Start() const {
    if (!options.url.empty()) {
      return mcp::MakeHttp(http, JsonWork(loop, options.workers),
                           {.url = options.url,
                            .bearer = options.bearer,
                            .message_bytes_max = options.message_bytes_max});
    }
    return mcp::StartStdio(loop, {.process = {.command = options.command,
                                              .folder = options.folder,
                                              .environment = options.environment},
                                  .what = "the MCP server",
                                  .line_bytes_max = options.message_bytes_max,
                                  .log = log,
                                  .workers = options.workers});
  }

  static Task<ClientResult> Connect(std::shared_ptr<Shared> self, TimePoint deadline) {
    // While it fails one at a time tries whether it is well again; the others wait for that.
    std::optional<Places::Place> turn;
    if (self->failures > 0) {
      Task<Result<Places::Place>> taking = Places::Take(self->trials, deadline);
      Result<Places::Place> taken = co_await std::move(taking);
      if (!taken.ok()) co_return self->Paused(taken.status());
      turn.emplace(std::move(*taken));
      if (self->failures > 0 && self->start_after > self->loop.Now()) {
        const OneShot<bool> over(self->loop);
        self->loop.RunAt(std::min(self->start_after, deadline), [over] { over.Set(true); });
        auto waiting = over.Wait();
        co_await waiting;
        if (self->start_after >= deadline) co_return self->Paused(OkStatus());
      }
    }
    if (self->stopped) co_return Cancelled("the MCP tools are shut down");
    const TimePoint end = std::min(deadline, self->loop.Now() + self->options.start_deadline);
    ClientResult client = Unavailable("");
    Result<std::shared_ptr<mcp::Transport>> transport = self->Start();
    if (transport.ok()) {
      Task<ClientResult> connecting = mcp::Client::Connect(
          *transport, JsonWork(self->loop, self->options.workers), self->options.version, end);
      client = co_await std::move(connecting);
    } else {
      client = transport.status();
    }
    if (client.ok()) {
      self->failures = 0;
    } else {
      self->last_failure = client.status();
      const int64_t doublings = std::min<int64_t>(self->failures++, 20);
      const Duration wait =
          std::min(self->options.backoff * (int64_t{1} << doublings), self->options.backoff_max);
      self->start_after = self->loop.Now() + wait;
    }
    co_return client;
  }
};

class Session final : public ToolSession {
 public:
  explicit Session(std::shared_ptr<mcp::Client> client) : client_(std::move(client)) {}
  const std::vector<ToolSpec>& tools() const override { return client_->tools(); }
  Task<Result<ToolResult>> Call(ToolCall call, TimePoint deadline) override {
    return mcp::Client::Call(client_, std::move(call), deadline);
  }

 private:
  std::shared_ptr<mcp::Client> client_;
};

// An episode's own connection, ended with it.
class OwnSession final : public ToolSession {
 public:
  OwnSession(std::shared_ptr<Shared> shared, Places::Place place,
             std::shared_ptr<mcp::Client> client)
      : shared_(std::move(shared)),
        place_(std::move(place)),
        client_(std::move(client)),
        key_(++shared_->last_own) {
    shared_->own.emplace(key_, client_);
  }
  ~OwnSession() override {
    shared_->loop.Spawn(End(shared_, std::move(place_), std::move(client_), key_));
  }
  const std::vector<ToolSpec>& tools() const override { return client_->tools(); }
  Task<Result<ToolResult>> Call(ToolCall call, TimePoint deadline) override {
    return mcp::Client::Call(client_, std::move(call), deadline);
  }

 private:
  // The place is free when the server is gone.
  static Task<void> End(std::shared_ptr<Shared> shared, Places::Place place,
                        std::shared_ptr<mcp::Client> client, uint64_t key) {
    const Places::Place held = std::move(place);
    Task<void> ending = client->transport().End(shared->loop.Now() + kCloseGrace);
    co_await std::move(ending);
    shared->own.erase(key);
    if (shared->own.empty() && shared->none_left) shared->none_left->Set(true);
  }

  std::shared_ptr<Shared> shared_;
  Places::Place place_;
  std::shared_ptr<mcp::Client> client_;
  uint64_t key_;
};

using SessionResult = Result<std::unique_ptr<ToolSession>>;

class Provider final : public ToolProvider {
 public:
  explicit Provider(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~Provider() override {
    shared_->stopped = true;
    for (const Shared::Slot& slot : shared_->slots) {
      if (slot.client) slot.client->transport().Kill();
    }
    for (const auto& [key, client] : shared_->own) client->transport().Kill();
  }

  Task<SessionResult> Open(TimePoint deadline) override {
    if (shared_->options.connection_per_episode) return OpenOwn(shared_, deadline);
    return OpenShared(shared_, deadline);
  }

  Task<void> Shutdown(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    shared->stopped = true;
    const Status reason = Cancelled("the MCP tools are shut down");
    shared->places->Stop(reason);
    shared->trials->Stop(reason);
    for (Shared::Slot& slot : shared->slots) {
      slot.turn->Stop(reason);
      if (!slot.client) continue;
      Task<void> ending = slot.client->transport().End(deadline);
      co_await std::move(ending);
    }
    if (shared->own.empty()) co_return;
    const OneShot<bool> none_left(shared->loop);
    shared->none_left = none_left;
    const uint64_t timer = shared->loop.RunAt(deadline, [none_left] { none_left.Set(false); });
    co_await none_left.Wait();
    shared->loop.Cancel(timer);
    for (const auto& [key, client] : std::exchange(shared->own, {})) client->transport().Kill();
  }

 private:
  static Task<SessionResult> OpenShared(std::shared_ptr<Shared> shared, TimePoint deadline) {
    Shared::Slot& slot = shared->slots[shared->next_slot++ % shared->slots.size()];
    if (!slot.client || slot.client->broken()) {
      Task<Result<Places::Place>> taking = Places::Take(slot.turn, deadline);
      const Result<Places::Place> turn = co_await std::move(taking);
      if (!turn.ok())
        co_return shared->failures > 0 ? shared->Paused(turn.status()) : turn.status();
      if (!slot.client || slot.client->broken()) {
        Task<ClientResult> connecting = Shared::Connect(shared, deadline);
        ClientResult client = co_await std::move(connecting);
        if (!client.ok()) co_return client.status();
        slot.client = std::move(*client);
      }
    }
    co_return std::unique_ptr<ToolSession>(std::make_unique<Session>(slot.client));
  }

  static Task<SessionResult> OpenOwn(std::shared_ptr<Shared> shared, TimePoint deadline) {
    Task<Result<Places::Place>> taking = Places::Take(shared->places, deadline);
    Result<Places::Place> place = co_await std::move(taking);
    if (!place.ok()) co_return place.status();
    Task<ClientResult> connecting = Shared::Connect(shared, deadline);
    ClientResult client = co_await std::move(connecting);
    if (!client.ok()) co_return client.status();
    co_return std::unique_ptr<ToolSession>(
        std::make_unique<OwnSession>(shared, std::move(*place), std::move(*client)));
  }

  std::shared_ptr<Shared> shared_;
};

Status Check(const McpOptions& options) {
  if (options.command.empty() == options.url.empty()) {
    return InvalidArgument(
        "an MCP server is either a command or a URL: give one of them (and not both)");
  }
  if (!options.url.empty()) FB_RETURN_IF_ERROR(ParseUrl(options.url).status());
  if (!options.command.empty() && options.command[0].empty()) {
    return InvalidArgument("the command of an MCP server begins with an empty word");
  }
  if (!options.version.empty() && !mcp::KnownVersion(options.version)) {
    return InvalidArgument(fmt::format(
        "'{}' is no version of MCP that is known here: there are 2025-06-18, 2025-11-25 and "
        "2026-07-28",
        options.version));
  }
  if (options.connections_max < 1) {
    return InvalidArgument(fmt::format("connections_max of an MCP server must be 1 or more, not {}",
                                       options.connections_max));
  }
  if (options.message_bytes_max < 1024) {
    return InvalidArgument("message_bytes_max of an MCP server must be 1024 or more");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ToolProvider>> MakeMcpTools(Loop& loop, McpOptions options) {
  FB_RETURN_IF_ERROR(Check(options));
  auto shared = std::make_shared<Shared>(loop, std::move(options));
  for (Shared::Slot& slot : shared->slots) {
    slot.turn = std::make_shared<Places>(loop, 1, "the making of a connection");
  }
  if (!shared->options.url.empty()) {
    FB_ASSIGN_OR_RETURN(std::unique_ptr<HttpClient> http, HttpClient::Create(loop));
    shared->http = std::move(http);
  }
  return std::unique_ptr<ToolProvider>(std::make_unique<Provider>(std::move(shared)));
}

}  // namespace forebay::env
