#include "forebay/rollout/serving/text_stream.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD: bytes that are no character

// How many bytes at the end of `text` are the beginning of `stop`, but not all of it.
size_t Overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

Result<std::string> TextStream::Feed(int32_t token) {
  ids_.push_back(token);
  FB_ASSIGN_OR_RETURN(const std::string text, tokenizer_.Decode(ids_, skip_special_));
  // The rest of a character may be in the next token.
  if (text.size() <= shown_.size() || text.ends_with(kReplacement)) return std::string();
  std::string fresh = text.substr(shown_.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(read_));
  read_ = ids_.size();
  FB_ASSIGN_OR_RETURN(shown_, tokenizer_.Decode(ids_, skip_special_));
  return Release(fresh, /*final=*/false);
}

Result<std::string> TextStream::Finish() {
  FB_ASSIGN_OR_RETURN(const std::string text, tokenizer_.Decode(ids_, skip_special_));
  std::string fresh = text.size() > shown_.size() ? text.substr(shown_.size()) : "";
  ids_.clear();
  read_ = 0;
  shown_.clear();
  return Release(fresh, /*final=*/true);
}

std::string TextStream::Release(const std::string& text, bool final) {
  if (stopped_) return {};
  held_ += text;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, end);
  }
  size_t hold = 0;
  if (!final) {
    for (const std::string& stop : stops_) hold = std::max(hold, Overlap(held_, stop));
  }
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, out.size());
  return out;
}

}  // namespace forebay::rollout::serving
