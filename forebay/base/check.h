// FB_CHECK: an always-on assertion for our own bugs, never for input that a user can cause.
#pragma once

#include <string_view>

namespace forebay {

// Prints "file:line: check failed: condition: message" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace forebay

#define FB_CHECK(condition, ...)                                                             \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::forebay::CheckFailed(__FILE__, __LINE__, #condition, std::string_view(__VA_ARGS__)); \
  } while (false)
