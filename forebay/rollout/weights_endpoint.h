// WeightsEndpoint: HTTP by which one publisher at a time gives a served engine new weights
// (docs/external_engines.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {

struct WeightsEndpointOptions {
  // Another run, or an older process of the run, takes over from one that was not heard of for so
  // long.
  Duration silence_max = std::chrono::seconds(15);
  int64_t chunk_bytes = int64_t{8} << 20;  // less than a server takes as a body
};

// Whoever can reach it decides what the engine samples: only where the server has a key, or listens
// on loopback or a Unix socket.
//
//   POST /weights/v1/publishers          {"name", "started_us"}: a ticket, for the header
//                                        Forebay-Publisher of everything below
//   GET  /weights/v1                     a sign of life
//   POST /weights/v1/syncs               a manifest: which tensors to send
//   PUT  /weights/v1/syncs/S/chunks/I    their bytes
//   POST /weights/v1/syncs/S/commit      answered once the next token is sampled with them
//
// 409: another publisher has taken over; 410: this server was started again; 503: not now. Nothing
// is swapped until every byte is there and checked, and then between two decode steps. Versions of
// one publisher only grow. All calls on the loop; everything given must outlive it, and it every
// call of Handle.
class WeightsEndpoint {
 public:
  // `current`: the weights that the engine has. It, or the newest ones taken, stay in host memory.
  static std::unique_ptr<WeightsEndpoint> Create(Loop& loop, WorkerPool* workers, Engine& engine,
                                                 const weights::Snapshot& current,
                                                 const WeightsEndpointOptions& options = {});
  virtual ~WeightsEndpoint() = default;

  virtual bool Owns(const HttpRequest& request) const = 0;
  // Answers; returns the status that it answered with.
  virtual Task<int> Handle(HttpExchange& exchange) = 0;
  // For a request to generate that shows a ticket: kept until it is answered, so that no weights of
  // a later publisher are taken in the middle of it. Null: it shows none. Errors as PublisherGate.
  virtual Result<std::shared_ptr<void>> Admit(const HttpRequest& request) = 0;
};

}  // namespace forebay::rollout
