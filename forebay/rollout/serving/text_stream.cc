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

constexpr size_t kCharacterTokensMax = 4;  // each has a byte at least
// Held back at most: each new one has them all decoded again.
constexpr size_t kHeldTokensMax = 12;

// How many bytes at the end of `text` are the beginning of `stop`, but not all of it.
size_t Overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

Status TextStream::Advance(size_t tokens) {
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(read_));
  read_ = tokens - read_;
  FB_ASSIGN_OR_RETURN(shown_, tokenizer_.Decode(std::span(ids_).first(read_), skip_special_));
  return OkStatus();
}

Result<std::string> TextStream::Feed(int32_t token) {
  if (token < 0 || token >= tokenizer_.vocab_size()) return std::string();
  ids_.push_back(token);
  FB_ASSIGN_OR_RETURN(const std::string text, tokenizer_.Decode(ids_, skip_special_));
  const bool many = ids_.size() - read_ > kHeldTokensMax;
  if (text.size() <= shown_.size()) {
    // Nothing that will be shown, such as one special token after another.
    if (many && text == shown_) ids_.pop_back();
    return std::string();
  }
  size_t size = text.size();
  size_t tokens = ids_.size();
  if (text.ends_with(kReplacement)) {
    // The rest of a character may be in the next token.
    if (!many) return std::string();
    // So many are no one character's. All but the last few, cut between characters.
    std::string before;
    do {
      --tokens;
      FB_ASSIGN_OR_RETURN(before, tokenizer_.Decode(std::span(ids_).first(tokens), skip_special_));
    } while (tokens > read_ + 1 &&
             (ids_.size() - tokens < kCharacterTokensMax || !text.starts_with(before)));
    if (before.size() <= shown_.size() || !text.starts_with(before)) return std::string();
    size = before.size();
  }
  const std::string fresh = text.substr(shown_.size(), size - shown_.size());
  FB_RETURN_IF_ERROR(Advance(tokens));
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
