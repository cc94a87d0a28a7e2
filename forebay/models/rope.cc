#include "forebay/models/rope.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

namespace forebay::models {
namespace {

double Scaled(double frequency, const RopeScaling& s) {
  if (s.kind == RopeScaling::Kind::kLinear) return frequency / s.factor;
  const double turns = s.original_context * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - kept) * frequency / s.factor + kept * frequency;
}

}  // namespace

std::vector<float> RopeFrequencies(double theta, int64_t head_dim, const RopeScaling* scaling) {
  const int64_t half = head_dim / 2;
  std::vector<float> frequencies;
  frequencies.reserve(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
    frequencies.push_back(
        static_cast<float>(scaling == nullptr ? frequency : Scaled(frequency, *scaling)));
  }
  return frequencies;
}

}  // namespace forebay::models
