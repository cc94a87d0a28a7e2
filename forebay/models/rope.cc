#include "forebay/models/rope.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>
#include <vector>

namespace forebay::models {
namespace {

// How much of the unstretched frequency of dimension i remains, from 1 for fast ones to 0 for slow.
double KeptLlama3(double frequency, const RopeScaling& s) {
  const double turns = s.original_context * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return 0;
  if (turns > s.high_freq_factor) return 1;
  return (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
}

// The dimension (of head_dim / 2) that turns this often in the original context.
double DimensionOf(double turns, double theta, int64_t head_dim, const RopeScaling& s) {
  return static_cast<double>(head_dim) *
         std::log(s.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

double KeptYarn(int64_t i, double theta, int64_t head_dim, const RopeScaling& s) {
  double low = DimensionOf(s.beta_fast, theta, head_dim, s);
  double high = DimensionOf(s.beta_slow, theta, head_dim, s);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  return 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

double Sharpening(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

double AmplitudeOf(const RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::kYarn) return 1;
  if (s.attention_factor) return *s.attention_factor;
  if (!s.mscale || !s.mscale_all_dim) return Sharpening(s.factor, 1);
  return Sharpening(s.factor, *s.mscale) / Sharpening(s.factor, *s.mscale_all_dim);
}

double KeptOf(int64_t i, double frequency, double theta, int64_t head_dim, const RopeScaling& s) {
  switch (s.kind) {
    case RopeScaling::Kind::kLlama3:
      return KeptLlama3(frequency, s);
    case RopeScaling::Kind::kYarn:
      return KeptYarn(i, theta, head_dim, s);
    case RopeScaling::Kind::kLinear:
      break;
  }
  return 0;
}

}  // namespace

Rotation MakeRotation(double theta, int64_t head_dim, const std::optional<RopeScaling>& scaling) {
  const int64_t half = head_dim / 2;
  Rotation rotation;
  rotation.frequencies.reserve(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
    if (scaling) {
      const double kept = KeptOf(i, frequency, theta, head_dim, *scaling);
      frequency =
          kept == 1 ? frequency : (1 - kept) * frequency / scaling->factor + kept * frequency;
    }
    rotation.frequencies.push_back(static_cast<float>(frequency));
  }
  if (scaling) rotation.amplitude = AmplitudeOf(*scaling);
  return rotation;
}

}  // namespace forebay::models
