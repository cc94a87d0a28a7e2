// Engine: turns prompts into sampled tokens, each with its log-probability and the policy_version
// that made it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {

// A token that might have been sampled, and its log-probability.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

// One sampled token, told as soon as it is there.
struct TokenEvent {
  uint64_t request = 0;  // what Generate returned
  int64_t index = 0;     // in GenerateResult::tokens
  int32_t token = 0;
  float logprob = 0;
  int64_t policy_version = 0;
  std::vector<TokenLogprob> top_logprobs;  // as in GenerateResult
};

inline constexpr int32_t kTopLogprobsMax = 20;
inline constexpr int64_t kLogitBiasMax = 300;   // entries of one request
inline constexpr int64_t kStopStringsMax = 16;  // of one request, each not empty
inline constexpr int64_t kStopStringBytesMax = 1024;

// The logits are processed in this order: logit bias; repetition penalty (of prompt and sampled
// tokens: positive logits are divided by it, others multiplied); frequency and presence penalty (of
// sampled tokens: count * frequency + presence is subtracted); temperature; min-p (what is less
// likely than min_p * the most likely token goes); top-k; top-p (the fewest most likely tokens that
// have top_p of what is left stay). Tokens that tie with the last one kept are kept. The defaults
// change nothing. With temperature 0 the filters do not matter.
struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids, not empty
  int32_t new_tokens_max = 64;
  double temperature = 1.0;  // 0: greedy
  // With the prompt and weights, decides every sampled token, whatever runs beside it.
  uint64_t seed = 0;
  std::vector<int32_t> stop_tokens;  // generation ends after one of these; it is part of the result
  int64_t priority = 0;  // smaller first (actors pass group_id, so that old groups finish)
  TimePoint deadline = TimePoint::max();

  int32_t top_k = 0;              // 0: all
  double top_p = 1;               // (0, 1]
  double min_p = 0;               // [0, 1]
  double repetition_penalty = 1;  // > 0
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token ids, each at most once
  // Generation ends with the token that completes one of these in the decoded text of what was
  // sampled; that token is part of the result. Needs an engine that has a tokenizer.
  std::vector<std::string> stop_strings;
  int32_t top_logprobs = 0;  // alternatives wanted for each token, at most kTopLogprobsMax
  // Called for every sampled token, before `done`. Runs on the engine's thread and must not block.
  std::function<void(const TokenEvent&)> on_token;
};

enum class FinishReason { kStop, kLength, kContext };  // kContext: the engine's context is full
std::string_view FinishReasonName(FinishReason reason);

struct GenerateResult {
  std::vector<int32_t> tokens;
  // Of the distribution sampled from (after all processors); greedy: of temperature 1.
  std::vector<float> logprobs;
  std::vector<VersionRun> versions;  // over tokens
  FinishReason finish_reason = FinishReason::kStop;
  // kStop: what ended it. The stop string; or "" and the stop token (else -1).
  std::string stop_string;
  int32_t stop_token = -1;
  // For each token, if asked for: the most likely ones of the distribution sampled from, best
  // first. Fewer than asked for where fewer can be sampled.
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  int64_t queue_us = 0, prefill_us = 0, decode_us = 0;
  int64_t prompt_tokens_reused = 0;  // prompt tokens whose key/value entries were there already
};

struct EngineStats {
  int64_t requests = 0, active = 0, waiting = 0, slots = 0;
  int64_t sampled_tokens = 0, prefill_tokens = 0, reused_tokens = 0, decode_steps = 0;
  double busy_seconds = 0;  // in device programs
  // Decoding held up by new weights: in all, by the last and the longest publish. The last also
  // says how many were taken.
  double publish_stall_seconds = 0, publish_stall_last_s = 0, publish_stall_max_s = 0;
  int64_t publishes = 0;
  // Of weights that went to servers over sockets: their size, and how much of it was sent.
  int64_t published_bytes = 0, published_bytes_sent = 0;
  // Programs that the engine's client compiled since the engine was ready, whoever asked for them.
  int64_t recompiles_after_warmup = 0;
};

// Thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;

  // Never blocks. Returns the request's id, for Cancel: positive, never used again by this engine.
  // `done` runs on the engine's thread (if the engine has ended, perhaps at once and on the
  // caller's) and must not block. Errors: kInvalidArgument (a prompt that is empty, has an unknown
  // id, or leaves no room in the context, or a parameter out of its range: permanent),
  // kResourceExhausted (too many waiting), kDeadlineExceeded, kCancelled, kUnavailable (shut down
  // or failed).
  virtual uint64_t Generate(GenerateRequest request,
                            std::function<void(Result<GenerateResult>)> done) = 0;
  // The request, waiting or running, ends soon: its `done` gets kCancelled. Never blocks. An id
  // that has ended, or never was, is ignored.
  virtual void Cancel(uint64_t id) = 0;

  // New weights, taken between two decode steps without draining. `taken` runs on the engine's
  // thread once the next token will be sampled with them, or with the error: kInvalidArgument when
  // they do not cover all names and shapes (the old weights stay), kCancelled for a snapshot that a
  // newer one replaces while it waits, kUnavailable after Shutdown or when that comes first.
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
