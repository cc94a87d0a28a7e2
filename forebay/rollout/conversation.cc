#include "forebay/rollout/conversation.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/environment.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout {

Conversation::Conversation(const tokenizer::Tokenizer& tokenizer,
                           const tokenizer::ChatTemplate& chat,
                           tokenizer::ChatTemplate::Options options)
    : tokenizer_(tokenizer), chat_(chat), options_([&options] {
        options.add_generation_prompt = true;
        return std::move(options);
      }()) {}

Result<std::string> Conversation::Render() const { return chat_.Render(messages_, options_); }

void Conversation::Add(std::span<const env::Message> messages) {
  for (const env::Message& message : messages) {
    messages_.push_back({.role = message.role, .content = message.content});
  }
}

Result<std::vector<int32_t>> Conversation::Open(std::span<const env::Message> messages) {
  Add(messages);
  FB_ASSIGN_OR_RETURN(rendered_, Render());
  return tokenizer_.Encode(rendered_);
}

Result<std::vector<int32_t>> Conversation::Next(int32_t last_token,
                                                std::span<const env::Message> messages) {
  const std::string placeholder = fmt::format("turn{}ofthepolicy", messages_.size());
  messages_.push_back({.role = "assistant", .content = placeholder});
  Add(messages);
  const std::string before = std::move(rendered_) + placeholder;
  FB_ASSIGN_OR_RETURN(rendered_, Render());
  if (!rendered_.starts_with(before)) {
    return InvalidArgument(
        "the chat template renders the start of a conversation differently once the assistant's "
        "turn and further "
        "messages follow, so that the sampled tokens would not be a prefix of the next prompt; use "
        "a template "
        "that only appends, or episodes of one turn");
  }
  FB_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                      tokenizer_.Encode(std::string_view(rendered_).substr(before.size())));
  if (!tokens.empty() && tokens.front() == last_token) tokens.erase(tokens.begin());
  return tokens;
}

}  // namespace forebay::rollout
