// Learning-rate schedules: pure functions of the optimizer step, so that a resumed run gets the
// same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace forebay::learner {

enum class ScheduleKind { kConstant, kLinear, kCosine };

std::optional<ScheduleKind> ParseScheduleKind(
    std::string_view name);  // "constant", "linear", "cosine"
std::string_view ScheduleKindName(ScheduleKind kind);

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  double learning_rate = 1e-5;  // the peak
  int64_t warmup_steps = 0;     // linear from 1/warmup_steps of the peak
  int64_t total_steps = 0;      // linear and cosine reach 0 one step after the last
};

// The rate of optimizer step `step`, counted from 0.
double LearningRate(const ScheduleOptions& options, int64_t step);

}  // namespace forebay::learner
