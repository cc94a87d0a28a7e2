// Qwen2Config: what config.json says of a Qwen2 model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/rope.h"

namespace forebay::models {

struct Qwen2Config {
  ModelConfig base;
  std::optional<RopeScaling> rope_scaling;
  std::vector<int64_t> windows;  // tokens that a query of each layer sees; 0: all
};

// From config.json text. Errors: see models/config_reader.h.
Result<Qwen2Config> ParseQwen2Config(const std::string& config_json);

}  // namespace forebay::models
