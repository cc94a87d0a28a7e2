#include "forebay/trajectory/trajectory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"

namespace forebay {
namespace {

constexpr std::array<std::string_view, kOutcomes> kNames = {
    "done",        "truncated_tokens", "truncated_turns", "policy_timeout", "env_error",
    "env_timeout", "engine_error",     "aborted",         "grader_error"};
constexpr int64_t kTokensMax = std::numeric_limits<int32_t>::max();  // turns hold int32 ranges
constexpr size_t kNameBytesMax = size_t{1} << 16;
constexpr double kRewardMax = 1e30;  // sums and squares of a group's stay finite

Status CheckColumns(const Trajectory& t) {
  const size_t n = t.tokens.size();
  if (n > static_cast<size_t>(kTokensMax)) {
    return InvalidArgument(fmt::format("{} tokens, at most {} fit", n, kTokensMax));
  }
  if (t.loss_mask.size() != n || t.rollout_logprobs.size() != n) {
    return InvalidArgument(
        fmt::format("columns differ in length: {} tokens, {} of loss_mask, {} of rollout_logprobs",
                    n, t.loss_mask.size(), t.rollout_logprobs.size()));
  }
  for (size_t i = 0; i < n; ++i) {
    if (t.tokens[i] < 0) return InvalidArgument(fmt::format("token {} is {}", i, t.tokens[i]));
    if (t.loss_mask[i] > 1) {
      return InvalidArgument(
          fmt::format("loss_mask of token {} is {}, not 0 or 1", i, t.loss_mask[i]));
    }
    if (!std::isfinite(t.rollout_logprobs[i])) {
      return InvalidArgument(fmt::format("rollout_logprob of token {} is not finite", i));
    }
    if (t.loss_mask[i] == 0 && t.rollout_logprobs[i] != 0) {
      return InvalidArgument(
          fmt::format("token {} was not sampled (loss_mask 0) but has rollout_logprob {}", i,
                      t.rollout_logprobs[i]));
    }
  }
  return OkStatus();
}

Status CheckVersions(const Trajectory& t) {
  int64_t sum = 0;
  for (const VersionRun& run : t.versions) {
    if (run.tokens <= 0 || run.policy_version < 0) {
      return InvalidArgument(fmt::format("version run of {} tokens at policy_version {}",
                                         run.tokens, run.policy_version));
    }
    sum += run.tokens;
  }
  if (sum != t.loss_tokens()) {
    return InvalidArgument(
        fmt::format("version runs cover {} tokens of {} loss tokens", sum, t.loss_tokens()));
  }
  return OkStatus();
}

Status CheckTurns(const Trajectory& t) {
  int32_t last = 0;
  for (size_t i = 0; i < t.turns.size(); ++i) {
    const Turn& turn = t.turns[i];
    if (turn.begin < last || turn.end < turn.begin ||
        static_cast<size_t>(turn.end) > t.tokens.size()) {
      return InvalidArgument(fmt::format(
          "turn {} is [{}, {}): turns must be in order, not overlap and end by token {}", i,
          turn.begin, turn.end, t.tokens.size()));
    }
    if (static_cast<int>(turn.kind) > static_cast<int>(TurnKind::kObservation)) {
      return InvalidArgument(fmt::format("turn {} has kind {}", i, static_cast<int>(turn.kind)));
    }
    if (turn.tool.size() > kNameBytesMax) {
      return InvalidArgument(
          fmt::format("the tool name of turn {} is longer than {} bytes", i, kNameBytesMax));
    }
    last = turn.end;
  }
  return OkStatus();
}

}  // namespace

std::string_view OutcomeName(Outcome outcome) {
  const auto index = static_cast<size_t>(outcome);
  FB_CHECK(index < kNames.size(), "an outcome outside of its list");
  return kNames[index];
}

std::optional<Outcome> ParseOutcome(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Outcome>(i);
  }
  return std::nullopt;
}

bool Trains(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
    case Outcome::kTruncatedTokens:
    case Outcome::kTruncatedTurns:
    case Outcome::kPolicyTimeout:
      return true;
    case Outcome::kEnvError:
    case Outcome::kEnvTimeout:
    case Outcome::kEngineError:
    case Outcome::kAborted:
    case Outcome::kGraderError:
      return false;
  }
  return false;
}

double Trajectory::reward() const {
  double sum = 0;
  for (const auto& [name, value] : rewards) sum += value;
  return sum;
}

int64_t Trajectory::loss_tokens() const {
  return std::count(loss_mask.begin(), loss_mask.end(), uint8_t{1});
}

int64_t Trajectory::min_version() const {
  if (versions.empty()) return -1;
  return std::ranges::min(versions, {}, &VersionRun::policy_version).policy_version;
}

int64_t Trajectory::max_version() const {
  if (versions.empty()) return -1;
  return std::ranges::max(versions, {}, &VersionRun::policy_version).policy_version;
}

std::vector<TokenRange> Branches(const Trajectory& trajectory) {
  std::vector<TokenRange> out = {{.begin = 0, .end = trajectory.tokens.size()}};
  for (const Turn& turn : trajectory.turns) {
    const auto begin = static_cast<size_t>(turn.begin);
    if (turn.kind != TurnKind::kPrompt || turn.begin == turn.end || begin == out.back().begin) {
      continue;
    }
    out.back().end = begin;
    out.push_back({.begin = begin, .end = trajectory.tokens.size()});
  }
  return out;
}

Status Validate(const Trajectory& t) {
  if (t.id.trajectory_id < 0 || t.id.group_id < 0 || t.id.member < 0 || t.id.attempt < 0) {
    return InvalidArgument(
        fmt::format("negative id: trajectory {}, group {}, member {}, attempt {}",
                    t.id.trajectory_id, t.id.group_id, t.id.member, t.id.attempt));
  }
  if (static_cast<int>(t.outcome) >= kOutcomes) {
    return InvalidArgument(fmt::format("outcome {}", static_cast<int>(t.outcome)));
  }
  if (!std::isfinite(t.temperature) || t.temperature < 0) {
    return InvalidArgument(fmt::format("temperature {}", t.temperature));
  }
  if (t.environment.size() > kNameBytesMax) {
    return InvalidArgument(
        fmt::format("the environment's name is longer than {} bytes", kNameBytesMax));
  }
  for (const auto& [name, value] : t.rewards) {
    if (!std::isfinite(value))
      return InvalidArgument(fmt::format("reward '{}' is not finite", name));
    if (std::fabs(value) > kRewardMax) {
      return InvalidArgument(
          fmt::format("reward '{}' = {} is beyond +-{}", name, value, kRewardMax));
    }
    if (name.size() > kNameBytesMax) {
      return InvalidArgument(fmt::format("a reward's name is longer than {} bytes", kNameBytesMax));
    }
  }
  FB_RETURN_IF_ERROR(CheckColumns(t));
  FB_RETURN_IF_ERROR(CheckVersions(t));
  return CheckTurns(t);
}

}  // namespace forebay
