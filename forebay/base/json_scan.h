// Walks over JSON without reading it: what must be known before a parser may see it.
#pragma once

#include <cstddef>
#include <string_view>

namespace forebay {

// Calls fn(character, offset) with what stands in no string of the text from `begin` on, until it
// returns false. Gives whether the text ends within a string. Of any text, JSON or not.
template <typename Fn>
bool OutsideJsonStrings(std::string_view text, size_t begin, const Fn& fn) {
  bool in_string = false;
  for (size_t i = begin; i < text.size(); ++i) {
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
      return false;
    }
  }
  return in_string;
}

}  // namespace forebay
