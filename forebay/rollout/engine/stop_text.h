// StopText: finds stop strings in the text of tokens that come one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout {

// A stop string may begin and end anywhere, also in the middle of tokens and of characters that
// several tokens make up. Special tokens count as their text. Not thread-safe.
class StopText {
 public:
  // `stops` are not empty; the tokenizer outlives this.
  StopText(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops);

  // The stop string that is complete with this token (the one that begins first, of those the
  // longest), or "".
  Result<std::string> Add(int32_t token);

 private:
  // Decodes the last tokens; `fresh` gets what they add to the text.
  Status Decode(std::string* fresh) const;
  std::string Find(std::string_view text) const;

  const tokenizer::Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  size_t longest_ = 0;
  // Some tokenizers decode a token differently at the beginning of a text, so the tokens before it
  // are decoded with it: those in [0, context_) of recent_, whose text is context_text_.
  std::vector<int32_t> recent_;
  size_t context_ = 0;
  std::string context_text_;
  std::string tail_;  // the end of the text of all tokens before `context_` ended
};

}  // namespace forebay::rollout
