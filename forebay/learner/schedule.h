// Learning-rate schedules: pure functions of the optimizer step, so that a resumed run gets the
// same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace forebay::learner {

// After the warm-up: kLinear and kCosine fall over all steps; kWsd (warm-up, stable, decay) stays
// at the peak and falls linearly over the last decay_steps; kInverseSqrt falls as 1 / sqrt(step).
enum class ScheduleKind { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };

// "constant", "linear", "cosine", "wsd", "inverse_sqrt"
std::optional<ScheduleKind> ParseScheduleKind(std::string_view name);
std::string_view ScheduleKindName(ScheduleKind kind);

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  double learning_rate = 1e-5;  // the peak
  int64_t warmup_steps = 0;     // linear from 1/warmup_steps of the peak
  int64_t total_steps = 0;      // what falls reaches its end one step after the last
  int64_t decay_steps = 0;      // kWsd; 0: a tenth of total_steps
  double end_fraction = 0;      // the end of kLinear, kCosine and kWsd, as a fraction of the peak
};

// The rate of optimizer step `step`, counted from 0.
double LearningRate(const ScheduleOptions& options, int64_t step);

}  // namespace forebay::learner
