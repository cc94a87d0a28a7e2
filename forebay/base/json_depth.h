// Whether JSON is nested deeper than our stack allows, or has objects that take too long to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace forebay {

inline constexpr int kJsonDepthMax =
    64;  // writing out and walking through nested values takes stack

// Of any text, JSON or not. `at`, if given, becomes the offset of the bracket that is one too many.
bool TooDeep(std::string_view text, size_t* at = nullptr);
// Whether an object has more than `members_max` members, as far as text is JSON that is not too
// deep. `at`: of the colon behind the member that is one too many.
bool TooCrowded(std::string_view text, int64_t members_max, size_t* at = nullptr);

}  // namespace forebay
