// Wire: how one kind of server is asked to generate, and how its answer is read. Pure functions of
// text; nothing in an answer is trusted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::external {

struct Ask {
  std::string method = "POST";
  std::string target;  // "/inference/v1/generate"
  std::string body;    // JSON, or ""
  std::string content_type = "application/json";
};

// What a server says it sampled, checked as far as one answer allows.
struct WireAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;                          // one a token
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // one a token, if asked for
  bool stopped = false;                                 // else it ended at its length
  std::string stop_string;                              // what stopped it, if it was one
  // The label of the weights that sampled; "" if the server does not tell.
  std::string version;
  // Of a server of ours: over the tokens, which may be of several. Else empty.
  std::vector<VersionRun> versions;
};

// One step of taking new weights.
struct ReloadStep {
  Ask ask;
  bool optional = false;  // an older server may not have it (404)
  bool always = false;    // also after a step before it has failed
  std::string version;    // what the answer's "weight_version" must be; "": not asked for
  std::string remedy;     // what to do where the server has no such endpoint
};

class Wire {
 public:
  virtual ~Wire() = default;
  // kInvalidArgument: a parameter that this server has not, or not with the log-probabilities of
  // the distribution sampled.
  // `adapter`: the name of a loaded one that samples; "": none.
  virtual Result<Ask> Generate(const GenerateRequest& request,
                               const std::string& adapter) const = 0;
  // kDataLoss: not such an answer, or one whose tokens and log-probabilities do not belong
  // together.
  virtual Result<WireAnswer> Read(std::string_view body, const GenerateRequest& request) const = 0;
  virtual Ask Health() const { return {.method = "GET", .target = "/health"}; }
  // What a server answers at once even while it loads weights, with whatever status.
  virtual Ask Alive() const { return Health(); }
  // What tells digest and context; a target of "" where there is nothing.
  virtual Ask Model() const { return {.method = "GET", .target = ""}; }
  // What makes a server answer again that sleeps, or that was paused by a run that was killed while
  // it gave it weights.
  virtual std::vector<Ask> Rouse() const { return {}; }
  // Empty: it cannot take new weights.
  virtual std::vector<ReloadStep> Reload(const std::string& folder, int64_t version) const = 0;
  // How it loads an adapter from a folder under a name, and forgets one. nullopt: it cannot.
  virtual std::optional<Ask> LoadAdapter(const std::string& /*name*/,
                                         const std::string& /*folder*/) const {
    return std::nullopt;
  }
  virtual std::optional<Ask> UnloadAdapter(const std::string& /*name*/) const {
    return std::nullopt;
  }
  // What to start the server with so that it can be asked to generate, and so that it tells
  // log-probabilities of the distribution sampled.
  virtual std::string generate_remedy() const = 0;
  virtual std::string logprobs_remedy() const = 0;
};

std::unique_ptr<Wire> MakeWire(const HttpEngineOptions& options);
std::unique_ptr<Wire> MakeVllmWire(const std::string& model);
std::unique_ptr<Wire> MakeForebayWire(const std::string& model);
std::unique_ptr<Wire> MakeSglangWire();
std::unique_ptr<Wire> MakeLlamaCppWire();

// Whether the request samples from softmax(logits) itself: then every server's log-probabilities
// are of the distribution sampled. Greedy counts: by contract its are of temperature 1.
bool Plain(const GenerateRequest& request);
// Whether top-k, top-p or min-p take tokens out.
bool Filters(const GenerateRequest& request);

// What an engine returns for it: cut behind the first stop token, each id in [0, vocab_size), each
// log-probability finite and at most 0 but for rounding, no more tokens than asked for, at least
// one. `policy_version` is of all tokens, unless the answer tells it of each. kDataLoss says what
// is wrong.
Result<GenerateResult> CheckAnswer(WireAnswer answer, const GenerateRequest& request,
                                   int64_t vocab_size, int64_t policy_version);

}  // namespace forebay::rollout::external
