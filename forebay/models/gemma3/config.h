// Gemma3Config: what config.json says of a Gemma 3 model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/rope.h"

namespace forebay::models {

struct Gemma3Config {
  ModelConfig base;
  std::optional<RopeScaling> rope_scaling;
  // Layers that see the last `window` tokens only, with rotations of theta `local_theta`.
  int64_t window = 0;
  std::vector<bool> sliding;  // one a layer
  double local_theta = 1e4;
  std::optional<RopeScaling> local_scaling;
  double query_scalar = 256;  // scores are divided by its root
  double softcap = 0;         // of the scores; 0: none
};

// From config.json text. Errors: see models/config_reader.h.
Result<Gemma3Config> ParseGemma3Config(const std::string& config_json);

}  // namespace forebay::models
