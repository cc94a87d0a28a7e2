// The windows of Qwen models, which name them in one way.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/config_reader.h"

namespace forebay::models {

// For each layer, how many tokens a query sees; 0: all.
Result<std::vector<int64_t>> ReadQwenWindows(const ConfigReader& reader, int64_t layers);

}  // namespace forebay::models
