// Nearest: the word that someone meant who mistyped one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace forebay::control {

// A-Z become a-z; everything else stays.
std::string LowerCase(std::string_view text);

// Insertions, deletions and substitutions of one byte that lead from one to the other.
size_t EditDistance(std::string_view a, std::string_view b);

// The first of the words with the smallest distance from `given` in lower case; "" when that is
// more than half of `given` (no more than a guess), or there are no words.
std::string_view Nearest(std::string_view given, std::span<const std::string_view> words);

}  // namespace forebay::control
