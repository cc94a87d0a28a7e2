#include "forebay/base/json_depth.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "forebay/base/json_scan.h"

namespace forebay {
bool TooDeep(std::string_view text, size_t* at) {
  int depth = 0;
  bool too_deep = false;
  OutsideJsonStrings(text, 0, [&](char c, size_t i) {
    if (c == '{' || c == '[') {
      too_deep = ++depth > kJsonDepthMax;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    if (too_deep && at != nullptr) *at = i;
    return !too_deep;
  });
  return too_deep;
}

bool TooCrowded(std::string_view text, int64_t members_max, size_t* at) {
  std::array<int64_t, kJsonDepthMax + 1> members{};  // of the values that are open
  size_t depth = 0;
  bool too_crowded = false;
  OutsideJsonStrings(text, 0, [&](char c, size_t i) {
    if (c == '{' || c == '[') {
      if (depth == kJsonDepthMax) return false;  // too deep
      members[++depth] = 0;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return false;  // no JSON
      --depth;
    } else if (c == ':') {  // follows a name; arrays may be long
      too_crowded = ++members[depth] > members_max;
    }
    if (too_crowded && at != nullptr) *at = i;
    return !too_crowded;
  });
  return too_crowded;
}

}  // namespace forebay
