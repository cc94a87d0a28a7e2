// TextStream: tokens as they are sampled become the text that a client may see.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {

// Gives text out as soon as it is certain: whole UTF-8 characters, nothing that may be the
// beginning of a stop string, and nothing from a stop string on. All pieces together are the text
// of the whole answer. The tokenizer must outlive it.
class TextStream {
 public:
  TextStream(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops,
             bool skip_special)
      : tokenizer_(tokenizer), stops_(std::move(stops)), skip_special_(skip_special) {}

  // An id that the tokenizer does not know (models have more rows than tokenizers have tokens) has
  // no text.
  Result<std::string> Feed(int32_t token);
  // What was held back.
  Result<std::string> Finish();

 private:
  std::string Release(const std::string& text, bool final);
  // The text of the first `tokens` of ids_ is out.
  Status Advance(size_t tokens);

  const tokenizer::Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  const bool skip_special_;
  // The last tokens, a bounded number: some decoders look at the token before (a space at the start
  // of a text goes), so those before `read_` stay until the next text is out. Their text is
  // `shown_`.
  std::vector<int32_t> ids_;
  size_t read_ = 0;
  std::string shown_;
  std::string held_;  // perhaps a stop string
  bool stopped_ = false;
};

}  // namespace forebay::rollout::serving
