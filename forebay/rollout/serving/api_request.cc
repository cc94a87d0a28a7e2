#include "forebay/rollout/serving/api_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/rollout/engine.h"
#include "forebay/rollout/serving/api_error.h"
#include "forebay/rollout/serving/bounded_json.h"
#include "forebay/rollout/serving/chat_messages.h"
#include "forebay/rollout/serving/field_reader.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTokensMax = size_t{4} << 20;  // of a prompt; the engine's context is smaller
constexpr size_t kTemplateVariablesMax = 32;
constexpr size_t kTemplateVariableNameMax = 64;     // bytes
constexpr size_t kTemplateVariableBytesMax = 4096;  // of a text
constexpr double kPenaltyMax = 1e6;
constexpr double kTemperatureMin = 1e-3;

void ReadStops(FieldReader& fields, GenerateRequest* out) {
  const Json* stop = fields.Get("stop");
  if (stop == nullptr) return;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > static_cast<size_t>(kStopStringsMax)) {
    return fields.Fail("stop", fmt::format("'stop' has more than {} strings", kStopStringsMax));
  }
  for (const Json& item : list) {
    const bool good =
        item.is_string() && !item.get_ref<const std::string&>().empty() &&
        item.get_ref<const std::string&>().size() <= static_cast<size_t>(kStopStringBytesMax);
    if (!good) {
      return fields.Fail("stop", fmt::format("'stop' must be strings of 1 to {} bytes, not {}",
                                             kStopStringBytesMax, Excerpt(item)));
    }
    out->stop_strings.push_back(item.get<std::string>());
  }
}

// {"50256": -100}
void ReadLogitBias(FieldReader& fields, GenerateRequest* out) {
  const Json* bias = fields.Get("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() || bias->size() > static_cast<size_t>(kLogitBiasMax)) {
    return fields.Fail("logit_bias",
                       fmt::format("'logit_bias' must be an object of at most {} token ids with "
                                   "numbers",
                                   kLogitBiasMax));
  }
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool good = error == std::errc() && end == key.data() + key.size() && id >= 0 &&
                      value.is_number() && value.get<double>() >= -100 &&
                      value.get<double>() <= 100;
    if (!good) {
      return fields.Fail("logit_bias",
                         fmt::format("'logit_bias' maps token ids to numbers from -100 to 100, not "
                                     "'{}' to {}",
                                     key.substr(0, 40), Excerpt(value)));
    }
    out->logit_bias.emplace_back(id, value.get<float>());
  }
}

// What chat, completion and tokens have in common.
void ReadSampling(FieldReader& fields, ApiRequest* out) {
  GenerateRequest& s = out->sampling;
  s.temperature = fields.Number("temperature", 0, 100).value_or(1.0);
  // Who asks for so little means greedy; logits divided by less overflow.
  if (s.temperature < kTemperatureMin) s.temperature = 0;
  s.top_p = fields.Number("top_p", 0, 1).value_or(1.0);
  if (s.top_p == 0) fields.Fail("top_p", "'top_p' must be more than 0");
  // -1 is how some clients say: all.
  s.top_k =
      static_cast<int32_t>(std::max<int64_t>(0, fields.Int("top_k", -1, INT32_MAX).value_or(0)));
  s.min_p = fields.Number("min_p", 0, 1).value_or(0);
  s.repetition_penalty = fields.Number("repetition_penalty", 0, kPenaltyMax).value_or(1);
  if (s.repetition_penalty == 0) {
    fields.Fail("repetition_penalty", "'repetition_penalty' must be more than 0");
  }
  s.presence_penalty = fields.Number("presence_penalty", -kPenaltyMax, kPenaltyMax).value_or(0);
  s.frequency_penalty = fields.Number("frequency_penalty", -kPenaltyMax, kPenaltyMax).value_or(0);
  ReadLogitBias(fields, &s);
  ReadStops(fields, &s);
  if (const auto seed = fields.Int("seed", INT64_MIN, INT64_MAX)) {
    out->seed = static_cast<uint64_t>(*seed);
  }
  out->stop_token_ids = fields.Ids("stop_token_ids", 1024).value_or(std::vector<int32_t>());
  out->ignore_eos = fields.Bool("ignore_eos").value_or(false);
  out->n = static_cast<int32_t>(fields.Int("n", 1, kChoicesMax).value_or(1));
  out->skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);
  if (const Json* value = fields.Get("min_tokens"); value != nullptr && *value != 0) {
    fields.Fail("min_tokens", "'min_tokens' is not supported");
  }
}

// Of OpenAI's API and of vLLM's and llama.cpp's additions: what would change the answer if it were
// followed. To ignore it would look like following it.
void RefuseUnsupported(FieldReader& fields) {
  constexpr const char* kNoGrammar = "nothing constrains what is sampled to a grammar";
  for (const char* name : {"structured_outputs", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "guided_decoding_backend", "grammar", "json_schema"}) {
    fields.Unsupported(name, kNoGrammar);
  }
  constexpr const char* kOwnTemplate = "the model's own chat template is used as it is";
  for (const char* name : {"chat_template", "documents"}) {
    fields.Unsupported(name, kOwnTemplate);
  }
  fields.Unsupported("prompt_logprobs", "log-probabilities are those of sampled tokens");
  fields.Unsupported("truncate_prompt_tokens", "send the prompt that is meant");
  fields.Unsupported("include_stop_str_in_output", "an answer ends before the stop string");
  fields.Unsupported("use_beam_search", "tokens are sampled");
  fields.Unsupported("bad_words", "use 'logit_bias'");
  fields.Unsupported("logits_processors", "use 'logit_bias'");
}

void ReadMaxTokens(FieldReader& fields, const char* name, ApiRequest* out) {
  if (const auto tokens = fields.Int(name, 1, INT32_MAX)) {
    out->sampling.new_tokens_max = static_cast<int32_t>(*tokens);
  }
}

void ReadStream(FieldReader& fields, ApiRequest* out) {
  out->stream = fields.Bool("stream").value_or(false);
  const Json* options = fields.Get("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return fields.Fail("stream_options", "'stream_options' must be an object");
  }
  FieldReader inner(*options, "stream_options.");
  out->include_usage = inner.Bool("include_usage").value_or(false);
  if (inner.error()) fields.Fail("stream_options", inner.error()->message);
}

// {"enable_thinking": false}: variables of the model's own template.
void ReadTemplateVariables(FieldReader& fields, ApiRequest* out) {
  constexpr const char* kName = "chat_template_kwargs";
  const Json* variables = fields.Get(kName);
  if (variables == nullptr) return;
  if (!variables->is_object() || variables->size() > kTemplateVariablesMax) {
    return fields.Fail(kName, fmt::format("'{}' must be an object of at most {} variables of the "
                                          "chat template, not {}",
                                          kName, kTemplateVariablesMax, Excerpt(*variables)));
  }
  for (const auto& [name, value] : variables->items()) {
    if (name.empty() || name.size() > kTemplateVariableNameMax) {
      return fields.Fail(kName, fmt::format("a name in '{}' must have 1 to {} bytes, not {}", kName,
                                            kTemplateVariableNameMax, name.size()));
    }
    if (tokenizer::ChatTemplate::IsReserved(name) || name == "continue_final_message" ||
        name == "chat_template" || name == "tokenize") {
      return fields.Fail(
          kName, fmt::format("'{}' cannot set '{}': it is for variables of the chat template's own",
                             kName, name));
    }
    const bool text = value.is_string() &&
                      value.get_ref<const std::string&>().size() <= kTemplateVariableBytesMax;
    if (!text && !value.is_boolean() && !value.is_number() && !value.is_null()) {
      return fields.Fail(
          kName,
          fmt::format("'{}' in '{}' must be true, false, null, a number or a text of at most "
                      "{} bytes, not {}",
                      name, kName, kTemplateVariableBytesMax, Excerpt(value)));
    }
  }
  if (!variables->empty()) out->template_variables_json = variables->dump();
}

void ReadChat(const Json& object, FieldReader& fields, ApiRequest* out) {
  out->logprobs = fields.Bool("logprobs").value_or(false);
  if (const auto top = fields.Int("top_logprobs", 0, kTopLogprobsMax)) {
    out->sampling.top_logprobs = static_cast<int32_t>(*top);
    if (*top > 0 && !out->logprobs) {
      fields.Fail("top_logprobs", "'top_logprobs' needs 'logprobs': true");
    }
  }
  ReadMaxTokens(fields, "max_tokens", out);
  ReadMaxTokens(fields, "max_completion_tokens", out);
  if (const Json* format = fields.Get("response_format"); format != nullptr) {
    const bool text = format->is_object() && format->value("type", Json()) == "text";
    if (!text) {
      fields.Fail("response_format",
                  "'response_format' is not supported beyond {\"type\": \"text\"}: nothing "
                  "constrains what is sampled to a grammar");
    }
  }
  fields.Unsupported("functions", "use 'tools'");
  fields.Unsupported("audio", "this model writes text");
  fields.Unsupported("web_search_options", "nothing is searched");
  out->parallel_tool_calls = fields.Bool("parallel_tool_calls").value_or(true);
  out->continue_final_message = fields.Bool("continue_final_message").value_or(false);
  out->add_generation_prompt =
      fields.Bool("add_generation_prompt").value_or(!out->continue_final_message);
  if (out->continue_final_message && out->add_generation_prompt) {
    fields.Fail("continue_final_message",
                "'continue_final_message' and 'add_generation_prompt' exclude each other");
  }
  ReadTemplateVariables(fields, out);
  ReadTools(object, fields, out);
  ReadMessages(fields, out);
}

// "prompt": a text, texts, token ids, or lists of them.
void ReadPrompts(FieldReader& fields, ApiRequest* out) {
  const Json* prompt = fields.Get("prompt");
  const auto is_id = [](const Json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
  };
  const auto is_ids = [&](const Json& list) {
    return list.is_array() && !list.empty() && list.size() <= kTokensMax &&
           std::ranges::all_of(list, is_id);
  };
  if (prompt != nullptr && prompt->is_string()) {
    out->texts.push_back(prompt->get<std::string>());
  } else if (prompt != nullptr && is_ids(*prompt)) {
    out->ids.push_back(prompt->get<std::vector<int32_t>>());
  } else if (prompt != nullptr && prompt->is_array() && !prompt->empty() &&
             prompt->size() <= static_cast<size_t>(kChoicesMax)) {
    for (const Json& item : *prompt) {
      if (item.is_string() && out->ids.empty()) {
        out->texts.push_back(item.get<std::string>());
      } else if (is_ids(item) && out->texts.empty()) {
        out->ids.push_back(item.get<std::vector<int32_t>>());
      } else {
        return fields.Fail("prompt", "'prompt' mixes texts with something else");
      }
    }
  } else {
    return fields.Fail("prompt",
                       fmt::format("'prompt' must be a text, a list of token ids, or a list of at "
                                   "most {} of either",
                                   kChoicesMax));
  }
  if (static_cast<int64_t>(out->texts.size() + out->ids.size()) * out->n > kChoicesMax) {
    fields.Fail("n", fmt::format("'n' times the number of prompts is more than {}", kChoicesMax));
  }
}

void ReadCompletion(FieldReader& fields, ApiRequest* out) {
  if (const auto top = fields.Int("logprobs", 0, kTopLogprobsMax)) {
    out->logprobs = true;
    out->sampling.top_logprobs = static_cast<int32_t>(*top);
  }
  out->sampling.new_tokens_max = 16;  // OpenAI's default
  ReadMaxTokens(fields, "max_tokens", out);
  fields.Unsupported("echo", "send the prompt's own text in front of the answer yourself");
  fields.Unsupported("suffix", "the model only writes forward");
  if (const Json* best = fields.Get("best_of"); best != nullptr && *best != out->n) {
    fields.Fail("best_of", "'best_of' must be the same as 'n'");
  }
  fields.Unsupported("chat_template_kwargs", "a completion's prompt is used as it is");
  ReadPrompts(fields, out);
}

void ReadTokens(FieldReader& outer, FieldReader& fields, ApiRequest* out) {
  out->request_id = outer.String("request_id", 200).value_or("");
  auto ids = outer.Ids("token_ids", kTokensMax);
  if (!ids || ids->empty()) {
    return outer.Fail("token_ids", "'token_ids' must be a list of token ids, at least one");
  }
  out->ids.push_back(std::move(*ids));
  ReadSampling(fields, out);
  if (const auto top = fields.Int("logprobs", 0, kTopLogprobsMax)) {
    out->logprobs = true;
    out->sampling.top_logprobs = static_cast<int32_t>(*top);
  }
  out->sampling.new_tokens_max = 16;  // vLLM's default
  ReadMaxTokens(fields, "max_tokens", out);
  out->return_token_ids = true;
  out->sampling.priority = outer.Int("priority", INT32_MIN, INT32_MAX).value_or(0);
}

}  // namespace

std::optional<ApiError> ParseApiRequest(ApiKind kind, std::string_view body, ApiRequest* out) {
  std::string problem;
  const std::optional<Json> object = ParseBounded(body, &problem);
  if (!object) return ApiError{.message = "the body of the request " + problem};
  if (!object->is_object()) {
    return ApiError{.message = fmt::format("the body of the request must be a JSON object, and {} "
                                           "is {}",
                                           Excerpt(*object), object->type_name())};
  }
  out->kind = kind;
  out->sampling.new_tokens_max = 0;
  FieldReader fields(*object);
  out->model = fields.String("model", 1000).value_or("");
  ReadStream(fields, out);
  if (kind == ApiKind::kTokens) {
    const Json* params = fields.Get("sampling_params");
    const Json none = Json::object();
    if (params != nullptr && !params->is_object()) {
      fields.Fail("sampling_params", "'sampling_params' must be an object");
      params = nullptr;
    }
    FieldReader inner(params == nullptr ? none : *params, "sampling_params.");
    ReadTokens(fields, inner, out);
    return fields.error() ? fields.error() : inner.error();
  }
  ReadSampling(fields, out);
  RefuseUnsupported(fields);
  out->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  if (kind == ApiKind::kChat) {
    ReadChat(*object, fields, out);
  } else {
    ReadCompletion(fields, out);
  }
  return fields.error();
}

}  // namespace forebay::rollout::serving
