// Advantages: how much better each sample did than the other samples of its group.
//
//   GRPO     (r - mean) / (std + 1e-6)      std with n - 1 (arXiv 2402.03300, eq. 3)
//   Dr.GRPO  r - mean                       (arXiv 2503.20783)
//   RLOO     r - mean of the others         (arXiv 2402.14740)
//
// Pure functions in double precision.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace forebay::learner {

enum class AdvantageKind { kGrpo, kDrGrpo, kRloo };

std::optional<AdvantageKind> ParseAdvantageKind(
    std::string_view name);  // "grpo", "dr_grpo", "rloo"
std::string_view AdvantageKindName(AdvantageKind kind);

// One advantage a reward, in the order given. Samples with equal group_ids are one group, wherever
// they stand and however many there are. Exactly 0 for a group whose rewards are all equal and for
// a group of one. CHECKs equal sizes.
std::vector<double> Advantages(AdvantageKind kind, std::span<const double> rewards,
                               std::span<const int64_t> group_ids);

}  // namespace forebay::learner
