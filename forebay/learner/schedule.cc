#include "forebay/learner/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string_view>

#include "forebay/base/check.h"

namespace forebay::learner {

std::optional<ScheduleKind> ParseScheduleKind(std::string_view name) {
  for (const auto kind : {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    if (ScheduleKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

std::string_view ScheduleKindName(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kLinear:
      return "linear";
    case ScheduleKind::kCosine:
      return "cosine";
  }
  FB_CHECK(false, "unknown schedule");
}

double LearningRate(const ScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  const int64_t span = std::max<int64_t>(1, options.total_steps - options.warmup_steps);
  const double done = std::clamp(
      static_cast<double>(step - options.warmup_steps) / static_cast<double>(span), 0.0, 1.0);
  switch (options.kind) {
    case ScheduleKind::kConstant:
      return options.learning_rate;
    case ScheduleKind::kLinear:
      return options.learning_rate * (1 - done);
    case ScheduleKind::kCosine:
      return options.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  FB_CHECK(false, "unknown schedule");
}

}  // namespace forebay::learner
