#include "forebay/rollout/engine/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/device.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

constexpr int64_t kSlotsMax = 4096;
constexpr int64_t kFirstBucket = 128;
constexpr double kTemperatureMax = 1000, kPenaltyMax = 1000;

Status CheckAscending(std::string_view name, const std::vector<int64_t>& values) {
  const bool ascending = std::adjacent_find(values.begin(), values.end(),
                                            std::greater_equal<int64_t>()) == values.end();
  if (!values.empty() && values.front() > 0 && ascending) return OkStatus();
  return InvalidArgument(
      fmt::format("{} must be positive and ascending, it is [{}]", name, fmt::join(values, ", ")));
}

Status CheckPrompt(const GenerateRequest& request, const RequestLimits& limits) {
  if (request.prompt.empty()) return InvalidArgument("the prompt is empty");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= limits.vocab_size) {
      return InvalidArgument(
          fmt::format("token {} of the prompt has the id {}, the model's vocabulary is 0 to {}", i,
                      request.prompt[i], limits.vocab_size - 1));
    }
  }
  if (static_cast<int64_t>(request.prompt.size()) >= limits.context) {
    return InvalidArgument(
        fmt::format("the prompt has {} tokens and leaves no room in the engine's context of {}",
                    request.prompt.size(), limits.context));
  }
  return OkStatus();
}

Status CheckNumbers(const GenerateRequest& request) {
  const auto wrong = [](std::string_view name, std::string_view right, auto value) {
    return InvalidArgument(fmt::format("{} must be {}, it is {}", name, right, value));
  };
  // Written so that NaN fails.
  if (!(request.temperature >= 0 && request.temperature <= kTemperatureMax)) {
    return wrong("the temperature", "0 to 1000", request.temperature);
  }
  if (request.top_k < 0) return wrong("top_k", "0 (all) or positive", request.top_k);
  if (!(request.top_p > 0 && request.top_p <= 1)) {
    return wrong("top_p", "above 0 and at most 1", request.top_p);
  }
  if (!(request.min_p >= 0 && request.min_p <= 1)) return wrong("min_p", "0 to 1", request.min_p);
  if (!(request.repetition_penalty >= 1 / kPenaltyMax &&
        request.repetition_penalty <= kPenaltyMax)) {
    return wrong("repetition_penalty", "0.001 to 1000", request.repetition_penalty);
  }
  for (const auto& [name, value] : {std::pair("presence_penalty", request.presence_penalty),
                                    std::pair("frequency_penalty", request.frequency_penalty)}) {
    if (!(std::abs(value) <= kPenaltyMax)) return wrong(name, "-1000 to 1000", value);
  }
  if (request.top_logprobs < 0 || request.top_logprobs > kTopLogprobsMax) {
    return wrong("top_logprobs", fmt::format("0 to {}", kTopLogprobsMax), request.top_logprobs);
  }
  return OkStatus();
}

Status CheckBias(const GenerateRequest& request, int64_t vocab_size) {
  if (static_cast<int64_t>(request.logit_bias.size()) > kLogitBiasMax) {
    return InvalidArgument(fmt::format("logit_bias has {} entries, at most {} are allowed",
                                       request.logit_bias.size(), kLogitBiasMax));
  }
  std::set<int32_t> seen;
  for (const auto& [token, bias] : request.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return InvalidArgument(
          fmt::format("logit_bias names the token {}, the model's vocabulary is 0 to {}", token,
                      vocab_size - 1));
    }
    if (!(std::abs(bias) <= kPenaltyMax)) {
      return InvalidArgument(
          fmt::format("logit_bias of token {} must be -1000 to 1000, it is {}", token, bias));
    }
    if (!seen.insert(token).second) {
      return InvalidArgument(fmt::format("logit_bias names the token {} twice", token));
    }
  }
  return OkStatus();
}

Status CheckStopStrings(const GenerateRequest& request, bool has_tokenizer) {
  if (request.stop_strings.empty()) return OkStatus();
  if (!has_tokenizer) {
    return InvalidArgument("stop_strings need an engine with a tokenizer, this one has none");
  }
  if (static_cast<int64_t>(request.stop_strings.size()) > kStopStringsMax) {
    return InvalidArgument(fmt::format("there are {} stop_strings, at most {} are allowed",
                                       request.stop_strings.size(), kStopStringsMax));
  }
  for (const std::string& stop : request.stop_strings) {
    if (stop.empty() || static_cast<int64_t>(stop.size()) > kStopStringBytesMax) {
      return InvalidArgument(fmt::format("a stop string must have 1 to {} bytes, one has {}",
                                         kStopStringBytesMax, stop.size()));
    }
  }
  return OkStatus();
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
  for (const xla::DType dtype : {options.weights_dtype, options.cache_dtype}) {
    if (dtype != xla::DType::kF32 && dtype != xla::DType::kBF16) {
      return InvalidArgument(fmt::format(
          "the engine holds weights and cache in f32 or bf16, not {}", xla::Name(dtype)));
    }
  }
  EngineDeviceOptions out;
  out.shape = {.slots = options.slots,
               .context = options.context,
               .weights_dtype = options.weights_dtype,
               .cache_dtype = options.cache_dtype};
  out.context_buckets = options.context_buckets;
  if (out.context_buckets.empty()) {
    for (int64_t bucket = kFirstBucket; bucket < options.context; bucket *= 2) {
      out.context_buckets.push_back(bucket);
      const int64_t between = bucket + bucket / 2;
      if (between < options.context) out.context_buckets.push_back(between);
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

Status CheckRequest(const GenerateRequest& request, const RequestLimits& limits) {
  FB_RETURN_IF_ERROR(CheckPrompt(request, limits));
  if (request.new_tokens_max < 1) {
    return InvalidArgument(
        fmt::format("new_tokens_max must be positive, it is {}", request.new_tokens_max));
  }
  FB_RETURN_IF_ERROR(CheckNumbers(request));
  FB_RETURN_IF_ERROR(CheckBias(request, limits.vocab_size));
  return CheckStopStrings(request, limits.has_tokenizer);
}

}  // namespace forebay::rollout
