#include "forebay/rollout/serving/response_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/env/tool_calls.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; this is what others write for a token that cannot be sampled.
constexpr float kLogprobMin = -9999.0F;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

Json Ids(const std::vector<SampledToken>& tokens) {
  Json out = Json::array();
  for (const SampledToken& token : tokens) out.push_back(token.token);
  return out;
}

Json Versions(const std::vector<VersionRun>& versions) {
  Json out = Json::array();
  for (const VersionRun& run : versions) {
    out.push_back({{"policy_version", run.policy_version}, {"tokens", run.tokens}});
  }
  return out;
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

std::string Dump(const Json& value) {
  // Text may hold half a character where a stop string or a limit cut it.
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// As Python counts them.
int64_t Characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

// Grows a vector that is looked up by choice.
template <typename T>
T& At(std::vector<T>& values, size_t index) {
  if (values.size() <= index) values.resize(index + 1);
  return values[index];
}

}  // namespace

ResponseWriter::ResponseWriter(const tokenizer::Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)) {}

Json ResponseWriter::Frame(bool chunk) const {
  if (options_.kind == ApiKind::kTokens) return {{"request_id", options_.id}};
  const char* object = "text_completion";
  if (options_.kind == ApiKind::kChat) {
    object = chunk ? "chat.completion.chunk" : "chat.completion";
  }
  return {{"id", options_.id},
          {"object", object},
          {"created", options_.created_s},
          {"model", options_.model}};
}

std::string ResponseWriter::TokenText(int32_t token) const {
  // Models have more rows of logits than their tokenizers have tokens.
  if (token < 0 || token >= tokenizer_.vocab_size()) return {};
  const std::array<int32_t, 1> ids = {token};
  const Result<std::string> text = tokenizer_.Decode(ids, /*skip_special=*/false);
  return text.ok() ? *text : std::string();
}

Json ResponseWriter::Entry(int32_t token, float logprob) const {
  const float shown = std::max(logprob, kLogprobMin);
  if (options_.kind == ApiKind::kTokens) {
    return {{"token", fmt::format("token_id:{}", token)}, {"logprob", shown}};
  }
  const std::string text = TokenText(token);
  Json bytes = nullptr;  // of a part of a character
  if (text.find(kReplacement) == std::string::npos) {
    bytes = Json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", text}, {"logprob", shown}, {"bytes", std::move(bytes)}};
}

Json ResponseWriter::Logprobs(const std::vector<SampledToken>& tokens, size_t index) {
  if (options_.kind != ApiKind::kCompletion) {
    Json content = Json::array();
    for (const SampledToken& token : tokens) {
      Json entry = Entry(token.token, token.logprob);
      entry["top_logprobs"] = Json::array();
      for (const TokenLogprob& top : token.top_logprobs) {
        entry["top_logprobs"].push_back(Entry(top.token, top.logprob));
      }
      content.push_back(std::move(entry));
    }
    Json out = {{"content", std::move(content)}};
    if (options_.kind == ApiKind::kChat) out["refusal"] = nullptr;
    return out;
  }
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  int64_t& offset = At(text_offsets_, index);
  for (const SampledToken& token : tokens) {
    const std::string text = TokenText(token.token);
    out["tokens"].push_back(text);
    out["token_logprobs"].push_back(std::max(token.logprob, kLogprobMin));
    Json top = Json::object();
    for (const TokenLogprob& each : token.top_logprobs) {
      top[TokenText(each.token)] = std::max(each.logprob, kLogprobMin);
    }
    // As OpenAI says: the sampled one too, so one more than asked for.
    top[text] = std::max(token.logprob, kLogprobMin);
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(offset);
    offset += Characters(text);
  }
  return out;
}

Json ResponseWriter::Calls(const std::vector<env::ToolCall>& calls, size_t choice, size_t first,
                           bool chunk) const {
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Json call;
    if (chunk) call["index"] = first + i;
    const std::string_view id = options_.id;
    call["id"] = fmt::format("call_{}_{}_{}", id.substr(id.find('-') + 1), choice, first + i);
    call["type"] = "function";
    call["function"] = {{"name", calls[i].name}, {"arguments", calls[i].arguments}};
    out.push_back(std::move(call));
  }
  return out;
}

void ResponseWriter::AddChoice(size_t index, const std::vector<int32_t>& prompt,
                               const Answer& answer, const AnswerPiece& all,
                               const GenerateResult& result) {
  Json choice = {{"index", index}};
  if (options_.kind == ApiKind::kChat) {
    Json message = {{"role", "assistant"}, {"content", answer.text()}, {"refusal", nullptr}};
    if (!answer.calls().empty()) {
      if (answer.text().empty()) message["content"] = nullptr;
      message["tool_calls"] = Calls(answer.calls(), index, 0, /*chunk=*/false);
    }
    choice["message"] = std::move(message);
  } else if (options_.kind == ApiKind::kCompletion) {
    choice["text"] = answer.text();
  }
  choice["logprobs"] = options_.logprobs ? Logprobs(all.tokens, index) : Json(nullptr);
  choice["finish_reason"] = answer.finish_reason();
  if (!result.stop_string.empty()) choice["stop_reason"] = result.stop_string;
  if (options_.return_token_ids) {
    if (options_.kind == ApiKind::kCompletion) choice["prompt_token_ids"] = prompt;
    choice["token_ids"] = Ids(all.tokens);
    choice["policy_versions"] = Versions(result.versions);
  }
  At(choices_, index) = Dump(choice);
  if (options_.kind == ApiKind::kChat && options_.return_token_ids && prompt_ids_.empty()) {
    prompt_ids_ = prompt;
  }
}

std::string ResponseWriter::Whole(const Usage& usage) const {
  Json out = Frame(/*chunk=*/false);
  out["choices"] = Json::array();
  for (const std::string& choice : choices_) out["choices"].push_back(Json::parse(choice));
  if (!prompt_ids_.empty()) out["prompt_token_ids"] = prompt_ids_;
  out["usage"] = UsageJson(usage);
  return Dump(out);
}

std::string ResponseWriter::First(size_t index, const std::vector<int32_t>& prompt) const {
  if (options_.kind != ApiKind::kChat) {
    if (!options_.return_token_ids || options_.kind == ApiKind::kTokens) return {};
    Json out = Frame(/*chunk=*/true);
    out["choices"] = Json::array({{{"index", index},
                                   {"text", ""},
                                   {"logprobs", nullptr},
                                   {"finish_reason", nullptr},
                                   {"prompt_token_ids", prompt}}});
    if (options_.include_usage) out["usage"] = nullptr;
    return Dump(out);
  }
  Json out = Frame(/*chunk=*/true);
  out["choices"] = Json::array({{{"index", index},
                                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                                 {"logprobs", nullptr},
                                 {"finish_reason", nullptr}}});
  if (options_.return_token_ids) out["prompt_token_ids"] = prompt;
  if (options_.include_usage) out["usage"] = nullptr;
  return Dump(out);
}

std::string ResponseWriter::Piece(size_t index, const AnswerPiece& piece) {
  const bool tokens = (options_.logprobs || options_.return_token_ids) && !piece.tokens.empty();
  if (piece.text.empty() && piece.calls.empty() && !tokens) return {};
  Json choice = {{"index", index}};
  if (options_.kind == ApiKind::kChat) {
    Json delta = Json::object();
    if (!piece.text.empty() || piece.calls.empty()) delta["content"] = piece.text;
    if (!piece.calls.empty()) {
      size_t& sent = At(calls_sent_, index);
      delta["tool_calls"] = Calls(piece.calls, index, sent, /*chunk=*/true);
      sent += piece.calls.size();
    }
    choice["delta"] = std::move(delta);
  } else if (options_.kind == ApiKind::kCompletion) {
    choice["text"] = piece.text;
  }
  choice["logprobs"] = options_.logprobs ? Logprobs(piece.tokens, index) : Json(nullptr);
  choice["finish_reason"] = nullptr;
  if (options_.return_token_ids) choice["token_ids"] = Ids(piece.tokens);
  Json out = Frame(/*chunk=*/true);
  out["choices"] = Json::array({std::move(choice)});
  if (options_.include_usage) out["usage"] = nullptr;
  return Dump(out);
}

std::string ResponseWriter::Last(size_t index, const Answer& answer, const GenerateResult& result) {
  Json choice = {{"index", index}};
  if (options_.kind == ApiKind::kChat) choice["delta"] = Json::object();
  if (options_.kind == ApiKind::kCompletion) choice["text"] = "";
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = answer.finish_reason();
  if (!result.stop_string.empty()) choice["stop_reason"] = result.stop_string;
  if (options_.return_token_ids) choice["policy_versions"] = Versions(result.versions);
  Json out = Frame(/*chunk=*/true);
  out["choices"] = Json::array({std::move(choice)});
  if (options_.include_usage) out["usage"] = nullptr;
  return Dump(out);
}

std::string ResponseWriter::UsageChunk(const Usage& usage) const {
  Json out = Frame(/*chunk=*/true);
  out["choices"] = Json::array();
  out["usage"] = UsageJson(usage);
  return Dump(out);
}

}  // namespace forebay::rollout::serving
