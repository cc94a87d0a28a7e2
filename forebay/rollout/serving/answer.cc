#include "forebay/rollout/serving/answer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/env/tool_calls.h"
#include "forebay/rollout/engine.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {

Answer::Answer(const tokenizer::Tokenizer& tokenizer, const Options& options)
    : options_(options),
      // The marks around calls are special tokens in some vocabularies.
      stream_(tokenizer, options.stop_strings, options.skip_special && !options.tool_calls) {
  if (options.tool_calls) parser_.emplace();
  AddText(options.begun, /*final=*/false);
}

Status Answer::Feed(SampledToken token) {
  ++tokens_;
  if (std::ranges::find(options_.stop_tokens, token.token) == options_.stop_tokens.end()) {
    FB_ASSIGN_OR_RETURN(const std::string text, stream_.Feed(token.token));
    AddText(text, /*final=*/false);
  }
  piece_.tokens.push_back(std::move(token));
  return OkStatus();
}

Status Answer::Finish(const GenerateResult& result) {
  for (auto i = static_cast<size_t>(tokens_); i < result.tokens.size(); ++i) {
    SampledToken token{.token = result.tokens[i], .logprob = result.logprobs[i]};
    if (i < result.top_logprobs.size()) token.top_logprobs = result.top_logprobs[i];
    FB_RETURN_IF_ERROR(Feed(std::move(token)));
  }
  FB_ASSIGN_OR_RETURN(const std::string text, stream_.Finish());
  AddText(text, /*final=*/true);
  finish_reason_ = result.finish_reason == FinishReason::kStop ? "stop" : "length";
  if (!calls_.empty()) finish_reason_ = "tool_calls";
  return OkStatus();
}

void Answer::AddText(const std::string& text, bool final) {
  if (!parser_) {
    piece_.text += text;
    text_ += text;
    return;
  }
  const auto take = [&](std::vector<env::ToolEvent> events) {
    for (env::ToolEvent& event : events) {
      if (event.kind == env::ToolEvent::Kind::kCall) {
        if (calls_.size() >= options_.calls_max) continue;
        piece_.calls.push_back(event.call);
        calls_.push_back(std::move(event.call));
      } else {  // a broken call is what the model wrote: text
        piece_.text += event.text;
        text_ += event.text;
      }
    }
  };
  take(parser_->Feed(text));
  if (final) take(parser_->Finish());
}

AnswerPiece Answer::Take() { return std::exchange(piece_, {}); }

}  // namespace forebay::rollout::serving
