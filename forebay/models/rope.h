// Rotary frequencies and the ways in which models stretch them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace forebay::models {

struct RopeScaling {
  // kLlama3: fast dimensions stay, slow ones are stretched by `factor`, those between are
  // interpolated. kLinear: all are stretched. kYarn: as kLlama3, but interpolated over the
  // dimensions instead of their turns, and scores are sharpened.
  enum class Kind { kLlama3, kLinear, kYarn };
  Kind kind = Kind::kLlama3;
  double factor = 1;
  double original_context = 8192;                    // kLlama3, kYarn
  double low_freq_factor = 1, high_freq_factor = 4;  // kLlama3: turns in the original context
  double beta_fast = 32, beta_slow = 1;              // kYarn: the same
  bool truncate = true;                              // kYarn: to whole dimensions
  std::optional<double> attention_factor;            // kYarn; else from `factor` and the next two
  std::optional<double> mscale, mscale_all_dim;
};

// Radians per position, head_dim / 2 of them, and what the cosines and sines of queries and keys
// are multiplied by.
struct Rotation {
  std::vector<float> frequencies;
  double amplitude = 1;
};
Rotation MakeRotation(double theta, int64_t head_dim, const std::optional<RopeScaling>& scaling);

}  // namespace forebay::models
