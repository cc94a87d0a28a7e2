// Text that comes from programs nobody vouches for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace forebay::env {

// UTF-8 of at most about `bytes_max` bytes: other bytes become U+FFFD, the middle of a longer text
// is replaced by a note of what is missing.
std::string PrintableText(std::string_view text, size_t bytes_max);

}  // namespace forebay::env
