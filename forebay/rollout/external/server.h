// Server: what one external server is asked, over HTTP.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/wire.h"
#include "forebay/rollout/http_engine.h"

namespace forebay::rollout::external {

// What asking it tells.
struct ServerFacts {
  std::string digest;               // of its weights; "" if it does not tell
  int64_t context = 0;              // 0: it does not tell
  std::string version;              // the label of its weights; "" likewise
  std::vector<std::string> models;  // the names that it serves, adapters included
  // Its log-probabilities are of the distribution sampled, at any temperature.
  bool processed = false;
};

// On the loop; what it is made of must outlive it. Dropping a Task closes its connection. Errors
// name the server: kUnavailable, kInternal (this request failed there: 500), kDeadlineExceeded,
// kResourceExhausted (it has too many requests),
// kDataLoss (what it answers is none), kFailedPrecondition (it cannot do this: says what would
// help), kInvalidArgument (it refuses the request).
class Server {
 public:
  Server(HttpClient& client, const Wire& wire, const HttpEngineOptions& options, std::string url)
      : client_(client), wire_(wire), options_(options), url_(std::move(url)) {}

  const std::string& url() const { return url_; }
  // What a publisher of its weights has been given; "" for none. Every later request shows it.
  void SetTicket(std::string ticket) { ticket_ = std::move(ticket); }
  const std::string& ticket() const { return ticket_; }
  // Which of its adapters samples from now on; "": none.
  void SetAdapter(std::string name) { adapter_ = std::move(name); }
  // kUnimplemented: it has no way to load one.
  Task<Status> LoadAdapter(std::string name, std::string folder, TimePoint deadline);
  Task<Status> UnloadAdapter(std::string name, TimePoint deadline);
  // The answer's body. `remedy`: what to do where the server has no such endpoint.
  Task<Result<std::string>> Send(Ask ask, TimePoint deadline, std::string remedy);
  Task<Result<WireAnswer>> Generate(GenerateRequest request);
  Task<Status> CheckHealth(TimePoint deadline);
  // Whether anything at all comes back: an answer that refuses is one.
  Task<Status> CheckAnswers(Ask ask, TimePoint deadline);
  // Samples a few tokens at two temperatures, which also shows that it answers as it should.
  Task<Result<ServerFacts>> Examine(TimePoint deadline);
  // No request of ours may run on it. After an error its weights are unknown.
  Task<Status> Reload(std::string folder, int64_t version, TimePoint deadline);

 private:
  Task<Result<HttpResponse>> Exchange(Ask ask, TimePoint deadline);
  Task<Result<WireAnswer>> Probe(double temperature, TimePoint deadline);

  HttpClient& client_;
  const Wire& wire_;
  const HttpEngineOptions& options_;
  const std::string url_;
  std::string ticket_, adapter_;
};

}  // namespace forebay::rollout::external
