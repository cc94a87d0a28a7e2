// Call: one request of a generating endpoint: all of it that reads, tokenizes or writes, and takes
// as long as the request is large. For workers; it knows no loop and no socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/serving/answer.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/api_request.h"
#include "forebay/rollout/serving/completion.h"
#include "forebay/rollout/serving/generation.h"
#include "forebay/rollout/serving/response_writer.h"

namespace forebay::rollout::serving {

// The tokens of the request's prompts, through the chat template if it is a chat.
std::optional<ApiError> MakePrompts(const ServedModel& model, const ApiRequest& request,
                                    std::vector<std::vector<int32_t>>* out);

// What a Call has for the client. An error ends the whole request: half an answer is none.
struct CallStep {
  Status status;      // the engine's error
  std::string bytes;  // to be sent, also with an error
};

// One thread at a time. `deps` must outlive it.
class Call {
 public:
  Call(const CompletionDeps& deps, ApiKind kind) : deps_(deps), kind_(kind) {}

  // From the body to the engine's requests (taken once); what the client did wrong, if anything.
  std::optional<ApiError> Prepare(const std::string& body, TimePoint deadline);
  std::vector<GenerateRequest> TakeRequests() { return std::move(generate_); }
  bool stream() const { return request_.stream; }

  // The whole answer, as JSON, from the results of all requests.
  CallStep Whole(std::vector<GenerationEvent> results);
  // In a stream: the events of the server for what has come. The first call's begin the choices.
  CallStep Chunks(std::vector<GenerationEvent> events);
  // The end of a stream to which nothing happened.
  std::string LastChunks();

 private:
  Status Take(GenerationEvent event);
  std::optional<ApiError> AddRequests(const std::vector<int32_t>& prompt, TimePoint deadline);
  size_t PromptOf(size_t choice) const { return choice / static_cast<size_t>(request_.n); }
  Usage usage() const;

  const CompletionDeps& deps_;
  const ApiKind kind_;
  ApiRequest request_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<GenerateRequest> generate_;  // n of each prompt, in order
  std::vector<Answer> answers_;            // of each
  std::vector<std::optional<GenerateResult>> results_;
  std::optional<ResponseWriter> writer_;
  bool begun_ = false;  // of a stream: its choices
};

}  // namespace forebay::rollout::serving
