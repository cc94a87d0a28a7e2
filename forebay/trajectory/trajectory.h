// The trajectory: what an episode leaves behind, and the only thing that actors, buffer and learner
// exchange.
//
// Tokens are the truth: the ids that the engine saw and sampled are the ids that are trained on.
// Columns are immutable once appended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay {

// How an episode ended: one closed list from environment to loss.
enum class Outcome : uint8_t {
  kDone = 0,
  kTruncatedTokens = 1,  // the token budget ended
  kTruncatedTurns = 2,   // the turn budget ended
  kPolicyTimeout = 3,    // the policy's fault: trains, scores what the task says
  // Infrastructure: never trains, never a reward of 0; the sample is replaced.
  kEnvError = 4,
  kEnvTimeout = 5,
  kEngineError = 6,
  kAborted = 7,
  kGraderError = 8,
};
inline constexpr int kOutcomes = 9;

std::string_view OutcomeName(Outcome outcome);  // "truncated_tokens"
std::optional<Outcome> ParseOutcome(std::string_view name);
// True for the outcomes that may be trained on.
bool Trains(Outcome outcome);

// A run of tokens that were sampled by one policy version.
struct VersionRun {
  int64_t policy_version;
  int32_t tokens;
  friend bool operator==(const VersionRun&, const VersionRun&) = default;
};

enum class TurnKind : uint8_t { kPrompt = 0, kAction = 1, kObservation = 2 };

// Where the time of a turn went, in microseconds of the monotonic clock.
struct Spans {
  int64_t queue_us = 0;  // waiting for an engine slot
  int64_t prefill_us = 0;
  int64_t decode_us = 0;
  int64_t environment_us = 0;  // the environment's or tool's answer to this action
  int64_t reward_us = 0;
  friend bool operator==(const Spans&, const Spans&) = default;
};

// A turn of kind prompt that is not the first begins a new branch: what stands before it was not
// seen by what comes after (an agent that rewrites its history leaves several).
struct Turn {
  TurnKind kind = TurnKind::kPrompt;
  int32_t begin = 0, end = 0;  // token range [begin, end)
  Spans spans;
  std::string tool;  // the tool or environment call that answered, "" if none
  friend bool operator==(const Turn&, const Turn&) = default;
};

// Which episode this is. Ids are monotonic in a run and never reused.
struct TrajectoryId {
  int64_t trajectory_id = 0;  // one attempt of one member
  int64_t group_id = 0;       // samples of one task that share a baseline
  int32_t member = 0;         // 0 .. group_size-1
  int32_t attempt = 0;        // replacements of this member so far
  int64_t task_id = 0;
  friend bool operator==(const TrajectoryId&, const TrajectoryId&) = default;
};

struct Trajectory {
  TrajectoryId id;
  std::string environment;  // its configured name, for audit

  // Per token; all three have equal length. Where loss_mask is 0 the logprob is 0.
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss_mask;  // 1: sampled by the policy
  // Of the distribution that was really sampled (after temperature).
  std::vector<float> rollout_logprobs;

  std::vector<VersionRun> versions;  // run-length over the loss tokens, in order
  std::vector<Turn> turns;
  std::map<std::string, double> rewards;  // by component; their sum is the reward
  Outcome outcome = Outcome::kDone;
  double temperature = 1.0;
  int64_t started_us = 0, ended_us = 0;  // wall clock, labels only

  double reward() const;
  int64_t loss_tokens() const;
  // Smallest / largest policy_version of the loss tokens; -1 if there are none.
  int64_t min_version() const;
  int64_t max_version() const;

  friend bool operator==(const Trajectory&, const Trajectory&) = default;
};

// kInvalidArgument when columns disagree (lengths, mask values, version runs, turn ranges,
// non-finite numbers): what Encode refuses and Decode never returns.
Status Validate(const Trajectory& trajectory);

// A range of tokens [begin, end).
struct TokenRange {
  size_t begin = 0, end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};
// The sequences in it that were each seen as a whole, in order: at least one; together they are all
// tokens. Of a valid trajectory.
std::vector<TokenRange> Branches(const Trajectory& trajectory);

// The wire and log form: little-endian, versioned, columns after a header (trajectory/codec.cc
// documents it). Encode CHECKs Validate.
std::string Encode(const Trajectory& trajectory);
// kDataLoss for truncated, oversized or inconsistent bytes; never allocates more than a small
// multiple of the input's size.
Result<Trajectory> Decode(std::string_view bytes);
// Whose encoding this is, from its first bytes alone; nullopt when they are not the beginning of
// one. For damaged records: the rest need not be valid.
std::optional<TrajectoryId> PeekId(std::string_view bytes);

// What an encoding says about itself, from its fixed part and its version runs: whoever stores it
// needs no more. Only the places are checked, not the columns (Decode does that).
struct TrajectorySummary {
  TrajectoryId id;
  Outcome outcome = Outcome::kDone;
  int64_t tokens = 0, loss_tokens = 0;
  int64_t min_version = -1;  // of the loss tokens; -1 if there are none
};
// nullopt: not an encoding, or cut before its version runs end.
std::optional<TrajectorySummary> PeekSummary(std::string_view bytes);

// What the coordinator hands an actor: run this episode.
struct Assignment {
  TrajectoryId id;
  uint64_t seed = 0;           // of this member: sampling and the environment derive from it
  int64_t policy_version = 0;  // the version published when it was admitted
};

}  // namespace forebay
