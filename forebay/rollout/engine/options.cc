#include "forebay/rollout/engine/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/device.h"
#include "forebay/rollout/xla_engine.h"

namespace forebay::rollout {
namespace {

constexpr int64_t kSlotsMax = 4096;
constexpr int64_t kFirstBucket = 128;

Status CheckAscending(std::string_view name, const std::vector<int64_t>& values) {
  const bool ascending = std::adjacent_find(values.begin(), values.end(),
                                            std::greater_equal<int64_t>()) == values.end();
  if (!values.empty() && values.front() > 0 && ascending) return OkStatus();
  return InvalidArgument(
      fmt::format("{} must be positive and ascending, it is [{}]", name, fmt::join(values, ", ")));
}

}  // namespace

Result<EngineDeviceOptions> ResolveOptions(const XlaEngineOptions& options,
                                           const models::ModelConfig& config) {
  if (options.slots < 1 || options.slots > kSlotsMax) {
    return InvalidArgument(
        fmt::format("the engine's slots must be 1 to {}, they are {}", kSlotsMax, options.slots));
  }
  if (options.context < 2 || options.context > config.context_max) {
    return InvalidArgument(fmt::format(
        "the engine's context must be 2 to {} tokens (what the model was made for), it is {}",
        config.context_max, options.context));
  }
  if (options.waiting_max < 1) {
    return InvalidArgument(
        fmt::format("the engine's waiting_max must be positive, it is {}", options.waiting_max));
  }
  EngineDeviceOptions out;
  out.shape = {.slots = options.slots, .context = options.context};
  out.context_buckets = options.context_buckets;
  if (out.context_buckets.empty()) {
    for (int64_t bucket = kFirstBucket; bucket < options.context; bucket *= 2) {
      out.context_buckets.push_back(bucket);
    }
    out.context_buckets.push_back(options.context);
  }
  FB_RETURN_IF_ERROR(CheckAscending("the engine's context_buckets", out.context_buckets));
  if (out.context_buckets.back() != options.context) {
    return InvalidArgument(
        fmt::format("the last of context_buckets must be the context {}, it is {}", options.context,
                    out.context_buckets.back()));
  }
  FB_RETURN_IF_ERROR(CheckAscending("the engine's prefill_chunks", options.prefill_chunks));
  for (const int64_t chunk : options.prefill_chunks) {
    if (chunk <= options.context) out.prefill_chunks.push_back(chunk);
  }
  if (out.prefill_chunks.empty()) {
    return InvalidArgument(
        fmt::format("the smallest of prefill_chunks must be at most the context {}, it is {}",
                    options.context, options.prefill_chunks.front()));
  }
  if (options.deterministic) {
    out.context_buckets = {options.context};
    out.prefill_chunks = {out.prefill_chunks.back()};
    if (options.context % out.prefill_chunks.back() != 0) {
      return InvalidArgument(
          fmt::format("a deterministic engine needs a context that is a multiple of its largest "
                      "prefill chunk: {} is "
                      "no multiple of {}",
                      options.context, out.prefill_chunks.back()));
    }
  }
  return out;
}

Status CheckRequest(const GenerateRequest& request, int64_t vocab_size, int64_t context) {
  if (request.prompt.empty()) return InvalidArgument("the prompt is empty");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab_size) {
      return InvalidArgument(
          fmt::format("token {} of the prompt has the id {}, the model's vocabulary is 0 to {}", i,
                      request.prompt[i], vocab_size - 1));
    }
  }
  if (static_cast<int64_t>(request.prompt.size()) >= context) {
    return InvalidArgument(
        fmt::format("the prompt has {} tokens and leaves no room in the engine's context of {}",
                    request.prompt.size(), context));
  }
  if (request.new_tokens_max < 1) {
    return InvalidArgument(
        fmt::format("new_tokens_max must be positive, it is {}", request.new_tokens_max));
  }
  if (!std::isfinite(request.temperature) || request.temperature < 0) {
    return InvalidArgument(
        fmt::format("the temperature must be 0 or positive, it is {}", request.temperature));
  }
  if (request.top_k != 0 || request.top_p != 1 || request.min_p != 0 ||
      request.repetition_penalty != 1 || request.presence_penalty != 0 ||
      request.frequency_penalty != 0 || !request.logit_bias.empty() ||
      !request.stop_strings.empty() || request.top_logprobs != 0) {
    return Unimplemented("this engine's sampler knows the temperature only");
  }
  return OkStatus();
}

}  // namespace forebay::rollout
