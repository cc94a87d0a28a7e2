// RecordingProxy: OpenAI's endpoints in front of the policy that is being trained. Any program that
// takes a base URL and a key becomes an episode; its calls become a trajectory (docs/serving.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {

struct RecordingProxyOptions {
  std::vector<std::string> listen = {"tcp:127.0.0.1:0"};
  std::string certificate_file, key_file;  // PEM: TLS
  // For JSON, templates and tokenizing, which the loop then has none of; null: all on the loop.
  WorkerPool* workers = nullptr;
  // Told once, on the loop, when a harness sends tools and the chat template knows none; may be
  // null.
  std::function<void(const std::string&)> note;
};

struct RecordingOptions {
  std::string environment;  // its configured name
  double temperature = 1.0;
  int32_t new_tokens_per_call_max = 1024;
  int32_t calls_max = 256;
  int64_t tokens_max = 65536;  // of all branches together, once and for all
  Duration generate_deadline = std::chrono::seconds(120);
};

// What a harness is given.
struct EpisodeAccess {
  std::string base_url;  // OPENAI_BASE_URL
  std::string api_key;   // OPENAI_API_KEY: of this episode alone
  // POST {"reward": 1.0} or {"rewards": {"component": 1.0}} with the same key; more than once adds
  // components or replaces them.
  std::string reward_url;
};

// How a harness ended, as its owner saw it.
struct HarnessEnd {
  // kEnvTimeout, kEnvError or kAborted when it did not end as it should; else kDone.
  Outcome outcome = Outcome::kDone;
  Status reason;                          // with any other outcome
  std::map<std::string, double> rewards;  // of a grader; they add to what was posted
  // For errors, as far as it is known: "exited with code 0", and what it wrote last.
  std::string how, last_errors, last_output_line;
};

// The sampler's parameters are the run's, whatever a harness asks for: temperature, top_p, top_k
// and min_p are overridden; penalties and logit_bias are refused, because the loss could not
// reproduce them. Prompts go on from recorded tokens wherever a request quotes recorded answers;
// else a new branch begins (serving/episode_record.h says when).
//
// A call's time from its answer to the episode's next call, or to its end, is the environment's;
// the tool is the first that the answer calls, if the request's `tools` have it.
//
// All calls on the loop, which must be on real time.
class RecordingProxy {
 public:
  // As OpenAiServer::Start, but every address needs a key already (Open gives it out).
  static Result<std::unique_ptr<RecordingProxy>> Start(Loop& loop, const ServedModel& model,
                                                       const RecordingProxyOptions& options);
  virtual ~RecordingProxy() = default;

  virtual const std::vector<std::string>& addresses() const = 0;

  // From now on the key is good.
  virtual EpisodeAccess Open(const Assignment& assignment, const RecordingOptions& options) = 0;
  // From now on the key is refused, calls that run are cancelled. The trajectory is valid whatever
  // happened; its outcome is `end`'s, unless that is kDone and
  //   a call failed in the engine:                  kEngineError
  //   the policy was never asked, or gave no token: kEnvError, and no tokens at all
  //   nobody has given a reward:                    kGraderError (kTruncatedTokens: no tokens left,
  //                                                 and no reward needed)
  // `reason` says why when it may not be trained on.
  virtual Task<Trajectory> Close(std::string api_key, HarnessEnd end, Status* reason) = 0;

  virtual int64_t open() const = 0;  // episodes
  // As OpenAiServer::Stop; episodes that are open stay so until they are closed.
  virtual Task<void> Stop(TimePoint deadline) = 0;
};

}  // namespace forebay::rollout
