// Whether JSON is nested deeper than our stack allows.
#pragma once

#include <string_view>

namespace forebay {

inline constexpr int kJsonDepthMax =
    64;  // writing out and walking through nested values takes stack

// Of any text, JSON or not.
bool TooDeep(std::string_view text);

}  // namespace forebay
