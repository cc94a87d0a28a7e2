// HttpEngine: servers of vLLM, SGLang, llama.cpp or `forebay serve` as the engine of a run
// (docs/external_engines.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {

enum class HttpEngineProtocol {
  kVllm,      // POST /inference/v1/generate: vLLM
  kForebay,   // the same of `forebay serve`, which takes weights over its socket
  kSglang,    // POST /generate
  kLlamaCpp,  // POST /completion
};

struct HttpEngineOptions {
  HttpEngineProtocol protocol = HttpEngineProtocol::kVllm;
  std::vector<std::string> servers;      // "http://host:8000" or "unix:/path.sock:", at least one
  std::string token;                     // their API key; "": none
  std::string ca_file;                   // as HttpClientOptions
  std::string model;                     // the name that requests give; "": none
  int64_t vocab_size = 0;                // of the model: an id beyond it is garbage
  int64_t context = 512;                 // tokens of a prompt and what is sampled after it
  int64_t requests_per_server_max = 64;  // sent at once; more wait here
  int64_t waiting_max = 4096;

  // New weights: written as Hugging Face folders below one of the run's own in `weights_folder`,
  // which the servers see under the same path, and reloaded from there; kForebay needs no folder,
  // what a server lacks goes over its socket. False: the servers keep the weights they have.
  bool reload = false;
  std::string weights_folder;
  // Who gives the weights. A server of kForebay takes them of one run at a time; a process that
  // goes on with a run has the run's name.
  std::string publisher = "forebay";
  weights::ModelFiles files;  // without tensors: what is written beside new weights
  // Without reload: the newest version, counted from the first, that may still be published. The
  // buffer would refuse to train on what is sampled after it.
  int64_t versions_ahead_max = 0;

  Duration start_deadline = std::chrono::seconds(120);  // for every server to be ready
  Duration health_period = std::chrono::seconds(2);
  Duration health_deadline = std::chrono::seconds(10);
  Duration reload_deadline = std::chrono::minutes(10);  // of one server, waiting for its requests
  size_t answer_bytes_max = size_t{64} << 20;
  // Told what happens to servers, a sentence each; may be null. On the engine's thread.
  std::function<void(const std::string&)> log;
};

// Writes a LoRA adapter into a folder that it makes, as PEFT's two files. Blocks; on any thread.
using AdapterWriter = std::function<Status(const std::string& folder)>;

// What a LoRA run begins with.
struct FirstAdapter {
  AdapterWriter write;      // null: weights are reloaded whole
  weights::TensorMap base;  // what the adapters are added to
};

class HttpEngine : public Engine {
 public:
  // As Publish, of an engine that has a FirstAdapter. `snapshot` is what the adapter gives, merged
  // into the base.
  virtual void PublishAdapter(std::shared_ptr<const weights::Snapshot> snapshot,
                              AdapterWriter adapter, std::function<void(Status)> taken) = 0;
};

// An engine over servers that stand already. Blocks until every server is ready: it answers, its
// answers hold the sampled tokens and their log-probabilities, its weights (where it tells their
// digest) are `initial`, or with `reload` have become so. Owns two threads (talking to servers,
// writing weights). Errors: kInvalidArgument (options), kFailedPrecondition (a server that cannot
// be used for training, with the reason and the remedy), kUnavailable (one that is not there).
//
// A request goes to the server with the fewest. An answer whose tokens and log-probabilities do not
// belong together is kDataLoss, a request that its server failed or left is kInternal, and neither
// is ever a result. A server is dead when its health check fails, or after some 500s in a row with
// nothing answered between them: it gets no requests until it is back. With the last one everything
// fails at once with kUnavailable, until one is back. Cancel and deadlines close the request's
// connection, which is how servers are told.
//
// With reload a server takes new weights when its requests have ended (others go on meanwhile), so
// an answer has one version. If a server tells its version (vLLM, SGLang) it must be that one.
// kForebay takes them between two decode steps: nothing is drained, and each token has the version
// that sampled it. Without reload, every token has the version of `initial`.
//
// Differences to the built-in engine: on_token is called when the whole answer is there. Seeds
// decide as much as the server lets them. Requests whose log-probabilities the server would not
// tell of the distribution it samples are refused (kInvalidArgument): which, is asked of it at
// first. kLlamaCpp has no penalties, logit bias or stop strings, kSglang no filters.
//
// With an adapter (kVllm, kSglang, reload), servers reload the base once, and then load adapters
// over it, each version under a name that requests give; nothing is drained for them. A server
// without a way to load one takes merged weights.
Result<std::unique_ptr<HttpEngine>> MakeHttpEngine(const HttpEngineOptions& options,
                                                   const weights::Snapshot& initial,
                                                   const FirstAdapter& adapter = {});

}  // namespace forebay::rollout
