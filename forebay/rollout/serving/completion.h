// Complete: one request of a generating endpoint, from its body to the last byte of its answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
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

namespace forebay::rollout::serving {

// What a recorder of episodes does differently. Each may be null. All but `running` are called on
// the workers, one at a time and in this order for one request; requests do not wait for each
// other.
struct CompletionHooks {
  // Changes the request, or refuses it.
  std::function<std::optional<ApiError>(ApiRequest*)> adjust;
  // The prompts' tokens instead of MakePrompts; may lower the request's new_tokens_max.
  std::function<std::optional<ApiError>(ApiRequest*, std::vector<std::vector<int32_t>>*)> prompts;
  // On the loop: the engine works on it now; the argument cancels that, until Complete has
  // returned.
  std::function<void(std::function<void()> cancel)> running;
  // Before the client is told of it: a choice is complete. `prompt`: its place among the prompts.
  std::function<void(size_t prompt, const GenerateResult&, const Answer&)> finished;
  // The engine failed, also because the client went away (kCancelled).
  std::function<void(const Status&)> failed;
};

struct CompletionDeps {
  Loop* loop = nullptr;
  WorkerPool* workers = nullptr;  // null: all on the loop
  const ServedModel* model = nullptr;
  Duration request_deadline{};
  Duration stalled_reader_deadline{};  // reader_watch.h; 0: none
  std::string id;                      // of the request, unique: letters and digits
  uint64_t seed = 0;                   // for a request that brings none
  const CompletionHooks* hooks = nullptr;
};

struct CompletionEnd {
  int status = 200;        // of HTTP
  bool cancelled = false;  // the client went away, or did not read
  std::string error;       // what it was told instead of an answer
};

// Answers the exchange, whatever happens. A client that goes away cancels its requests. `deps` and
// what it points to must live until then. The loop only moves bytes: what reads, tokenizes or
// writes (serving/call.h) is done by the workers.
Task<CompletionEnd> Complete(CompletionDeps deps, HttpExchange& exchange, ApiKind kind);

// Answers with the error.
Task<void> RespondError(HttpExchange& exchange, ApiError error);

}  // namespace forebay::rollout::serving
