#include "forebay/learner/advantages.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/learner/stats.h"

namespace forebay::learner {
namespace {

constexpr double kStdDevEpsilon = 1e-6;

double Advantage(AdvantageKind kind, double reward, double mean, double deviation, double n) {
  switch (kind) {
    case AdvantageKind::kGrpo:
      return (reward - mean) / (deviation + kStdDevEpsilon);
    case AdvantageKind::kDrGrpo:
      return reward - mean;
    case AdvantageKind::kRloo:
      // r - (n mean - r) / (n - 1) = (r - mean) n / (n - 1)
      return (reward - mean) * n / (n - 1);
  }
  FB_CHECK(false, "unknown advantage kind");
}

}  // namespace

std::optional<AdvantageKind> ParseAdvantageKind(std::string_view name) {
  for (const auto kind : {AdvantageKind::kGrpo, AdvantageKind::kDrGrpo, AdvantageKind::kRloo}) {
    if (AdvantageKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

std::string_view AdvantageKindName(AdvantageKind kind) {
  switch (kind) {
    case AdvantageKind::kGrpo:
      return "grpo";
    case AdvantageKind::kDrGrpo:
      return "dr_grpo";
    case AdvantageKind::kRloo:
      return "rloo";
  }
  FB_CHECK(false, "unknown advantage kind");
}

std::vector<double> Advantages(AdvantageKind kind, std::span<const double> rewards,
                               std::span<const int64_t> group_ids) {
  FB_CHECK(rewards.size() == group_ids.size(), "one group id a reward");
  std::map<int64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < rewards.size(); ++i) groups[group_ids[i]].push_back(i);

  std::vector<double> advantages(rewards.size(), 0.0);
  for (const auto& [id, members] : groups) {
    std::vector<double> values;
    values.reserve(members.size());
    for (const size_t i : members) values.push_back(rewards[i]);
    const double deviation = SampleStdDev(values);
    if (deviation == 0) continue;  // nothing to prefer: the zeros stay exact
    const double mean = Mean(values);
    for (const size_t i : members) {
      advantages[i] =
          Advantage(kind, rewards[i], mean, deviation, static_cast<double>(members.size()));
    }
  }
  return advantages;
}

}  // namespace forebay::learner
