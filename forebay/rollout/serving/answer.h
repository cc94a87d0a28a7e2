// Answer: one choice of a response as it grows out of sampled tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/tool_calls.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/text_stream.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {

struct SampledToken {
  int32_t token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs;
};

// What has come since the last piece.
struct AnswerPiece {
  std::string text;
  std::vector<env::ToolCall> calls;
  std::vector<SampledToken> tokens;
};

class Answer {
 public:
  struct Options {
    std::vector<int32_t> stop_tokens;  // not shown
    std::vector<std::string> stop_strings;
    bool skip_special = true;
    bool tool_calls = false;      // calls are taken out of the text
    size_t calls_max = SIZE_MAX;  // what is called after them is dropped
    std::string begun;            // the answer begins with it; it was not sampled
  };
  // The tokenizer must outlive it.
  Answer(const tokenizer::Tokenizer& tokenizer, const Options& options);

  // kInvalidArgument: tokens that cannot be decoded.
  Status Feed(SampledToken token);
  // The engine's answer is complete; tokens that were not fed are taken from it.
  Status Finish(const GenerateResult& result);

  // What came since the last Take.
  AnswerPiece Take();

  // Of the whole answer so far.
  const std::string& text() const { return text_; }
  const std::vector<env::ToolCall>& calls() const { return calls_; }
  int64_t tokens() const { return tokens_; }
  // "stop", "length" or "tool_calls" after Finish.
  const std::string& finish_reason() const { return finish_reason_; }

 private:
  void AddText(const std::string& text, bool final);

  const Options options_;
  TextStream stream_;
  std::optional<env::ToolCallParser> parser_;
  std::string text_;
  std::vector<env::ToolCall> calls_;
  int64_t tokens_ = 0;
  AnswerPiece piece_;
  std::string finish_reason_;
};

}  // namespace forebay::rollout::serving
