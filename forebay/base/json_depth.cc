#include "forebay/base/json_depth.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace forebay {
namespace {

// Calls fn with each character that stands in no string and its offset, until it returns false.
template <typename Fn>
void OutsideStrings(std::string_view text, const Fn& fn) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (!fn(c, i)) {
      return;
    }
  }
}

}  // namespace

bool TooDeep(std::string_view text, size_t* at) {
  int depth = 0;
  bool too_deep = false;
  OutsideStrings(text, [&](char c, size_t i) {
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
  OutsideStrings(text, [&](char c, size_t i) {
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
