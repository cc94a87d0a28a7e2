#include "forebay/rollout/external/wire.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::external {
namespace {

// Servers compute log-softmax in float: a certain token may come out a little above 0.
constexpr float kLogprobMax = 1e-3F;
// What servers write for a token that cannot be sampled: such a token was not sampled.
constexpr float kLogprobMin = -9999.0F;

// Checks that the runs are of `told` tokens and ascend, and leaves those of the first `kept`.
Status CutVersions(size_t told, size_t kept, std::vector<VersionRun>* versions) {
  int64_t tokens = 0;
  int64_t before = -1;
  for (const VersionRun& run : *versions) {
    if (run.tokens < 1 || run.policy_version <= before) {
      return DataLoss("the versions of the answer's tokens do not ascend, with tokens each");
    }
    before = run.policy_version;
    tokens += run.tokens;
  }
  if (tokens != static_cast<int64_t>(told)) {
    return DataLoss(fmt::format("the answer has {} tokens and the versions of {}", told, tokens));
  }
  for (auto left = static_cast<int64_t>(told - kept); left > 0;) {
    VersionRun& last = versions->back();
    const int64_t cut = std::min<int64_t>(left, last.tokens);
    last.tokens -= static_cast<int32_t>(cut);
    left -= cut;
    if (last.tokens == 0) versions->pop_back();
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<Wire> MakeWire(const HttpEngineOptions& options) {
  switch (options.protocol) {
    case HttpEngineProtocol::kVllm:
      return MakeVllmWire(options.model);
    case HttpEngineProtocol::kForebay:
      return MakeForebayWire(options.model);
    case HttpEngineProtocol::kSglang:
      return MakeSglangWire();
    case HttpEngineProtocol::kLlamaCpp:
      return MakeLlamaCppWire();
  }
  return nullptr;
}

bool Filters(const GenerateRequest& request) {
  return request.temperature != 0 &&
         (request.top_k != 0 || request.top_p != 1 || request.min_p != 0);
}

bool Plain(const GenerateRequest& request) {
  return (request.temperature == 1 || request.temperature == 0) && !Filters(request) &&
         request.repetition_penalty == 1 && request.presence_penalty == 0 &&
         request.frequency_penalty == 0 && request.logit_bias.empty();
}

Result<GenerateResult> CheckAnswer(WireAnswer answer, const GenerateRequest& request,
                                   int64_t vocab_size, int64_t policy_version) {
  const size_t count = answer.tokens.size();
  if (count == 0) return DataLoss("the answer has no token");
  if (answer.logprobs.size() != count) {
    return DataLoss(fmt::format("the answer has {} tokens and {} log-probabilities", count,
                                answer.logprobs.size()));
  }
  if (count > static_cast<size_t>(std::max(request.new_tokens_max, 0))) {
    return DataLoss(fmt::format("the answer has {} tokens, more than the {} asked for", count,
                                request.new_tokens_max));
  }
  GenerateResult out;
  for (size_t i = 0; i < count; ++i) {
    const int32_t token = answer.tokens[i];
    const float logprob = answer.logprobs[i];
    if (token < 0 || token >= vocab_size) {
      return DataLoss(fmt::format("token {} of the answer has id {}, the model's vocabulary {} ids",
                                  i, token, vocab_size));
    }
    if (!std::isfinite(logprob) || logprob > kLogprobMax || logprob <= kLogprobMin) {
      return DataLoss(fmt::format("token {} of the answer has log-probability {}", i, logprob));
    }
    out.tokens.push_back(token);
    out.logprobs.push_back(std::min(logprob, 0.0F));
    if (std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end()) {
      out.stop_token = token;
      break;
    }
  }
  const bool cut = out.stop_token >= 0;
  if (!cut && answer.stopped && answer.stop_string.empty()) out.stop_token = out.tokens.back();
  if (!cut && answer.stopped) out.stop_string = std::move(answer.stop_string);
  out.finish_reason = cut || answer.stopped ? FinishReason::kStop : FinishReason::kLength;
  if (request.top_logprobs > 0) {
    if (answer.top_logprobs.size() != count) {
      return DataLoss("the answer lacks the alternatives of its tokens");
    }
    answer.top_logprobs.resize(out.tokens.size());
    out.top_logprobs = std::move(answer.top_logprobs);
  }
  out.versions = {{.policy_version = policy_version, .tokens = static_cast<int32_t>(count)}};
  if (!answer.versions.empty()) out.versions = std::move(answer.versions);
  FB_RETURN_IF_ERROR(CutVersions(count, out.tokens.size(), &out.versions));
  return out;
}

}  // namespace forebay::rollout::external
