#include "forebay/env/tools/text.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace forebay::env {
namespace {

// The bytes of the character at the start of `text`; 0 if it is none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what is beyond the last character.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return bytes;
}

std::string Clean(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) {
      clean.append("\xef\xbf\xbd");
    } else {
      clean.append(text.substr(0, bytes));
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return clean;
}

bool Continues(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

}  // namespace

std::string PrintableText(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return Clean(text);
  // The end of an output often says what went wrong.
  size_t head = bytes_max / 2;
  size_t tail = text.size() - (bytes_max - head);
  while (head > 0 && Continues(text[head])) --head;
  while (tail < text.size() && Continues(text[tail])) ++tail;
  return fmt::format("{}\n[... {} bytes left out ...]\n{}", Clean(text.substr(0, head)),
                     tail - head, Clean(text.substr(tail)));
}

}  // namespace forebay::env
