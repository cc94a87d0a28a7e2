// Small things about text.
#pragma once

#include <cstddef>
#include <string_view>

namespace forebay {

inline constexpr std::string_view kTextSpace = " \t\r\n";

// Without what of `space` stands at its ends. A view of `text`.
inline std::string_view Trim(std::string_view text, std::string_view space = kTextSpace) {
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

}  // namespace forebay
