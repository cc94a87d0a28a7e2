// Bytes from a socket become the same message however they are cut, and nothing that a peer sends
// crashes a parser or makes it hold more than its limits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/http.h"
#include "forebay/base/http/parser.h"
#include "forebay/base/sse.h"
#include "forebay/base/status.h"

namespace {

using namespace forebay;  // NOLINT(google-build-using-namespace)

constexpr size_t kHeaderMax = 2048;
constexpr size_t kBodyMax = 4096;

struct Message {
  bool ok = true, done = false;
  std::string line, body, rest;
  size_t fields = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

Message Parse(std::string_view bytes, bool request, size_t step) {
  http::HttpParser parser(
      {.request = request, .header_bytes_max = kHeaderMax, .body_bytes_max = kBodyMax});
  Message out;
  std::string input;
  while (!bytes.empty() && out.ok && !parser.done()) {
    const size_t n = std::min(step, bytes.size());
    input.append(bytes.substr(0, n));
    bytes.remove_prefix(n);
    out.ok = parser.Feed(&input).ok();
    out.body += parser.TakeBody();
    FB_CHECK(out.body.size() <= kBodyMax);
  }
  // What an error leaves half read depends on the cut.
  if (!out.ok) return {.ok = false};
  out.done = parser.done();
  if (!parser.header_done()) return out;
  if (request) {
    out.line = parser.request().method + " " + parser.request().url;
    out.fields = parser.request().headers.fields().size();
  } else {
    out.line = std::to_string(parser.response().status);
    out.fields = parser.response().headers.fields().size();
  }
  if (out.done) {
    out.rest = input;
    out.rest += bytes;
  }
  return out;
}

std::vector<SseEvent> Events(std::string_view bytes, size_t step, bool* ok) {
  SseParser parser(1024);
  std::vector<SseEvent> out;
  for (; *ok && !bytes.empty(); bytes.remove_prefix(std::min(step, bytes.size()))) {
    parser.Feed(bytes.substr(0, step));
    while (true) {
      Result<std::optional<SseEvent>> event = parser.Next();
      *ok = event.ok();
      if (!event.ok() || !event->has_value()) break;
      out.push_back(std::move(**event));
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t step = 1 + data[0] % 16;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (const bool request : {true, false}) {
    const Message whole = Parse(bytes, request, bytes.size());
    const Message cut = Parse(bytes, request, step);
    // A header that is too long is found early or late, depending on the cut.
    FB_CHECK(!whole.ok || !cut.ok || whole == cut);
  }
  bool whole_ok = true;
  bool cut_ok = true;
  const std::vector<SseEvent> whole = Events(bytes, bytes.size(), &whole_ok);
  const std::vector<SseEvent> cut = Events(bytes, step, &cut_ok);
  FB_CHECK(!whole_ok || !cut_ok || whole == cut);
  const Result<HttpUrl> url = ParseUrl(bytes);
  FB_CHECK(!url.ok() ||
           ParseUrl(url->Origin() + (url->unix_path.empty() ? "" : ":") + url->target).ok());
  return 0;
}
