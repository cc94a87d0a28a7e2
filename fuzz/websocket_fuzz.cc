// Whatever a peer sends is frames or an error, the same however it is cut, and never longer than
// allowed.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/base/http/websocket_frames.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forebay::http;  // NOLINT(google-build-using-namespace)
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  constexpr size_t kMessageMax = 300;
  const auto read = [bytes](size_t step) {
    WebSocketReader reader(kMessageMax);
    std::string seen, input;
    for (size_t at = 0; at < bytes.size(); at += step) {
      input += bytes.substr(at, step);
      while (true) {
        const auto next = reader.Next(&input);
        if (!next.ok()) return seen + "!";
        if (!next->has_value()) break;
        FB_CHECK((*next)->payload.size() <= kMessageMax);
        seen += (*next)->payload + "|";
      }
    }
    return seen;
  };
  FB_CHECK(read(1) == read(bytes.size() + 1));
  return 0;
}
