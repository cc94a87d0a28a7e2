// Whatever a process writes is a reply or an error, and an answer that passes keeps its promises.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "forebay/base/check.h"
#include "forebay/env/subprocess/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forebay::env;  // NOLINT(google-build-using-namespace)
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  LineSplitter lines(4096);
  lines.Feed(bytes.substr(0, size / 2));
  lines.Feed(bytes.substr(size / 2));
  while (true) {
    const auto line = lines.Next();
    if (!line.ok() || !line->has_value()) break;
    FB_CHECK((*line)->size() <= 4096);
    const auto reply = ParseReply(**line);
    if (!reply.ok()) continue;
    if (const auto* answer = std::get_if<AnswerReply>(&*reply)) {
      for (const auto& [name, value] : answer->result.rewards) FB_CHECK(std::isfinite(value));
      FB_CHECK(answer->result.messages.size() <= kMessagesMax && answer->result.reward_us >= 0);
    }
  }
  return 0;
}
