// The native API of llama.cpp's server.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/json_reader.h"
#include "forebay/rollout/external/wire.h"

namespace forebay::rollout::external {
namespace {

// Log-probabilities of the model itself, or probabilities behind the samplers.
Result<TokenLogprob> Entry(const Json& entry, bool processed) {
  FB_ASSIGN_OR_RETURN(const int32_t token, TokenOf(Field(entry, "id")));
  if (!processed) {
    FB_ASSIGN_OR_RETURN(const float logprob, LogprobOf(Field(entry, "logprob")));
    return TokenLogprob{.token = token, .logprob = logprob};
  }
  FB_ASSIGN_OR_RETURN(const float probability, LogprobOf(Field(entry, "prob")));
  return TokenLogprob{.token = token, .logprob = std::log(probability)};
}

class LlamaCppWire final : public Wire {
 public:
  Result<Ask> Generate(const GenerateRequest& request,
                       const std::string& /*adapter*/) const override {
    if (!request.stop_strings.empty()) {
      return InvalidArgument("llama.cpp drops the tokens of stop strings: use stop tokens");
    }
    if (request.repetition_penalty != 1 || request.presence_penalty != 0 ||
        request.frequency_penalty != 0 || !request.logit_bias.empty()) {
      return InvalidArgument(
          "penalties and logit_bias have another definition in llama.cpp: sample without these");
    }
    // All samplers off but those named here, in the order of GenerateRequest.
    const Json body = {{"prompt", request.prompt},
                       {"n_predict", request.new_tokens_max},
                       {"temperature", request.temperature},
                       {"top_k", request.top_k},
                       {"top_p", request.top_p},
                       {"min_p", request.min_p},
                       {"seed", request.seed & 0x7fffffffU},
                       {"samplers", request.temperature == 0
                                        ? Json::array({"temperature"})
                                        : Json::array({"temperature", "min_p", "top_k", "top_p"})},
                       {"n_probs", request.top_logprobs > 0 ? request.top_logprobs : 1},
                       {"post_sampling_probs", !Plain(request)},
                       {"return_tokens", true},
                       {"cache_prompt", true},
                       {"stream", false}};
    return Ask{.target = "/completion", .body = body.dump()};
  }

  Result<WireAnswer> Read(std::string_view body, const GenerateRequest& request) const override {
    FB_ASSIGN_OR_RETURN(const Json answer, ParseAnswer(body));
    const bool processed = !Plain(request);
    WireAnswer out;
    FB_ASSIGN_OR_RETURN(out.tokens, TokensOf(Field(answer, "tokens"), "tokens"));
    const Json& entries = Field(answer, "completion_probabilities");
    if (!entries.is_array()) return DataLoss("the answer has no completion_probabilities");
    if (entries.size() != out.tokens.size()) {
      return DataLoss("the answer has " + std::to_string(out.tokens.size()) + " tokens and " +
                      std::to_string(entries.size()) + " log-probabilities");
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      FB_ASSIGN_OR_RETURN(const TokenLogprob sampled, Entry(entries[i], processed));
      if (sampled.token != out.tokens[i]) {
        return DataLoss("log-probability " + std::to_string(i) + " is not of the sampled token");
      }
      out.logprobs.push_back(sampled.logprob);
      if (request.top_logprobs == 0) continue;
      const Json& tops = Field(entries[i], processed ? "top_probs" : "top_logprobs");
      if (!tops.is_array()) return DataLoss("the answer lacks the alternatives of its tokens");
      std::vector<TokenLogprob>& top = out.top_logprobs.emplace_back();
      for (const Json& each : tops) {
        if (top.size() == static_cast<size_t>(request.top_logprobs)) break;
        FB_ASSIGN_OR_RETURN(const TokenLogprob entry, Entry(each, processed));
        if (std::isfinite(entry.logprob)) top.push_back(entry);
      }
    }
    if (Field(answer, "truncated") == true) {
      return DataLoss("the server cut the prompt: give it a larger context (--ctx-size)");
    }
    const std::string type = Text(Field(answer, "stop_type"));
    if (type != "eos" && type != "limit") {
      return DataLoss("the answer ended with '" + type + "' instead of 'eos' or 'limit'");
    }
    out.stopped = type == "eos";
    return out;
  }

  std::vector<ReloadStep> Reload(const std::string&, int64_t) const override { return {}; }
  std::string generate_remedy() const override {
    return "llama.cpp's llama-server serves POST /completion by itself";
  }
  std::string logprobs_remedy() const override {
    return "use a llama-server that has post_sampling_probs (2025 or newer)";
  }
};

}  // namespace

std::unique_ptr<Wire> MakeLlamaCppWire() { return std::make_unique<LlamaCppWire>(); }

}  // namespace forebay::rollout::external
