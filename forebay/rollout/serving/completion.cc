// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/serving/completion.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/rng.h"
#include "forebay/base/sse.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/chat_render.h"
#include "forebay/rollout/serving/generation.h"
#include "forebay/rollout/serving/response_writer.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

// One request while it is answered.
struct Call {
  ApiRequest request;
  Prompts prompts;
  std::vector<GenerateRequest> generate;  // n of each prompt, in order
  std::vector<Answer> answers;            // of each
  std::vector<std::optional<GenerateResult>> results;
  std::optional<ResponseWriter> writer;

  size_t PromptOf(size_t choice) const { return choice / static_cast<size_t>(request.n); }
  Usage usage() const {
    Usage out;
    for (const std::vector<int32_t>& prompt : prompts) {
      out.prompt_tokens += static_cast<int64_t>(prompt.size());
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i]) continue;
      out.completion_tokens += static_cast<int64_t>(results[i]->tokens.size());
      if (i % static_cast<size_t>(request.n) == 0) {
        out.cached_tokens += results[i]->prompt_tokens_reused;
      }
    }
    return out;
  }
};

std::optional<ApiError> Prepare(const CompletionDeps& deps, ApiKind kind, const std::string& body,
                                Call* call) {
  const ServedModel& model = *deps.model;
  const CompletionHooks none;
  const CompletionHooks& hooks = deps.hooks == nullptr ? none : *deps.hooks;
  ApiRequest& request = call->request;
  if (auto error = ParseApiRequest(kind, body, &request)) return error;
  if (!request.model.empty() && request.model != model.name && !hooks.adjust) {
    return ApiError{.status = 404,
                    .message = fmt::format("the model '{}' is not served here: this is '{}'",
                                           request.model.substr(0, 100), model.name),
                    .param = "model",
                    .code = "model_not_found"};
  }
  if (hooks.adjust) {
    if (auto error = hooks.adjust(&request)) return error;
  }
  if (auto error = hooks.prompts ? hooks.prompts(request, &call->prompts)
                                 : MakePrompts(model, request, &call->prompts)) {
    return error;
  }
  const int64_t context = model.engine->context_max();
  const uint64_t seed = request.seed.value_or(deps.seed);
  for (const std::vector<int32_t>& prompt : call->prompts) {
    const auto size = static_cast<int64_t>(prompt.size());
    if (size >= context) {
      return ApiError{.message = fmt::format("the prompt has {} tokens; the model's context holds "
                                             "{} together with the answer",
                                             size, context),
                      .param = kind == ApiKind::kChat ? "messages" : "prompt",
                      .code = "context_length_exceeded"};
    }
    for (int32_t i = 0; i < request.n; ++i) {
      GenerateRequest generate = request.sampling;
      generate.prompt = prompt;
      const int64_t room = std::min<int64_t>(context - size, INT32_MAX);
      const int64_t wanted = generate.new_tokens_max == 0 ? room : generate.new_tokens_max;
      generate.new_tokens_max = static_cast<int32_t>(std::min(wanted, room));
      // The first choice is the same however many there are.
      generate.seed = DeriveSeed(seed, static_cast<uint64_t>(i));
      generate.stop_tokens = request.stop_token_ids;
      if (!request.ignore_eos) {
        generate.stop_tokens.insert(generate.stop_tokens.end(), model.stop_tokens.begin(),
                                    model.stop_tokens.end());
      }
      generate.deadline = deps.loop->Now() + deps.request_deadline;
      call->answers.emplace_back(*model.tokenizer,
                                 Answer::Options{.stop_tokens = generate.stop_tokens,
                                                 .stop_strings = generate.stop_strings,
                                                 .skip_special = request.skip_special_tokens,
                                                 .tool_calls = request.tool_calls});
      call->generate.push_back(std::move(generate));
    }
  }
  call->results.resize(call->generate.size());
  constexpr const char* kPrefixes[] = {"chatcmpl-", "cmpl-", ""};
  call->writer.emplace(*model.tokenizer, ResponseWriter::Options{
                                             .kind = kind,
                                             .id = request.request_id.empty()
                                                       ? kPrefixes[static_cast<int>(kind)] + deps.id
                                                       : request.request_id,
                                             .model = model.name,
                                             .created_s = WallMicros() / 1'000'000,
                                             .logprobs = request.logprobs,
                                             .return_token_ids = request.return_token_ids,
                                             .include_usage = request.include_usage});
  return std::nullopt;
}

// Takes an event into its choice. An error ends the whole request: half an answer is none.
Status TakeEvent(const CompletionDeps& deps, Call* call, GenerationEvent event) {
  Answer& answer = call->answers[event.request];
  if (auto* token = std::get_if<TokenEvent>(&event.what)) {
    return answer.Feed({.token = token->token,
                        .logprob = token->logprob,
                        .top_logprobs = std::move(token->top_logprobs)});
  }
  auto& result = std::get<Result<GenerateResult>>(event.what);
  if (!result.ok()) {
    if (deps.hooks != nullptr && deps.hooks->failed) deps.hooks->failed(result.status());
    return result.status();
  }
  FB_RETURN_IF_ERROR(answer.Finish(*result));
  call->results[event.request] = std::move(*result);
  if (deps.hooks != nullptr && deps.hooks->finished) {
    deps.hooks->finished(call->PromptOf(event.request), *call->results[event.request], answer);
  }
  return OkStatus();
}

// Waits until nothing of it runs any more: the engine calls back until then.
Task<void> DrainEvents(std::shared_ptr<Generation> generation) {
  generation->Cancel();
  while (true) {
    Task<std::optional<GenerationEvent>> next = generation->Next();
    const std::optional<GenerationEvent> event = co_await std::move(next);
    if (!event) co_return;
  }
}

// Before anything was sent: the engine's error, or nothing if the client has gone.
Task<CompletionEnd> Fail(HttpExchange& exchange, Status status) {
  if (exchange.disconnected()) co_return CompletionEnd{.status = 499, .cancelled = true};
  ApiError error = EngineError(status);
  const int code = error.status;
  Task<void> responding = RespondError(exchange, std::move(error));
  co_await std::move(responding);
  co_return CompletionEnd{.status = code};
}

Task<CompletionEnd> CompleteWhole(const CompletionDeps& deps, HttpExchange& exchange, Call* call,
                                  std::shared_ptr<Generation> generation) {
  Status status;
  while (status.ok()) {
    Task<std::optional<GenerationEvent>> next = generation->Next();
    std::optional<GenerationEvent> event = co_await std::move(next);
    if (!event) break;
    status = TakeEvent(deps, call, std::move(*event));
  }
  Task<void> draining = DrainEvents(generation);
  co_await std::move(draining);
  exchange.OnDisconnect(nullptr);
  if (!status.ok() || exchange.disconnected()) {
    Task<CompletionEnd> failing = Fail(exchange, status);
    co_return co_await std::move(failing);
  }
  for (size_t i = 0; i < call->answers.size(); ++i) {
    const AnswerPiece all = call->answers[i].Take();
    call->writer->AddChoice(i, call->prompts[call->PromptOf(i)], call->answers[i], all,
                            *call->results[i]);
  }
  HttpResponse response{.headers = {{"Content-Type", "application/json"}},
                        .body = call->writer->Whole(call->usage())};
  Task<Status> responding = exchange.Respond(std::move(response));
  const Status sent = co_await std::move(responding);
  co_return CompletionEnd{.status = 200, .cancelled = !sent.ok()};
}

// The choices that events have changed since the client was told.
class Changes {
 public:
  Status Take(const CompletionDeps& deps, Call* call, GenerationEvent event) {
    const size_t i = event.request;
    const bool ends = std::holds_alternative<Result<GenerateResult>>(event.what);
    FB_RETURN_IF_ERROR(TakeEvent(deps, call, std::move(event)));
    if (std::ranges::find(changed_, i) == changed_.end()) changed_.push_back(i);
    if (ends) ended_.push_back(i);
    return OkStatus();
  }
  std::string Chunks(Call* call) {
    std::string out;
    const auto add = [&](const std::string& json) {
      if (!json.empty()) out += SseMessage(json);
    };
    for (const size_t i : std::exchange(changed_, {})) {
      add(call->writer->Piece(i, call->answers[i].Take()));
    }
    for (const size_t i : std::exchange(ended_, {})) {
      add(call->writer->Last(i, call->answers[i], *call->results[i]));
    }
    return out;
  }

 private:
  std::vector<size_t> changed_, ended_;
};

Task<CompletionEnd> CompleteStream(const CompletionDeps& deps, HttpExchange& exchange, Call* call,
                                   std::shared_ptr<Generation> generation) {
  // The status line waits for the first event: a request that the engine refuses gets its code.
  Task<std::optional<GenerationEvent>> first = generation->Next();
  std::optional<GenerationEvent> first_event = co_await std::move(first);
  Changes changes;
  Status status = changes.Take(deps, call, std::move(*first_event));
  if (!status.ok()) {
    Task<void> draining = DrainEvents(generation);
    co_await std::move(draining);
    exchange.OnDisconnect(nullptr);
    Task<CompletionEnd> failing = Fail(exchange, status);
    co_return co_await std::move(failing);
  }
  Task<Status> beginning =
      exchange.Begin(200, {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}});
  Status sent = co_await std::move(beginning);
  std::string bytes;
  for (size_t i = 0; i < call->answers.size(); ++i) {
    const std::string begin = call->writer->First(i, call->prompts[call->PromptOf(i)]);
    if (!begin.empty()) bytes += SseMessage(begin);
  }
  while (sent.ok()) {
    // All that is there goes out together: a client that reads slowly gets fewer, larger writes.
    while (std::optional<GenerationEvent> more = generation->TryNext()) {
      status = changes.Take(deps, call, std::move(*more));
      if (!status.ok()) break;
    }
    bytes += changes.Chunks(call);
    if (!status.ok()) bytes += SseMessage(ErrorJson(EngineError(status)));
    if (!bytes.empty()) {
      Task<Status> writing = exchange.Write(std::exchange(bytes, {}));
      sent = co_await std::move(writing);
    }
    if (!sent.ok() || !status.ok()) break;
    Task<std::optional<GenerationEvent>> next = generation->Next();
    std::optional<GenerationEvent> event = co_await std::move(next);
    if (!event) break;
    status = changes.Take(deps, call, std::move(*event));
  }
  Task<void> draining = DrainEvents(generation);
  co_await std::move(draining);
  exchange.OnDisconnect(nullptr);
  if (sent.ok() && status.ok() && call->request.include_usage) {
    bytes += SseMessage(call->writer->UsageChunk(call->usage()));
  }
  if (sent.ok()) {
    bytes += SseMessage("[DONE]");
    Task<Status> writing = exchange.Write(std::move(bytes));
    sent = co_await std::move(writing);
  }
  if (sent.ok()) {
    Task<Status> ending = exchange.End();
    sent = co_await std::move(ending);
  }
  const bool cancelled = !sent.ok();
  co_return CompletionEnd{.status = cancelled ? 499 : 200, .cancelled = cancelled};
}

}  // namespace

std::optional<ApiError> MakePrompts(const ServedModel& model, const ApiRequest& request,
                                    Prompts* out) {
  std::vector<std::string> texts = request.texts;
  if (request.kind == ApiKind::kChat) {
    if (model.chat == nullptr) {
      return ApiError{.message = "this model has no chat template: use /v1/completions"};
    }
    Result<std::string> text =
        RenderChat(model, {.messages_json = request.messages_json,
                           .tools_json = request.tools_json,
                           .add_generation_prompt = request.add_generation_prompt,
                           .continue_final_message = request.continue_final_message});
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
  for (const std::vector<int32_t>& ids : *out) {
    if (ids.empty()) return ApiError{.message = "the prompt is empty", .param = "prompt"};
  }
  return std::nullopt;
}

Task<void> RespondError(HttpExchange& exchange, ApiError error) {
  HttpResponse response{.status = error.status,
                        .headers = {{"Content-Type", "application/json"}},
                        .body = ErrorJson(error)};
  if (error.status == 429) response.headers.Add("Retry-After", "1");
  Task<Status> responding = exchange.Respond(std::move(response));
  const Status ignored = co_await std::move(responding);
  static_cast<void>(ignored);  // whoever has gone needs no error
}

Task<CompletionEnd> Complete(CompletionDeps deps, HttpExchange& exchange, ApiKind kind) {
  Call call;
  std::optional<ApiError> error = Prepare(deps, kind, exchange.request().body, &call);
  if (error) {
    const int code = error->status;
    Task<void> responding = RespondError(exchange, std::move(*error));
    co_await std::move(responding);
    co_return CompletionEnd{.status = code};
  }
  const bool stream = call.request.stream;
  const std::shared_ptr<Generation> generation =
      Generation::Start(*deps.loop, *deps.model->engine, std::move(call.generate), stream);
  exchange.OnDisconnect([generation] { generation->Cancel(); });
  if (exchange.disconnected()) generation->Cancel();
  if (deps.hooks != nullptr && deps.hooks->running) {
    deps.hooks->running([generation] { generation->Cancel(); });
  }
  Task<CompletionEnd> completing = stream ? CompleteStream(deps, exchange, &call, generation)
                                          : CompleteWhole(deps, exchange, &call, generation);
  co_return co_await std::move(completing);
}

}  // namespace forebay::rollout::serving
