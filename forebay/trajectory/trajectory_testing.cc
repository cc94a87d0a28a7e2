#include "forebay/trajectory/trajectory_testing.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "forebay/base/rng.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay {
namespace {

std::string RandomName(Rng& rng, uint64_t bytes_max) {
  std::string name(rng.Below(bytes_max + 1), ' ');
  for (char& c : name) c = static_cast<char>(rng.Below(256));
  return name;
}

}  // namespace

Trajectory RandomTrajectory(Rng& rng, int64_t tokens_max) {
  Trajectory t;
  t.id = {.trajectory_id = static_cast<int64_t>(rng.Next() >> 1),
          .group_id = static_cast<int64_t>(rng.Below(1000)),
          .member = static_cast<int32_t>(rng.Below(8)),
          .attempt = static_cast<int32_t>(rng.Below(4)),
          .task_id = static_cast<int64_t>(rng.Next())};
  t.environment = RandomName(rng, 12);
  const auto n = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(tokens_max) + 1));
  const uint64_t one_in = 1 + rng.Below(4);
  for (int32_t i = 0; i < n; ++i) {
    const bool sampled = rng.Below(one_in) == 0;
    t.tokens.push_back(static_cast<int32_t>(rng.Below(1U << 31)));
    t.loss_mask.push_back(sampled ? 1 : 0);
    t.rollout_logprobs.push_back(sampled ? static_cast<float>(-3 * rng.Uniform()) : 0.0F);
  }
  auto left = static_cast<int32_t>(t.loss_tokens());
  auto version = static_cast<int64_t>(rng.Below(100));
  while (left > 0) {
    const auto run = static_cast<int32_t>(1 + rng.Below(static_cast<uint64_t>(left)));
    t.versions.push_back({version++, run});
    left -= run;
  }
  for (int32_t at = 0; at < n;) {
    const int32_t begin = at + static_cast<int32_t>(rng.Below(2));
    if (begin > n) break;
    at = std::min<int32_t>(n, begin + 1 + static_cast<int32_t>(rng.Below(60)));
    Turn turn{
        .kind = static_cast<TurnKind>(rng.Below(3)), .begin = begin, .end = std::max(begin, at)};
    turn.spans = {.queue_us = static_cast<int64_t>(rng.Below(1000)),
                  .prefill_us = static_cast<int64_t>(rng.Below(1000)),
                  .decode_us = static_cast<int64_t>(rng.Below(1000)),
                  .environment_us = static_cast<int64_t>(rng.Next() >> 1),
                  .reward_us = static_cast<int64_t>(rng.Below(1000))};
    turn.tool = RandomName(rng, 6);
    t.turns.push_back(turn);
  }
  for (uint64_t i = rng.Below(4); i > 0; --i) t.rewards[RandomName(rng, 8)] = rng.Normal();
  t.outcome = static_cast<Outcome>(rng.Below(kOutcomes));
  t.temperature = rng.Uniform() * 2;
  t.started_us = static_cast<int64_t>(rng.Next() >> 1);
  t.ended_us = static_cast<int64_t>(rng.Next() >> 1);
  return t;
}

Trajectory SimpleTrajectory(const TrajectoryId& id, int64_t policy_version, int32_t prompt,
                            int32_t action) {
  Trajectory t;
  t.id = id;
  t.environment = "test";
  Rng rng(static_cast<uint64_t>(id.trajectory_id) + 1);
  for (int32_t i = 0; i < prompt + action; ++i) {
    t.tokens.push_back(static_cast<int32_t>(rng.Below(1000)));
    t.loss_mask.push_back(i < prompt ? 0 : 1);
    t.rollout_logprobs.push_back(i < prompt ? 0.0F : static_cast<float>(-rng.Uniform()));
  }
  if (action > 0) t.versions.push_back({policy_version, action});
  t.turns.push_back({.kind = TurnKind::kPrompt, .begin = 0, .end = prompt});
  t.turns.push_back({.kind = TurnKind::kAction, .begin = prompt, .end = prompt + action});
  t.rewards["task"] = rng.Uniform();
  return t;
}

}  // namespace forebay
