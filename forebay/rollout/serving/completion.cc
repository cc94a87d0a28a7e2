// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/serving/completion.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/sse.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/call.h"
#include "forebay/rollout/serving/generation.h"
#include "forebay/rollout/serving/reader_watch.h"

namespace forebay::rollout::serving {
namespace {

using Events = std::vector<GenerationEvent>;

// What is rendered at once of what waits for a slow client: with 20 alternatives a token, 700 kB.
constexpr size_t kEventsPerWrite = 512;

// Waits until nothing of it runs any more: the engine calls back until then.
Task<void> DrainEvents(std::shared_ptr<Generation> generation) {
  generation->Cancel();
  while (true) {
    Task<std::optional<GenerationEvent>> next = generation->Next();
    const std::optional<GenerationEvent> event = co_await std::move(next);
    if (!event) co_return;
  }
}

// Before anything was sent: the engine's error, or nothing if the client has gone.
Task<CompletionEnd> Fail(HttpExchange& exchange, Status status) {
  if (exchange.disconnected()) co_return CompletionEnd{.status = 499, .cancelled = true};
  const ApiError error = EngineError(status);
  Task<void> responding = RespondError(exchange, error);
  co_await std::move(responding);
  co_return CompletionEnd{.status = error.status, .error = error.message};
}

// All results, or those up to the first that is an error.
Task<Events> Results(std::shared_ptr<Generation> generation) {
  Events out;
  bool failed = false;
  while (!failed) {
    Task<std::optional<GenerationEvent>> next = generation->Next();
    std::optional<GenerationEvent> event = co_await std::move(next);
    if (!event) break;
    failed = !std::get<Result<GenerateResult>>(event->what).ok();
    out.push_back(std::move(*event));
  }
  co_return out;
}

Task<CompletionEnd> CompleteWhole(const CompletionDeps& deps, HttpExchange& exchange, Call* call,
                                  std::shared_ptr<Generation> generation) {
  Task<Events> waiting = Results(generation);
  Events results = co_await std::move(waiting);
  Task<void> draining = DrainEvents(generation);
  co_await std::move(draining);
  Task<CallStep> writing = Offload(deps.loop, deps.workers,
                                   [call, &results] { return call->Whole(std::move(results)); });
  CallStep step = co_await std::move(writing);
  exchange.OnDisconnect(nullptr);
  if (!step.status.ok() || exchange.disconnected()) {
    Task<CompletionEnd> failing = Fail(exchange, step.status);
    co_return co_await std::move(failing);
  }
  HttpResponse response{.headers = {{"Content-Type", "application/json"}},
                        .body = std::move(step.bytes)};
  Task<Status> responding = exchange.Respond(std::move(response));
  const Status sent = co_await std::move(responding);
  co_return CompletionEnd{.status = 200, .cancelled = !sent.ok()};
}

// What there is, at least one event and at most kEventsPerWrite; none: every request has ended.
Task<Events> NextEvents(std::shared_ptr<Generation> generation) {
  Events out;
  Task<std::optional<GenerationEvent>> next = generation->Next();
  std::optional<GenerationEvent> event = co_await std::move(next);
  while (event) {
    out.push_back(std::move(*event));
    if (out.size() == kEventsPerWrite) break;
    event = generation->TryNext();
  }
  co_return out;
}

// The engine only knows that they were cancelled.
void Explain(const Status& verdict, Events* events) {
  for (GenerationEvent& event : *events) {
    auto* result = std::get_if<Result<GenerateResult>>(&event.what);
    if (result != nullptr && result->status().code() == StatusCode::kCancelled) *result = verdict;
  }
}

Task<CompletionEnd> CompleteStream(const CompletionDeps& deps, HttpExchange& exchange, Call* call,
                                   std::shared_ptr<Generation> generation) {
  ReaderWatch watch(*deps.loop, *deps.model->engine, generation,
                    {.stalled_reader_deadline = deps.stalled_reader_deadline});
  CallStep step;
  Status sent;
  bool begun = false;
  while (sent.ok() && step.status.ok()) {
    Task<Events> waiting = NextEvents(generation);
    Events events = co_await std::move(waiting);
    if (events.empty()) break;
    if (!watch.verdict().ok()) Explain(watch.verdict(), &events);
    Task<CallStep> taking = Offload(deps.loop, deps.workers,
                                    [call, &events] { return call->Chunks(std::move(events)); });
    step = co_await std::move(taking);
    if (!begun) {
      // The status line waits for the first events: a request that the engine refuses gets its
      // code.
      if (!step.status.ok()) break;
      Task<Status> beginning = exchange.Begin(
          200, {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}});
      sent = co_await std::move(beginning);
      begun = true;
    }
    if (sent.ok() && !step.bytes.empty()) {
      Task<Status> writing = watch.Write(exchange, std::move(step.bytes));
      sent = co_await std::move(writing);
    }
  }
  Task<void> draining = DrainEvents(generation);
  co_await std::move(draining);
  exchange.OnDisconnect(nullptr);
  if (!begun) {
    Task<CompletionEnd> failing = Fail(exchange, step.status);
    co_return co_await std::move(failing);
  }
  if (sent.ok()) {
    std::string bytes = step.status.ok() ? call->LastChunks() : std::string();
    bytes += SseMessage("[DONE]");
    Task<Status> writing = exchange.Write(std::move(bytes));
    sent = co_await std::move(writing);
  }
  if (sent.ok()) {
    Task<Status> ending = exchange.End();
    sent = co_await std::move(ending);
  }
  const bool cancelled = !sent.ok() || !watch.verdict().ok();
  co_return CompletionEnd{.status = cancelled ? 499 : 200, .cancelled = cancelled};
}

}  // namespace

Task<void> RespondError(HttpExchange& exchange, ApiError error) {
  // short: a message, which quotes at most a few words of a request.
  HttpResponse response{.status = error.status,
                        .headers = {{"Content-Type", "application/json"}},
                        .body = ErrorJson(error)};
  if (error.status == 429) response.headers.Add("Retry-After", "1");
  Task<Status> responding = exchange.Respond(std::move(response));
  const Status ignored = co_await std::move(responding);
  static_cast<void>(ignored);  // whoever has gone needs no error
}

Task<CompletionEnd> Complete(CompletionDeps deps, HttpExchange& exchange, ApiKind kind) {
  Call call(deps, kind);
  const TimePoint deadline = deps.loop->Now() + deps.request_deadline;
  Task<std::optional<ApiError>> preparing = Offload(
      deps.loop, deps.workers, [&] { return call.Prepare(exchange.request().body, deadline); });
  std::optional<ApiError> error = co_await std::move(preparing);
  if (error) {
    Task<void> responding = RespondError(exchange, *error);
    co_await std::move(responding);
    co_return CompletionEnd{.status = error->status, .error = std::move(error->message)};
  }
  const bool stream = call.stream();
  const std::shared_ptr<Generation> generation =
      Generation::Start(*deps.loop, *deps.model->engine, call.TakeRequests(), stream);
  exchange.OnDisconnect([generation] { generation->Cancel(); });
  if (exchange.disconnected()) generation->Cancel();
  if (deps.hooks != nullptr && deps.hooks->running) {
    deps.hooks->running([generation] { generation->Cancel(); });
  }
  Task<CompletionEnd> completing = stream ? CompleteStream(deps, exchange, &call, generation)
                                          : CompleteWhole(deps, exchange, &call, generation);
  co_return co_await std::move(completing);
}

}  // namespace forebay::rollout::serving
