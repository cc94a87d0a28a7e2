// ResponseWriter: the JSON that the endpoints answer with, whole or in chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

// For one request. Pure but for the tokenizer, which must outlive it.
class ResponseWriter {
 public:
  struct Options {
    ApiKind kind = ApiKind::kChat;
    std::string id, model;
    int64_t created_s = 0;
    bool logprobs = false;
    bool return_token_ids = false;
    bool include_usage = false;
  };
  ResponseWriter(const tokenizer::Tokenizer& tokenizer, Options options);

  // One finished choice of a whole answer.
  void AddChoice(size_t index, const std::vector<int32_t>& prompt, const Answer& answer,
                 const AnswerPiece& all, const GenerateResult& result);
  std::string Whole(const Usage& usage) const;

  // The first chunk of a choice: the role, and the prompt's ids if they are asked for.
  std::string First(size_t index, const std::vector<int32_t>& prompt) const;
  // "" when there is nothing to tell.
  std::string Piece(size_t index, const AnswerPiece& piece);
  std::string Last(size_t index, const Answer& answer, const GenerateResult& result);
  std::string UsageChunk(const Usage& usage) const;

 private:
  nlohmann::ordered_json Frame(bool chunk) const;
  nlohmann::ordered_json Logprobs(const std::vector<SampledToken>& tokens, size_t index);
  nlohmann::ordered_json Entry(int32_t token, float logprob) const;
  nlohmann::ordered_json Calls(const std::vector<env::ToolCall>& calls, size_t choice, size_t first,
                               bool chunk) const;
  std::string TokenText(int32_t token) const;

  const tokenizer::Tokenizer& tokenizer_;
  const Options options_;
  std::vector<std::string> choices_;   // as JSON
  std::vector<int32_t> prompt_ids_;    // of a chat, if asked for
  std::vector<size_t> calls_sent_;     // by choice
  std::vector<int64_t> text_offsets_;  // by choice: of completions' logprobs
};

}  // namespace forebay::rollout::serving
