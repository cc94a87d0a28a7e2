// Whatever a model writes is an answer: the same however it is cut, and each call has arguments
// that are JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/env/tool_calls.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forebay::env;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const size_t step = 1 + data[0] % 7;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ToolAnswer whole = ParseToolAnswer(text);
  ToolAnswer pieces;
  const auto add = [&pieces](std::vector<ToolEvent> events) {
    for (ToolEvent& event : events) {
      if (event.kind == ToolEvent::Kind::kText) pieces.text += event.text;
      if (event.kind == ToolEvent::Kind::kCall) pieces.calls.push_back(event.call);
      if (event.kind == ToolEvent::Kind::kBroken)
        pieces.broken.push_back({event.text, event.reason, pieces.calls.size()});
    }
  };
  ToolCallParser parser;
  for (size_t at = 0; at < text.size(); at += step) add(parser.Feed(text.substr(at, step)));
  add(parser.Finish());
  FB_CHECK(pieces.text == whole.text && pieces.calls == whole.calls &&
           pieces.broken == whole.broken);
  FB_CHECK(whole.calls.size() + whole.broken.size() <= kToolCallsMax);
  for (const ToolCall& call : whole.calls) {
    FB_CHECK(!call.name.empty() && call.name.size() <= kToolNameBytesMax);
    FB_CHECK(nlohmann::json::parse(call.arguments, nullptr, false).is_object());
  }
  for (const BrokenToolCall& broken : whole.broken) FB_CHECK(!broken.reason.empty());
  return 0;
}
