// LlamaConfig: what config.json says of a Llama-family model (Llama 2/3, SmolLM, SmolLM2, ...).
#pragma once

#include <optional>
#include <string>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/rope.h"

namespace forebay::models {

struct LlamaConfig {
  ModelConfig base;
  std::optional<RopeScaling> rope_scaling;
};

// From config.json text. Errors: see models/config_reader.h.
Result<LlamaConfig> ParseLlamaConfig(const std::string& config_json);

}  // namespace forebay::models
