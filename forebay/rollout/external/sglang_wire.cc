// SGLang's native API.
#include <cstddef>
#include <cstdint>
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

namespace forebay::rollout::external {
namespace {

// [logprob, token id, text or null]
Result<TokenLogprob> Entry(const Json& entry) {
  if (!entry.is_array() || entry.size() < 2) {
    return DataLoss("a log-probability is not of the form [logprob, token id, text]");
  }
  FB_ASSIGN_OR_RETURN(const float logprob, LogprobOf(entry[0]));
  FB_ASSIGN_OR_RETURN(const int32_t token, TokenOf(entry[1]));
  return TokenLogprob{.token = token, .logprob = logprob};
}

class SglangWire final : public Wire {
 public:
  Result<Ask> Generate(const GenerateRequest& request, const std::string& adapter) const override {
    if (Filters(request)) {
      return InvalidArgument(
          "SGLang tells log-probabilities from before top_k, top_p and min_p: they would not be of "
          "the distribution that was sampled. Sample without these");
    }
    Json params = {{"max_new_tokens", request.new_tokens_max},
                   {"temperature", request.temperature},
                   {"ignore_eos", true},
                   {"no_stop_trim", true},
                   {"skip_special_tokens", false}};
    if (!request.stop_tokens.empty()) params["stop_token_ids"] = request.stop_tokens;
    if (!request.stop_strings.empty()) params["stop"] = request.stop_strings;
    if (request.repetition_penalty != 1) params["repetition_penalty"] = request.repetition_penalty;
    if (request.presence_penalty != 0) params["presence_penalty"] = request.presence_penalty;
    if (request.frequency_penalty != 0) params["frequency_penalty"] = request.frequency_penalty;
    for (const auto& [token, bias] : request.logit_bias) {
      params["logit_bias"][std::to_string(token)] = bias;
    }
    // Only its deterministic mode knows it; 31 bits go into any version of it.
    params["sampling_seed"] = request.seed & 0x7fffffffU;
    Json body = {{"input_ids", request.prompt},
                 {"sampling_params", std::move(params)},
                 {"return_logprob", true},
                 {"logprob_start_len", -1},
                 {"stream", false}};
    if (request.top_logprobs > 0) body["top_logprobs_num"] = request.top_logprobs;
    if (!adapter.empty()) body["lora_path"] = adapter;
    return Ask{.target = "/generate", .body = body.dump()};
  }

  Result<WireAnswer> Read(std::string_view body, const GenerateRequest& request) const override {
    FB_ASSIGN_OR_RETURN(const Json answer, ParseAnswer(body));
    const Json& meta = Field(answer, "meta_info");
    const Json& entries = Field(meta, "output_token_logprobs");
    if (!entries.is_array()) {
      return DataLoss("the answer has no meta_info.output_token_logprobs");
    }
    WireAnswer out;
    for (const Json& each : entries) {
      FB_ASSIGN_OR_RETURN(const TokenLogprob sampled, Entry(each));
      out.tokens.push_back(sampled.token);
      out.logprobs.push_back(sampled.logprob);
    }
    // The same tokens a second time, where this version tells them.
    const Json& ids = Field(answer, "output_ids");
    if (!ids.is_null()) {
      FB_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, TokensOf(ids, "output_ids"));
      if (tokens != out.tokens) {
        return DataLoss("the answer's log-probabilities are not of its output_ids");
      }
    }
    if (request.top_logprobs > 0) {
      const Json& tops = Field(meta, "output_top_logprobs");
      if (!tops.is_array() || tops.size() != out.tokens.size()) {
        return DataLoss("the answer lacks the alternatives of its tokens");
      }
      for (const Json& list : tops) {
        std::vector<TokenLogprob>& top = out.top_logprobs.emplace_back();
        if (!list.is_array()) return DataLoss("the alternatives of a token are no list");
        for (const Json& each : list) {
          if (top.size() == static_cast<size_t>(request.top_logprobs)) break;
          FB_ASSIGN_OR_RETURN(const TokenLogprob entry, Entry(each));
          top.push_back(entry);
        }
      }
    }
    const Json& finish = Field(meta, "finish_reason");
    const std::string type = Text(Field(finish, "type"));
    if (type != "stop" && type != "length") {
      return DataLoss("the answer ended with '" + type + "' instead of 'stop' or 'length'");
    }
    out.stopped = type == "stop";
    out.stop_string = Text(Field(finish, "matched"));
    out.version = Text(Field(meta, "weight_version"));
    return out;
  }

  // Its /health samples a token, which waits while weights are loaded.
  Ask Alive() const override { return {.method = "GET", .target = "/get_weight_version"}; }

  std::vector<ReloadStep> Reload(const std::string& folder, int64_t version) const override {
    const Json body = {
        {"model_path", folder}, {"flush_cache", true}, {"weight_version", std::to_string(version)}};
    return {{.ask = {.target = "/update_weights_from_disk", .body = body.dump()},
             .remedy = "use an SGLang server that has POST /update_weights_from_disk"},
            {.ask = {.method = "GET", .target = "/get_weight_version"},
             .optional = true,
             .version = std::to_string(version)}};
  }

  std::optional<Ask> LoadAdapter(const std::string& name,
                                 const std::string& folder) const override {
    return Ask{.target = "/load_lora_adapter",
               .body = Json({{"lora_name", name}, {"lora_path", folder}}).dump()};
  }
  std::optional<Ask> UnloadAdapter(const std::string& name) const override {
    return Ask{.target = "/unload_lora_adapter", .body = Json({{"lora_name", name}}).dump()};
  }

  std::string generate_remedy() const override { return "SGLang serves POST /generate by itself"; }
  std::string logprobs_remedy() const override {
    return "unset SGLANG_RETURN_ORIGINAL_LOGPROB in its environment";
  }
};

}  // namespace

std::unique_ptr<Wire> MakeSglangWire() { return std::make_unique<SglangWire>(); }

}  // namespace forebay::rollout::external
