// The binary form of a trajectory, version 1. All numbers are little-endian.
//
//   u32 magic "FBTR", u16 format, u8 outcome, u8 0
//   u32 tokens, u32 loss_tokens, u32 version_runs, u32 turns, u32 rewards
//   i64 trajectory_id, i64 group_id, i32 member, i32 attempt, i64 task_id
//   f64 temperature, i64 started_us, i64 ended_us
//   string environment                       (a string: u32 length, bytes)
//   i32 token[tokens]
//   u8  loss_mask bits[(tokens + 7) / 8]     lowest bit first, unused bits 0
//   f32 rollout_logprob[loss_tokens]         of the loss tokens only; the others are 0
//   version runs: i64 policy_version[version_runs], i32 tokens[version_runs]
//   turns: { u8 kind, i32 begin, i32 end, i64 x 5 spans, string tool } x turns
//   rewards: { string name, f64 } x rewards, by ascending name
//
// One trajectory has one form, so equal trajectories have equal bytes. Integrity is the carrier's
// (the log's records have a CRC); this code only promises that hostile bytes give an error.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/bytes.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/id_bytes.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay {
namespace {

constexpr uint32_t kMagic = 0x52544246;  // "FBTR"
constexpr uint16_t kFormat = 1;
constexpr size_t kFixedBytes = 8 + 20 + 32 + 24;
constexpr size_t kTurnBytes = 1 + 8 + 40 + 4;
constexpr size_t kRewardBytes = 4 + 8;

struct Counts {
  uint32_t tokens, loss_tokens, versions, turns, rewards;
};

void PutMask(const std::vector<uint8_t>& mask, ByteWriter& out) {
  std::vector<uint8_t> bits((mask.size() + 7) / 8, 0);
  for (size_t i = 0; i < mask.size(); ++i) bits[i / 8] |= static_cast<uint8_t>(mask[i] << (i % 8));
  out.PutColumn(bits);
}

// False when the bits are not canonical.
bool GetMask(ByteReader& in, const Counts& counts, std::vector<uint8_t>& mask) {
  const std::vector<uint8_t> bits = in.GetColumn<uint8_t>((size_t{counts.tokens} + 7) / 8);
  if (!in.ok()) return false;
  mask.resize(counts.tokens);
  size_t ones = 0;
  for (size_t i = 0; i < mask.size(); ++i) ones += mask[i] = (bits[i / 8] >> (i % 8)) & 1;
  if (counts.tokens % 8 != 0 && (bits.back() >> (counts.tokens % 8)) != 0) return false;
  return ones == counts.loss_tokens;
}

void PutTurn(const Turn& turn, ByteWriter& out) {
  out.Put(static_cast<uint8_t>(turn.kind));
  out.Put(turn.begin);
  out.Put(turn.end);
  out.Put(turn.spans.queue_us);
  out.Put(turn.spans.prefill_us);
  out.Put(turn.spans.decode_us);
  out.Put(turn.spans.environment_us);
  out.Put(turn.spans.reward_us);
  out.PutString(turn.tool);
}

Turn GetTurn(ByteReader& in) {
  Turn turn;
  turn.kind = static_cast<TurnKind>(in.Get<uint8_t>());  // Validate checks it
  turn.begin = in.Get<int32_t>();
  turn.end = in.Get<int32_t>();
  turn.spans.queue_us = in.Get<int64_t>();
  turn.spans.prefill_us = in.Get<int64_t>();
  turn.spans.decode_us = in.Get<int64_t>();
  turn.spans.environment_us = in.Get<int64_t>();
  turn.spans.reward_us = in.Get<int64_t>();
  turn.tool = in.GetString();
  return turn;
}

Status Broken(std::string_view what) {
  return DataLoss(fmt::format("encoded trajectory: {}", what));
}

// The columns between the name and the turns.
Status GetColumns(ByteReader& in, const Counts& counts, Trajectory& t) {
  t.tokens = in.GetColumn<int32_t>(counts.tokens);
  if (!GetMask(in, counts, t.loss_mask)) return Broken("the loss mask is cut or not canonical");
  const std::vector<float> logprobs = in.GetColumn<float>(counts.loss_tokens);
  const std::vector<int64_t> versions = in.GetColumn<int64_t>(counts.versions);
  const std::vector<int32_t> runs = in.GetColumn<int32_t>(counts.versions);
  if (!in.ok()) return Broken("cut within its columns");
  t.rollout_logprobs.assign(counts.tokens, 0.0F);
  size_t next = 0;
  for (size_t i = 0; i < t.tokens.size(); ++i) {
    if (t.loss_mask[i] != 0) t.rollout_logprobs[i] = logprobs[next++];
  }
  t.versions.reserve(counts.versions);
  for (size_t i = 0; i < versions.size(); ++i) t.versions.push_back({versions[i], runs[i]});
  return OkStatus();
}

}  // namespace

std::string Encode(const Trajectory& t) {
  const Status valid = Validate(t);
  FB_CHECK(valid.ok(), valid.message());
  const int64_t loss_tokens = t.loss_tokens();
  ByteWriter out;
  out.Reserve(kFixedBytes + 64 + t.tokens.size() * 9 + t.turns.size() * (kTurnBytes + 16));
  out.Put(kMagic);
  out.Put(kFormat);
  out.Put(static_cast<uint8_t>(t.outcome));
  out.Put(uint8_t{0});
  out.Put(static_cast<uint32_t>(t.tokens.size()));
  out.Put(static_cast<uint32_t>(loss_tokens));
  out.Put(static_cast<uint32_t>(t.versions.size()));
  out.Put(static_cast<uint32_t>(t.turns.size()));
  out.Put(static_cast<uint32_t>(t.rewards.size()));
  PutId(t.id, out);
  out.Put(t.temperature);
  out.Put(t.started_us);
  out.Put(t.ended_us);
  out.PutString(t.environment);
  out.PutColumn(t.tokens);
  PutMask(t.loss_mask, out);
  for (size_t i = 0; i < t.tokens.size(); ++i) {
    if (t.loss_mask[i] != 0) out.Put(t.rollout_logprobs[i]);
  }
  for (const VersionRun& run : t.versions) out.Put(run.policy_version);
  for (const VersionRun& run : t.versions) out.Put(run.tokens);
  for (const Turn& turn : t.turns) PutTurn(turn, out);
  for (const auto& [name, value] : t.rewards) {
    out.PutString(name);
    out.Put(value);
  }
  return std::move(out).Take();
}

Result<Trajectory> Decode(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.Get<uint32_t>() != kMagic) return Broken("it does not begin with FBTR");
  const auto format = in.Get<uint16_t>();
  if (in.ok() && format != kFormat) {
    return Broken(fmt::format("format {}, this build reads {}", format, kFormat));
  }
  Trajectory t;
  t.outcome = static_cast<Outcome>(in.Get<uint8_t>());
  if (in.Get<uint8_t>() != 0) return Broken("a reserved byte is not 0");
  Counts counts{};
  counts.tokens = in.Get<uint32_t>();
  counts.loss_tokens = in.Get<uint32_t>();
  counts.versions = in.Get<uint32_t>();
  counts.turns = in.Get<uint32_t>();
  counts.rewards = in.Get<uint32_t>();
  t.id = GetId(in);
  t.temperature = in.Get<double>();
  t.started_us = in.Get<int64_t>();
  t.ended_us = in.Get<int64_t>();
  t.environment = in.GetString();
  FB_RETURN_IF_ERROR(GetColumns(in, counts, t));
  if (!in.Fits(counts.turns, kTurnBytes)) return Broken("fewer turns than counted");
  t.turns.reserve(counts.turns);
  for (uint32_t i = 0; i < counts.turns && in.ok(); ++i) t.turns.push_back(GetTurn(in));
  if (!in.Fits(counts.rewards, kRewardBytes)) return Broken("fewer rewards than counted");
  for (uint32_t i = 0; i < counts.rewards && in.ok(); ++i) {
    std::string name(in.GetString());
    const auto value = in.Get<double>();
    if (!t.rewards.empty() && name <= t.rewards.rbegin()->first)
      return Broken("rewards out of order");
    t.rewards.emplace_hint(t.rewards.end(), std::move(name), value);
  }
  if (!in.ok()) return Broken("cut short");
  if (!in.AtEnd()) return Broken(fmt::format("{} bytes too many", in.remaining()));
  const Status valid = Validate(t);
  if (!valid.ok()) return Broken(valid.message());
  return t;
}

std::optional<TrajectoryId> PeekId(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.Get<uint32_t>() != kMagic || in.Get<uint16_t>() != kFormat) return std::nullopt;
  in.GetRaw(2 + 5 * sizeof(uint32_t));
  TrajectoryId id = GetId(in);
  if (!in.ok() || id.trajectory_id < 0 || id.group_id < 0 || id.member < 0) return std::nullopt;
  return id;
}

std::optional<TrajectorySummary> PeekSummary(std::string_view bytes) {
  const std::optional<TrajectoryId> id = PeekId(bytes);
  if (!id) return std::nullopt;
  TrajectorySummary summary{.id = *id};
  ByteReader in(bytes);
  in.GetRaw(6);
  const auto outcome = in.Get<uint8_t>();
  if (outcome >= kOutcomes || in.Get<uint8_t>() != 0) return std::nullopt;
  summary.outcome = static_cast<Outcome>(outcome);
  summary.tokens = in.Get<uint32_t>();
  summary.loss_tokens = in.Get<uint32_t>();
  const auto versions = in.Get<uint32_t>();
  in.GetRaw(kFixedBytes - 8 - 3 * sizeof(uint32_t));
  in.GetString();
  // Tokens, mask and log-probabilities are stepped over.
  const auto tokens = static_cast<size_t>(summary.tokens);
  in.GetRaw(tokens * sizeof(int32_t) + (tokens + 7) / 8 +
            static_cast<size_t>(summary.loss_tokens) * sizeof(float));
  if (!in.Fits(versions, sizeof(int64_t) + sizeof(int32_t))) return std::nullopt;
  for (uint32_t i = 0; i < versions; ++i) {
    const auto version = in.Get<int64_t>();
    if (version < 0) return std::nullopt;
    if (i == 0 || version < summary.min_version) summary.min_version = version;
  }
  in.GetRaw(versions * sizeof(int32_t));
  if (!in.ok()) return std::nullopt;
  return summary;
}

}  // namespace forebay
