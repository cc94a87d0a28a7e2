#include "forebay/models/qwen2/windows.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/config_reader.h"

namespace forebay::models {

Result<std::vector<int64_t>> ReadQwenWindows(const ConfigReader& reader, int64_t layers) {
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  bool used = false;
  int64_t window = 0;
  FB_RETURN_IF_ERROR(reader.Bool("use_sliding_window", &used));
  FB_RETURN_IF_ERROR(reader.Size("sliding_window", &window));
  if (!used || window == 0) return windows;
  FB_ASSIGN_OR_RETURN(const std::vector<bool> sliding, reader.SlidingLayers(layers));
  // Older files say it by a number: layers below it see everything.
  int64_t first = layers;
  FB_RETURN_IF_ERROR(reader.Size("max_window_layers", &first));
  for (int64_t i = 0; i < layers; ++i) {
    const auto at = static_cast<size_t>(i);
    if (sliding.empty() ? i >= first : sliding[at]) windows[at] = window;
  }
  return windows;
}

}  // namespace forebay::models
