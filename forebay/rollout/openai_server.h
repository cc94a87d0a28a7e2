// OpenAiServer: an engine behind OpenAI's HTTP API (docs/serving.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/weights_endpoint.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout {

// What is served. Everything pointed to must outlive the server.
struct ServedModel {
  std::string name;
  Engine* engine = nullptr;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  const tokenizer::ChatTemplate* chat = nullptr;  // null: no chat completions
  std::vector<int32_t> stop_tokens;               // the model's end of turn
  std::string bos_token, eos_token;               // what the chat template calls so
};

// Whether the chat template writes the tools of a request; else serving/plain_tools.h does. Renders
// a few words.
bool KnowsTools(const ServedModel& model);

struct OpenAiServerOptions {
  std::vector<std::string> listen = {"tcp:127.0.0.1:8000"};  // or "unix:/path/of.sock"
  std::string certificate_file, key_file;                    // PEM: TLS
  std::string token;  // clients send it as their API key; "": anybody may (loopback only)
  // Without a token: more names that requests may be for (http_server.h).
  std::vector<std::string> allowed_hosts;
  Duration request_deadline = std::chrono::minutes(10);
  // While requests wait for the engine, a stream whose client takes nothing for that long is ended
  // and its slots are free (serving/reader_watch.h).
  Duration stalled_reader_deadline = std::chrono::seconds(2);
  uint64_t seed = 0;  // of requests that bring none
  // For JSON, templates and tokenizing, which the loop then has none of; null: all on the loop.
  WorkerPool* workers = nullptr;
  // Takes new weights for the engine at paths of its own; null: nobody can give any.
  WeightsEndpoint* weights = nullptr;
  // Told of every request that ended (method, path, HTTP status); may be null. On the loop.
  std::function<void(const std::string&)> log;
};

struct OpenAiServerStats {
  int64_t requests = 0, refused = 0,
          cancelled = 0;  // cancelled: the client went away, or did not read
  int64_t connections = 0;
};

// POST /v1/chat/completions, /v1/completions and /inference/v1/generate; GET /v1/models and
// /health. All calls on the loop, which must be on real time.
class OpenAiServer {
 public:
  // As HttpServer::Start.
  static Result<std::unique_ptr<OpenAiServer>> Start(Loop& loop, const ServedModel& model,
                                                     const OpenAiServerOptions& options);
  virtual ~OpenAiServer() = default;

  // "http://127.0.0.1:8000": a client's base URL less "/v1".
  virtual const std::vector<std::string>& addresses() const = 0;
  virtual OpenAiServerStats stats() const = 0;
  // Refuses new requests and waits for those that run; at the deadline they are cancelled. Call
  // once, and before destruction.
  virtual Task<void> Stop(TimePoint deadline) = 0;
};

}  // namespace forebay::rollout
