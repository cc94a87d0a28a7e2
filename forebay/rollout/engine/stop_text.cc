#include "forebay/rollout/engine/stop_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // what half a character decodes to
// A character is at most four tokens of a byte each. What is no character after more never becomes
// one.
constexpr size_t kCharacterTokensMax = 4;

}  // namespace

StopText::StopText(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

Status StopText::Decode(std::string* fresh) const {
  FB_ASSIGN_OR_RETURN(std::string text, tokenizer_.Decode(recent_, /*skip_special=*/false));
  const size_t known = context_text_.size();
  *fresh = text.starts_with(context_text_) ? text.substr(known) : text;
  return OkStatus();
}

std::string StopText::Find(std::string_view text) const {
  size_t best = std::string_view::npos;
  std::string found;
  for (const std::string& stop : stops_) {
    const size_t place = text.find(stop);
    if (place == std::string_view::npos) continue;
    if (place < best || (place == best && stop.size() > found.size())) {
      best = place;
      found = stop;
    }
  }
  return found;
}

Result<std::string> StopText::Add(int32_t token) {
  // Models have more rows than their tokenizers have tokens.
  if (token < 0 || token >= tokenizer_.vocab_size()) return std::string();
  recent_.push_back(token);
  std::string fresh;
  FB_RETURN_IF_ERROR(Decode(&fresh));
  std::string found = Find(tail_ + fresh);
  if (!found.empty()) return found;
  if (fresh.ends_with(kReplacement) && recent_.size() - context_ < kCharacterTokensMax) {
    return std::string();
  }
  tail_ += fresh;
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - longest_ + 1);
  // The newest tokens are the context of the next.
  recent_.erase(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(context_));
  context_ = recent_.size();
  FB_ASSIGN_OR_RETURN(context_text_, tokenizer_.Decode(recent_, /*skip_special=*/false));
  return std::string();
}

}  // namespace forebay::rollout
