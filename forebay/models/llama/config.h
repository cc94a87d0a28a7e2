// LlamaConfig: what config.json says of a Llama-family model (Llama 2/3, SmolLM2, ...).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"

namespace forebay::models {

// Llama 3's stretched rotary frequencies ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double original_context = 8192;
};

struct LlamaConfig {
  ModelConfig base;
  std::optional<Llama3RopeScaling> rope_scaling;
};

// From config.json text. kInvalidArgument names the key that is missing, out of range or
// unsupported, its value and what would be right; unknown keys that cannot change the result are
// ignored.
Result<LlamaConfig> ParseLlamaConfig(const std::string& config_json);

// Rotary frequencies in radians per position, head_dim / 2 of them, scaled where the config says
// so.
std::vector<float> RopeFrequencies(const LlamaConfig& config);

}  // namespace forebay::models
