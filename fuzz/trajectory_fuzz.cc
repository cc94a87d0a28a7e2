// Decode of arbitrary bytes: an error, or a valid trajectory whose encoding is those bytes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/trajectory/trajectory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto t = forebay::Decode(bytes);
  if (t.ok()) {
    FB_CHECK(forebay::Validate(*t).ok(), "Decode returned an invalid trajectory");
    FB_CHECK(forebay::Encode(*t) == bytes, "one trajectory has two encodings");
  }
  return 0;
}
