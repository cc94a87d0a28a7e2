// vLLM's tokens-in, tokens-out API, which `forebay serve` has as well.
#include <fmt/core.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/json_reader.h"
#include "forebay/rollout/external/wire.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::external {
namespace {

constexpr const char* kDevMode =
    "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment; if this is `forebay serve`, set "
    "rollout.engine = \"forebay\"";

// The token of an entry: "token_id": 5, or in older versions "token": "token_id:5".
Result<int32_t> EntryToken(const Json& entry) {
  const Json& id = Field(entry, "token_id");
  if (!id.is_null()) return TokenOf(id);
  const std::string text = Text(Field(entry, "token"));
  constexpr std::string_view kPrefix = "token_id:";
  int32_t token = -1;
  if (text.starts_with(kPrefix)) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + kPrefix.size(), end, token);
    if (error == std::errc() && rest == end && token >= 0) return token;
  }
  return DataLoss("a log-probability does not say of which token it is");
}

Result<TokenLogprob> Entry(const Json& entry) {
  FB_ASSIGN_OR_RETURN(const int32_t token, EntryToken(entry));
  FB_ASSIGN_OR_RETURN(const float logprob, LogprobOf(Field(entry, "logprob")));
  return TokenLogprob{.token = token, .logprob = logprob};
}

// The one label of all tokens: vLLM's spans, or `forebay serve`'s runs.
Result<std::string> Version(const Json& choice) {
  std::string out;
  for (const char* name : {"weight_versions", "policy_versions"}) {
    const Json& spans = Field(choice, name);
    if (!spans.is_array()) continue;
    for (const Json& span : spans) {
      const Json& number = Field(span, "policy_version");
      const std::string label =
          number.is_number_integer() ? number.dump() : Text(Field(span, "version"));
      if (!out.empty() && label != out) {
        return DataLoss(
            fmt::format("the weights of the server changed within one answer, from version '{}' to "
                        "'{}'",
                        out, label));
      }
      out = label;
    }
  }
  return out;
}

// What `forebay serve` tells of each token.
Result<std::vector<VersionRun>> Versions(const Json& choice) {
  const Json& spans = Field(choice, "policy_versions");
  if (!spans.is_array()) return DataLoss("the answer has no policy_versions");
  std::vector<VersionRun> out;
  for (const Json& span : spans) {
    const Json& version = Field(span, "policy_version");
    const Json& tokens = Field(span, "tokens");
    if (!version.is_number_unsigned() || !tokens.is_number_unsigned() ||
        version.get<uint64_t>() > uint64_t{INT64_MAX} ||
        tokens.get<uint64_t>() > uint64_t{INT32_MAX}) {
      return DataLoss("an entry of policy_versions is not {policy_version, tokens}");
    }
    out.push_back({.policy_version = version.get<int64_t>(), .tokens = tokens.get<int32_t>()});
  }
  return out;
}

// With `ours` it asks `forebay serve`, whose weights may change in the middle of an answer.
class VllmWire final : public Wire {
 public:
  VllmWire(std::string model, bool ours) : model_(std::move(model)), ours_(ours) {}

  Result<Ask> Generate(const GenerateRequest& request, const std::string& adapter) const override {
    Json params = {
        {"max_tokens", request.new_tokens_max},
        {"temperature", request.temperature},
        {"seed", request.seed & static_cast<uint64_t>(std::numeric_limits<int64_t>::max())},
        {"logprobs", request.top_logprobs},
        {"ignore_eos", true},  // what ends an answer is the caller's to say
        {"skip_special_tokens", false}};
    if (!request.stop_tokens.empty()) params["stop_token_ids"] = request.stop_tokens;
    if (!request.stop_strings.empty()) {
      params["stop"] = request.stop_strings;
      params["include_stop_str_in_output"] = true;
    }
    if (request.top_k != 0) params["top_k"] = request.top_k;
    if (request.top_p != 1) params["top_p"] = request.top_p;
    if (request.min_p != 0) params["min_p"] = request.min_p;
    if (request.repetition_penalty != 1) params["repetition_penalty"] = request.repetition_penalty;
    if (request.presence_penalty != 0) params["presence_penalty"] = request.presence_penalty;
    if (request.frequency_penalty != 0) params["frequency_penalty"] = request.frequency_penalty;
    for (const auto& [token, bias] : request.logit_bias) {
      params["logit_bias"][std::to_string(token)] = bias;
    }
    Json body = {{"token_ids", request.prompt}, {"sampling_params", std::move(params)}};
    const std::string& model = adapter.empty() ? model_ : adapter;
    if (!model.empty()) body["model"] = model;
    return Ask{.target = "/inference/v1/generate", .body = body.dump()};
  }

  Result<WireAnswer> Read(std::string_view body, const GenerateRequest& request) const override {
    FB_ASSIGN_OR_RETURN(const Json answer, ParseAnswer(body));
    const Json& choices = Field(answer, "choices");
    if (!choices.is_array() || choices.size() != 1) {
      return DataLoss("the answer has not one choice");
    }
    const Json& choice = choices[0];
    WireAnswer out;
    FB_ASSIGN_OR_RETURN(out.tokens, TokensOf(Field(choice, "token_ids"), "token_ids"));
    const Json& content = Field(Field(choice, "logprobs"), "content");
    if (!content.is_array()) return DataLoss("the answer has no log-probabilities");
    if (content.size() != out.tokens.size()) {
      return DataLoss("the answer has " + std::to_string(out.tokens.size()) + " tokens and " +
                      std::to_string(content.size()) + " log-probabilities");
    }
    for (size_t i = 0; i < content.size(); ++i) {
      FB_ASSIGN_OR_RETURN(const TokenLogprob sampled, Entry(content[i]));
      if (sampled.token != out.tokens[i]) {
        return DataLoss("log-probability " + std::to_string(i) + " is of token " +
                        std::to_string(sampled.token) + ", but token " +
                        std::to_string(out.tokens[i]) + " was sampled");
      }
      out.logprobs.push_back(sampled.logprob);
      if (request.top_logprobs == 0) continue;
      const Json& tops = Field(content[i], "top_logprobs");
      if (!tops.is_array()) return DataLoss("the answer lacks the alternatives of its tokens");
      std::vector<TokenLogprob>& top = out.top_logprobs.emplace_back();
      for (const Json& each : tops) {
        if (top.size() == static_cast<size_t>(request.top_logprobs)) break;
        FB_ASSIGN_OR_RETURN(const TokenLogprob entry, Entry(each));
        top.push_back(entry);
      }
    }
    const std::string finish = Text(Field(choice, "finish_reason"));
    if (finish != "stop" && finish != "length") {
      return DataLoss("the answer ended with '" + finish + "' instead of 'stop' or 'length'");
    }
    out.stopped = finish == "stop";
    out.stop_string = Text(Field(choice, "stop_reason"));
    if (ours_) {
      FB_ASSIGN_OR_RETURN(out.versions, Versions(choice));
    } else {
      FB_ASSIGN_OR_RETURN(out.version, Version(choice));
    }
    return out;
  }

  Ask Model() const override { return {.method = "GET", .target = "/v1/models"}; }

  std::vector<Ask> Rouse() const override {
    if (ours_) return {};
    return {{.target = "/wake_up"}, {.target = "/resume"}};
  }

  std::vector<ReloadStep> Reload(const std::string& folder, int64_t version) const override {
    if (ours_) return {};  // a Publisher gives it weights
    const std::string label = std::to_string(version);
    const Json reload = {{"method", "reload_weights"}, {"kwargs", {{"weights_path", folder}}}};
    return {
        {.ask = {.target = "/pause?mode=wait"}, .remedy = kDevMode},
        {.ask = {.target = "/collective_rpc", .body = reload.dump()}, .remedy = kDevMode},
        // Cached prefixes are of the old weights.
        {.ask = {.target = "/reset_prefix_cache"}, .remedy = kDevMode},
        {.ask = {.target = "/update_weight_version", .body = Json({{"new_version", label}}).dump()},
         .optional = true},
        {.ask = {.target = "/resume"}, .always = true, .remedy = kDevMode},
        {.ask = {.method = "GET", .target = "/weight_info"}, .optional = true, .version = label}};
  }

  std::optional<Ask> LoadAdapter(const std::string& name,
                                 const std::string& folder) const override {
    return Ask{.target = "/v1/load_lora_adapter",
               .body = Json({{"lora_name", name}, {"lora_path", folder}}).dump()};
  }
  std::optional<Ask> UnloadAdapter(const std::string& name) const override {
    return Ask{.target = "/v1/unload_lora_adapter", .body = Json({{"lora_name", name}}).dump()};
  }

  std::string generate_remedy() const override {
    return "vLLM needs --enable-scale-out (or --tokens-only) for POST /inference/v1/generate";
  }
  std::string logprobs_remedy() const override {
    return "start vLLM with --logprobs-mode processed_logprobs";
  }

 private:
  const std::string model_;
  const bool ours_;
};

}  // namespace

std::unique_ptr<Wire> MakeVllmWire(const std::string& model) {
  return std::make_unique<VllmWire>(model, /*ours=*/false);
}

std::unique_ptr<Wire> MakeForebayWire(const std::string& model) {
  return std::make_unique<VllmWire>(model, /*ours=*/true);
}

}  // namespace forebay::rollout::external
