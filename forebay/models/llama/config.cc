#include "forebay/models/llama/config.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"

namespace forebay::models {
namespace {

using nlohmann::json;

// What a value looks like in an error: short, whatever the file holds.
std::string Show(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

// A present, non-null value, or nullptr.
const json* Find(const json& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// The largest size that any dimension may have: products of two stay far inside int64.
constexpr int64_t kSizeMax = int64_t{1} << 28;

Status ReadSize(const json& object, std::string_view key, int64_t* out, bool required) {
  const json* value = Find(object, key);
  if (value == nullptr) {
    if (!required) return OkStatus();
    return InvalidArgument(fmt::format("config.json has no \"{}\"; a Llama model needs it", key));
  }
  if (!value->is_number_integer() || value->is_number_float() || *value < 1 || *value > kSizeMax) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be an integer from 1 to {}", key,
                    Show(*value), kSizeMax));
  }
  *out = value->get<int64_t>();
  return OkStatus();
}

Status ReadPositive(const json& object, std::string_view key, double* out, bool required) {
  const json* value = Find(object, key);
  if (value == nullptr) {
    if (!required) return OkStatus();
    return InvalidArgument(
        fmt::format("config.json has no \"{}\", which its rope_scaling needs", key));
  }
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!(number > 0) || !std::isfinite(number)) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be a positive number", key, Show(*value)));
  }
  *out = number;
  return OkStatus();
}

Status ReadBool(const json& object, std::string_view key, bool* out) {
  const json* value = Find(object, key);
  if (value == nullptr) return OkStatus();
  if (!value->is_boolean()) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be true or false", key, Show(*value)));
  }
  *out = value->get<bool>();
  return OkStatus();
}

// A token id, or the first of a list of them ("eos_token_id": [128001, 128009]).
Status ReadToken(const json& object, std::string_view key, int64_t vocab_size, int32_t* out) {
  const json* value = Find(object, key);
  if (value != nullptr && value->is_array()) value = value->empty() ? nullptr : &value->front();
  if (value == nullptr) return OkStatus();
  if (!value->is_number_integer() || *value < 0 || *value >= vocab_size) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be a token id below vocab_size {}", key,
                    Show(*value), vocab_size));
  }
  *out = value->get<int32_t>();
  return OkStatus();
}

// Options whose other settings change the mathematics: refused by name rather than computed
// wrongly.
Status CheckUnsupported(const json& object) {
  for (const std::string_view key : {"attention_bias", "mlp_bias"}) {
    bool on = false;
    FB_RETURN_IF_ERROR(ReadBool(object, key, &on));
    if (on) {
      return InvalidArgument(fmt::format(
          "config.json: \"{}\" is true; Llama models with biases are not supported, only false is",
          key));
    }
  }
  if (const json* act = Find(object, "hidden_act"); act != nullptr && *act != "silu") {
    return InvalidArgument(
        fmt::format("config.json: \"hidden_act\" is {}; only \"silu\" is supported", Show(*act)));
  }
  if (const json* part = Find(object, "partial_rotary_factor"); part != nullptr && *part != 1) {
    return InvalidArgument(fmt::format(
        "config.json: \"partial_rotary_factor\" is {}; only 1 is supported", Show(*part)));
  }
  if (const json* quantization = Find(object, "quantization_config"); quantization != nullptr) {
    return InvalidArgument(
        fmt::format("config.json: \"quantization_config\" is {}; quantised checkpoints are not "
                    "supported: use the "
                    "model's unquantised weights",
                    Show(*quantization)));
  }
  return OkStatus();
}

// `rope` is "rope_scaling", or "rope_parameters" as newer versions of transformers write it.
Status ReadRope(const json& rope, std::string_view key, LlamaConfig* config) {
  if (!rope.is_object()) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be null or an object", key, Show(rope)));
  }
  FB_RETURN_IF_ERROR(ReadPositive(rope, "rope_theta", &config->base.rope_theta, false));
  const json* type = Find(rope, "rope_type");
  if (type == nullptr) type = Find(rope, "type");
  if (type == nullptr || *type == "default") return OkStatus();
  if (*type != "llama3") {
    return InvalidArgument(fmt::format(
        "config.json: \"{}\" has the type {}; supported are \"llama3\" and \"default\" (or null)",
        key, Show(*type)));
  }
  Llama3RopeScaling scaling;
  FB_RETURN_IF_ERROR(ReadPositive(rope, "factor", &scaling.factor, true));
  FB_RETURN_IF_ERROR(ReadPositive(rope, "low_freq_factor", &scaling.low_freq_factor, true));
  FB_RETURN_IF_ERROR(ReadPositive(rope, "high_freq_factor", &scaling.high_freq_factor, true));
  FB_RETURN_IF_ERROR(
      ReadPositive(rope, "original_max_position_embeddings", &scaling.original_context, true));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" has high_freq_factor {} and low_freq_factor {}; the first "
                    "must be larger",
                    key, scaling.high_freq_factor, scaling.low_freq_factor));
  }
  config->rope_scaling = scaling;
  return OkStatus();
}

Status ReadHeads(const json& object, ModelConfig* base) {
  base->kv_heads = base->query_heads;
  FB_RETURN_IF_ERROR(ReadSize(object, "num_key_value_heads", &base->kv_heads, false));
  if (base->query_heads % base->kv_heads != 0) {
    return InvalidArgument(fmt::format(
        "config.json: \"num_attention_heads\" {} is not a multiple of \"num_key_value_heads\" {}",
        base->query_heads, base->kv_heads));
  }
  if (Find(object, "head_dim") == nullptr && base->width % base->query_heads != 0) {
    return InvalidArgument(
        fmt::format("config.json: \"hidden_size\" {} is not a multiple of \"num_attention_heads\" "
                    "{}, and there is no "
                    "\"head_dim\"",
                    base->width, base->query_heads));
  }
  base->head_dim = base->width / base->query_heads;
  FB_RETURN_IF_ERROR(ReadSize(object, "head_dim", &base->head_dim, false));
  if (base->head_dim % 2 != 0 || base->head_dim == 0) {
    return InvalidArgument(fmt::format(
        "config.json: the head size is {}; rotary embeddings need an even one", base->head_dim));
  }
  if (base->query_heads > kSizeMax / base->head_dim) {
    return InvalidArgument(fmt::format(
        "config.json: {} attention heads of {} are too large; their product may be {} at most",
        base->query_heads, base->head_dim, kSizeMax));
  }
  return OkStatus();
}

}  // namespace

Result<LlamaConfig> ParseLlamaConfig(const std::string& config_json) {
  const json object = json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return InvalidArgument("config.json is not a JSON object; it must be a model's configuration");
  }
  LlamaConfig config;
  ModelConfig& base = config.base;
  base.architecture = "LlamaForCausalLM";
  FB_RETURN_IF_ERROR(CheckUnsupported(object));
  FB_RETURN_IF_ERROR(ReadSize(object, "vocab_size", &base.vocab_size, true));
  FB_RETURN_IF_ERROR(ReadSize(object, "hidden_size", &base.width, true));
  FB_RETURN_IF_ERROR(ReadSize(object, "num_hidden_layers", &base.layers, true));
  FB_RETURN_IF_ERROR(ReadSize(object, "num_attention_heads", &base.query_heads, true));
  FB_RETURN_IF_ERROR(ReadSize(object, "intermediate_size", &base.ff_width, true));
  FB_RETURN_IF_ERROR(ReadHeads(object, &base));
  base.context_max =
      2048;  // what transformers assumes where the file is silent, as for the next three
  FB_RETURN_IF_ERROR(ReadSize(object, "max_position_embeddings", &base.context_max, false));
  base.rms_eps = 1e-6;
  FB_RETURN_IF_ERROR(ReadPositive(object, "rms_norm_eps", &base.rms_eps, false));
  base.rope_theta = 1e4;
  FB_RETURN_IF_ERROR(ReadPositive(object, "rope_theta", &base.rope_theta, false));
  base.tied_embedding = false;
  FB_RETURN_IF_ERROR(ReadBool(object, "tie_word_embeddings", &base.tied_embedding));
  FB_RETURN_IF_ERROR(ReadToken(object, "bos_token_id", base.vocab_size, &base.bos_token));
  FB_RETURN_IF_ERROR(ReadToken(object, "eos_token_id", base.vocab_size, &base.eos_token));
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    if (const json* rope = Find(object, key); rope != nullptr) {
      FB_RETURN_IF_ERROR(ReadRope(*rope, key, &config));
    }
  }
  constexpr int64_t kLayersMax = 4096;  // a program has a node for each operation of each layer
  if (base.layers > kLayersMax) {
    return InvalidArgument(
        fmt::format("config.json: \"num_hidden_layers\" is {}; at most {} are supported",
                    base.layers, kLayersMax));
  }
  return config;
}

std::vector<float> RopeFrequencies(const LlamaConfig& config) {
  const int64_t half = config.base.head_dim / 2;
  std::vector<float> frequencies;
  frequencies.reserve(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    double frequency =
        std::pow(config.base.rope_theta, -static_cast<double>(i) / static_cast<double>(half));
    if (config.rope_scaling) {
      const Llama3RopeScaling& s = *config.rope_scaling;
      // How often this dimension turns within the original context: fast ones stay, slow ones are
      // stretched by `factor`, those between are interpolated.
      const double turns = s.original_context * frequency / (2 * std::numbers::pi);
      if (turns < s.low_freq_factor) {
        frequency /= s.factor;
      } else if (turns <= s.high_freq_factor) {
        const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
        frequency = (1 - kept) * frequency / s.factor + kept * frequency;
      }
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

}  // namespace forebay::models
