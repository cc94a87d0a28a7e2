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
  for (const auto kind : {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine,
                          ScheduleKind::kWsd, ScheduleKind::kInverseSqrt}) {
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
    case ScheduleKind::kWsd:
      return "wsd";
    case ScheduleKind::kInverseSqrt:
      return "inverse_sqrt";
  }
  FB_CHECK(false, "unknown schedule");
}

double LearningRate(const ScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  // The share of the way from `from` to the end that is done before this step.
  const auto done = [&](int64_t from) {
    const int64_t span = std::max<int64_t>(1, options.total_steps - from);
    return std::clamp(static_cast<double>(step - from) / static_cast<double>(span), 0.0, 1.0);
  };
  const double peak = options.learning_rate;
  const auto falling = [&](double left) {
    return peak * (options.end_fraction + (1 - options.end_fraction) * left);
  };
  switch (options.kind) {
    case ScheduleKind::kConstant:
      return peak;
    case ScheduleKind::kLinear:
      return falling(1 - done(options.warmup_steps));
    case ScheduleKind::kCosine:
      return falling(0.5 * (1 + std::cos(std::numbers::pi * done(options.warmup_steps))));
    case ScheduleKind::kWsd: {
      const int64_t decay =
          options.decay_steps > 0 ? options.decay_steps : (options.total_steps + 9) / 10;
      return falling(1 - done(std::max(options.warmup_steps, options.total_steps - decay)));
    }
    case ScheduleKind::kInverseSqrt: {
      const auto begin = static_cast<double>(std::max<int64_t>(1, options.warmup_steps));
      return peak * std::sqrt(begin / std::max(begin, static_cast<double>(step + 1)));
    }
  }
  FB_CHECK(false, "unknown schedule");
}

}  // namespace forebay::learner
