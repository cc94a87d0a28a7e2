// ApiRequest: what a client asks of one of the generating endpoints, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/api_error.h"

namespace forebay::rollout::serving {

enum class ApiKind {
  kChat,        // /v1/chat/completions
  kCompletion,  // /v1/completions
  kTokens,      // /inference/v1/generate
};

inline constexpr int64_t kChoicesMax = 128;  // n, times the prompts of a completion

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;       // "" if the client names none
  std::string request_id;  // of kTokens, if the client names one

  // The prompt: messages for the chat template, texts, or token ids.
  std::string messages_json;            // a JSON array, tool calls' arguments as objects
  std::string tools_json;               // a JSON array, or ""
  std::string template_variables_json;  // a JSON object for the chat template, or ""
  bool tool_calls = false;              // calls are looked for in the answer
  bool parallel_tool_calls = true;      // else only the first call counts
  std::vector<std::string> tool_names;  // of tools_json, in order
  // The answer has to begin with a call: of this tool, or of any ("").
  std::optional<std::string> forced_tool;
  // How that call begins (BeginCall): the prompt ends with it, and the model goes on.
  std::string begun_call;
  // The last message is the beginning of the answer, which the model goes on with.
  bool continue_final_message = false;
  bool add_generation_prompt = true;
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;

  int32_t n = 1;
  // Parameters as the engine takes them; prompt, seed, stop_tokens and callbacks are for the caller
  // to fill in. new_tokens_max 0: as many as the context has room for.
  GenerateRequest sampling;
  std::optional<uint64_t> seed;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;

  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
};

// Reads `body`; the error is what the client did wrong. Unknown fields are ignored, as OpenAI's
// clients expect; known ones that would change the answer and are not supported are errors.
std::optional<ApiError> ParseApiRequest(ApiKind kind, std::string_view body, ApiRequest* out);

}  // namespace forebay::rollout::serving
