// Conversation: messages become tokens once, through the chat template; what was sampled is never
// re-tokenized.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/environment.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout {

// The tokenizer and template must outlive it. Not thread-safe; blocks for the time of rendering
// (microseconds to milliseconds). Usage: Open once, then for each further turn Next.
class Conversation {
 public:
  Conversation(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat,
               tokenizer::ChatTemplate::Options options);

  // The tokens of the first messages with the prompt for the policy to go on. kInvalidArgument from
  // the template.
  Result<std::vector<int32_t>> Open(std::span<const env::Message> messages);

  // The tokens that follow what the policy has sampled: the template's end of that turn (less
  // `last_token`, if the policy has written that end itself), `messages`, and the prompt for the
  // next turn. kInvalidArgument when the template renders what came before in another way once
  // messages follow: then tokens cannot simply be appended.
  Result<std::vector<int32_t>> Next(int32_t last_token, std::span<const env::Message> messages);

 private:
  Result<std::string> Render() const;
  void Add(std::span<const env::Message> messages);

  const tokenizer::Tokenizer& tokenizer_;
  const tokenizer::ChatTemplate& chat_;
  const tokenizer::ChatTemplate::Options options_;
  // The policy's turns stand here as placeholders, whose text the template cannot change (templates
  // strip and cut real ones); their tokens are known already.
  std::vector<tokenizer::Message> messages_;
  std::string rendered_;  // messages_ with the prompt for the next turn
};

}  // namespace forebay::rollout
