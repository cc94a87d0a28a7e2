// Qwen3MoeConfig: what config.json says of a Qwen3-MoE model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/rope.h"

namespace forebay::models {

struct Qwen3MoeConfig {
  ModelConfig base;
  std::optional<RopeScaling> rope_scaling;
  std::vector<int64_t> windows;  // tokens that a query of each layer sees; 0: all
  int64_t expert_width = 0;
  bool normalize = false;  // the chosen experts' probabilities sum to 1
};

// From config.json text. Errors: see models/config_reader.h.
Result<Qwen3MoeConfig> ParseQwen3MoeConfig(const std::string& config_json);

}  // namespace forebay::models
