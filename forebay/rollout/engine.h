// Engine: turns prompts into sampled tokens, each with its log-probability and the policy_version
// that made it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {

struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids, not empty
  int32_t new_tokens_max = 64;
  double temperature = 1.0;  // 0: greedy
  // With the prompt and weights, decides every sampled token, whatever runs beside it.
  uint64_t seed = 0;
  std::vector<int32_t> stop_tokens;  // generation ends after one of these; it is part of the result
  int64_t priority = 0;  // smaller first (actors pass group_id, so that old groups finish)
  TimePoint deadline = TimePoint::max();
};

enum class FinishReason { kStop, kLength, kContext };  // kContext: the engine's context is full
std::string_view FinishReasonName(FinishReason reason);

struct GenerateResult {
  std::vector<int32_t> tokens;
  // Of the distribution sampled from (after temperature); greedy: of temperature 1.
  std::vector<float> logprobs;
  std::vector<VersionRun> versions;  // over tokens
  FinishReason finish_reason = FinishReason::kStop;
  int64_t queue_us = 0, prefill_us = 0, decode_us = 0;
  int64_t prompt_tokens_reused = 0;  // prompt tokens whose key/value entries were there already
};

struct EngineStats {
  int64_t requests = 0, active = 0, waiting = 0, slots = 0;
  int64_t sampled_tokens = 0, prefill_tokens = 0, reused_tokens = 0, decode_steps = 0;
  double busy_seconds = 0;           // in device programs
  double publish_stall_seconds = 0;  // decoding held up by new weights
  int64_t recompiles_after_warmup = 0;
};

// Thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;

  // Never blocks. `done` runs on the engine's thread and must not block. Errors: kInvalidArgument
  // (a prompt that is empty, has an unknown id, or leaves no room in the context: permanent),
  // kResourceExhausted (too many waiting), kDeadlineExceeded, kUnavailable (shut down or failed).
  virtual void Generate(GenerateRequest request,
                        std::function<void(Result<GenerateResult>)> done) = 0;

  // New weights, taken between two decode steps without draining. `taken` runs on the engine's
  // thread once the next token will be sampled with them, or with the error: kInvalidArgument when
  // names or shapes are not fully covered (the old weights stay). A newer snapshot replaces one
  // that is still waiting (its `taken` gets kCancelled).
  virtual void Publish(std::shared_ptr<const weights::Snapshot> snapshot,
                       std::function<void(Status)> taken) = 0;

  // The version that samples now, and the digest of those weights (weights::Digest of the snapshot;
  // "" if unknown).
  virtual int64_t policy_version() const = 0;
  virtual std::string weights_digest() const { return ""; }
  // The most tokens that a prompt and what is sampled after it may have together.
  virtual int64_t context_max() const { return std::numeric_limits<int64_t>::max(); }
  virtual EngineStats stats() const = 0;

  // Fails what is waiting or running with kUnavailable and stops. Idempotent; the destructor calls
  // it.
  virtual void Shutdown() = 0;
};

}  // namespace forebay::rollout
