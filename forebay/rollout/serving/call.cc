#include "forebay/rollout/serving/call.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/sse.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/begun_call.h"
#include "forebay/rollout/serving/chat_render.h"
#include "forebay/rollout/serving/completion.h"
#include "forebay/rollout/serving/generation.h"
#include "forebay/rollout/serving/response_writer.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {

std::optional<ApiError> MakePrompts(const ServedModel& model, const ApiRequest& request,
                                    std::vector<std::vector<int32_t>>* out) {
  std::vector<std::string> texts = request.texts;
  if (request.kind == ApiKind::kChat) {
    if (model.chat == nullptr) {
      return ApiError{.message = kNoTemplate};
    }
    Result<std::string> text = RenderChat(model, ChatTextOf(request));
    if (!text.ok()) {
      return ApiError{.message = text.status().message(), .param = "messages"};
    }
    texts.push_back(std::move(*text));
  }
  *out = request.ids;
  for (const std::string& text : texts) {
    Result<std::vector<int32_t>> ids = model.tokenizer->Encode(text);
    if (!ids.ok()) return ApiError{.message = ids.status().message(), .param = "prompt"};
    out->push_back(std::move(*ids));
  }
  if (!request.begun_call.empty()) {
    Result<std::vector<int32_t>> ids = model.tokenizer->Encode(request.begun_call);
    if (!ids.ok()) return ApiError{.message = ids.status().message(), .param = "tool_choice"};
    out->back().insert(out->back().end(), ids->begin(), ids->end());
  }
  for (const std::vector<int32_t>& ids : *out) {
    if (ids.empty()) return ApiError{.message = "the prompt is empty", .param = "prompt"};
  }
  return std::nullopt;
}

std::optional<ApiError> Call::AddRequests(const std::vector<int32_t>& prompt, TimePoint deadline) {
  const ServedModel& model = *deps_.model;
  const int64_t context = model.engine->context_max();
  const auto size = static_cast<int64_t>(prompt.size());
  if (size >= context) {
    return ApiError{.message = fmt::format("the prompt has {} tokens; the model's context holds "
                                           "{} together with the answer",
                                           size, context),
                    .param = kind_ == ApiKind::kChat ? "messages" : "prompt",
                    .code = "context_length_exceeded"};
  }
  for (int32_t i = 0; i < request_.n; ++i) {
    GenerateRequest generate = request_.sampling;
    generate.prompt = prompt;
    const int64_t room = std::min<int64_t>(context - size, INT32_MAX);
    const int64_t wanted = generate.new_tokens_max == 0 ? room : generate.new_tokens_max;
    generate.new_tokens_max = static_cast<int32_t>(std::min(wanted, room));
    // The first choice is the same however many there are.
    generate.seed = DeriveSeed(request_.seed.value_or(deps_.seed), static_cast<uint64_t>(i));
    generate.stop_tokens = request_.stop_token_ids;
    if (!request_.ignore_eos) {
      generate.stop_tokens.insert(generate.stop_tokens.end(), model.stop_tokens.begin(),
                                  model.stop_tokens.end());
    }
    generate.deadline = deadline;
    answers_.emplace_back(*model.tokenizer,
                          Answer::Options{.stop_tokens = generate.stop_tokens,
                                          .stop_strings = generate.stop_strings,
                                          .skip_special = request_.skip_special_tokens,
                                          .tool_calls = request_.tool_calls,
                                          .calls_max = request_.parallel_tool_calls ? SIZE_MAX : 1,
                                          .begun = request_.begun_call});
    generate_.push_back(std::move(generate));
  }
  return std::nullopt;
}

std::optional<ApiError> Call::Prepare(const std::string& body, TimePoint deadline) {
  const ServedModel& model = *deps_.model;
  const CompletionHooks none;
  const CompletionHooks& hooks = deps_.hooks == nullptr ? none : *deps_.hooks;
  if (auto error = ParseApiRequest(kind_, body, &request_)) return error;
  if (!request_.model.empty() && request_.model != model.name && !hooks.adjust) {
    return ApiError{.status = 404,
                    .message = fmt::format("the model '{}' is not served here: this is '{}'",
                                           request_.model.substr(0, 100), model.name),
                    .param = "model",
                    .code = "model_not_found"};
  }
  if (auto error = BeginCall(model, &request_)) return error;
  if (hooks.adjust) {
    if (auto error = hooks.adjust(&request_)) return error;
  }
  if (auto error = hooks.prompts ? hooks.prompts(&request_, &prompts_)
                                 : MakePrompts(model, request_, &prompts_)) {
    return error;
  }
  for (const std::vector<int32_t>& prompt : prompts_) {
    if (auto error = AddRequests(prompt, deadline)) return error;
  }
  results_.resize(generate_.size());
  constexpr const char* kPrefixes[] = {"chatcmpl-", "cmpl-", ""};
  writer_.emplace(*model.tokenizer,
                  ResponseWriter::Options{.kind = kind_,
                                          .id = request_.request_id.empty()
                                                    ? kPrefixes[static_cast<int>(kind_)] + deps_.id
                                                    : request_.request_id,
                                          .model = model.name,
                                          .created_s = WallMicros() / 1'000'000,
                                          .logprobs = request_.logprobs,
                                          .return_token_ids = request_.return_token_ids,
                                          .include_usage = request_.include_usage});
  return std::nullopt;
}

Usage Call::usage() const {
  Usage out;
  for (const std::vector<int32_t>& prompt : prompts_) {
    out.prompt_tokens += static_cast<int64_t>(prompt.size());
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    if (!results_[i]) continue;
    out.completion_tokens += static_cast<int64_t>(results_[i]->tokens.size());
    if (i % static_cast<size_t>(request_.n) == 0) {
      out.cached_tokens += results_[i]->prompt_tokens_reused;
    }
  }
  return out;
}

// Takes an event into its choice.
Status Call::Take(GenerationEvent event) {
  Answer& answer = answers_[event.request];
  if (auto* token = std::get_if<TokenEvent>(&event.what)) {
    return answer.Feed({.token = token->token,
                        .logprob = token->logprob,
                        .top_logprobs = std::move(token->top_logprobs)});
  }
  auto& result = std::get<Result<GenerateResult>>(event.what);
  if (!result.ok()) {
    if (deps_.hooks != nullptr && deps_.hooks->failed) deps_.hooks->failed(result.status());
    return result.status();
  }
  FB_RETURN_IF_ERROR(answer.Finish(*result));
  results_[event.request] = std::move(*result);
  if (deps_.hooks != nullptr && deps_.hooks->finished) {
    deps_.hooks->finished(PromptOf(event.request), *results_[event.request], answer);
  }
  return OkStatus();
}

CallStep Call::Whole(std::vector<GenerationEvent> results) {
  for (GenerationEvent& event : results) {
    Status status = Take(std::move(event));
    if (!status.ok()) return {.status = std::move(status)};
  }
  for (size_t i = 0; i < answers_.size(); ++i) {
    const AnswerPiece all = answers_[i].Take();
    writer_->AddChoice(i, prompts_[PromptOf(i)], answers_[i], all, *results_[i]);
  }
  return {.bytes = writer_->Whole(usage())};
}

CallStep Call::Chunks(std::vector<GenerationEvent> events) {
  CallStep out;
  const auto add = [&](const std::string& json) {
    if (!json.empty()) out.bytes += SseMessage(json);
  };
  if (!std::exchange(begun_, true)) {
    for (size_t i = 0; i < answers_.size(); ++i) add(writer_->First(i, prompts_[PromptOf(i)]));
  }
  // Several tokens of a choice go out together: a client that reads slowly gets fewer messages.
  std::vector<size_t> changed, ended;
  for (GenerationEvent& event : events) {
    const size_t i = event.request;
    const bool ends = std::holds_alternative<Result<GenerateResult>>(event.what);
    out.status = Take(std::move(event));
    if (!out.status.ok()) break;
    if (std::ranges::find(changed, i) == changed.end()) changed.push_back(i);
    if (ends) ended.push_back(i);
  }
  for (const size_t i : changed) add(writer_->Piece(i, answers_[i].Take()));
  for (const size_t i : ended) add(writer_->Last(i, answers_[i], *results_[i]));
  if (!out.status.ok()) add(ErrorJson(EngineError(out.status)));
  return out;
}

std::string Call::LastChunks() {
  return request_.include_usage ? SseMessage(writer_->UsageChunk(usage())) : std::string();
}

}  // namespace forebay::rollout::serving
