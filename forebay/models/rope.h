// Rotary frequencies and the ways in which models stretch them.
#pragma once

#include <cstdint>
#include <vector>

namespace forebay::models {

struct RopeScaling {
  // kLlama3: fast dimensions stay, slow ones are stretched by `factor`, those between are
  // interpolated. kLinear: all are stretched.
  enum class Kind { kLlama3, kLinear };
  Kind kind = Kind::kLlama3;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4, original_context = 8192;  // kLlama3
};

// Radians per position, head_dim / 2 of them. `scaling` may be null.
std::vector<float> RopeFrequencies(double theta, int64_t head_dim, const RopeScaling* scaling);

}  // namespace forebay::models
