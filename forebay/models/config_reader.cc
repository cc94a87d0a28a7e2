#include "forebay/models/config_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/rope.h"

namespace forebay::models {
namespace {

using nlohmann::json;

// The largest size that any dimension may have: products of two stay far inside int64.
constexpr int64_t kSizeMax = int64_t{1} << 28;

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

Status ReadLlama3(const json& rope, std::string_view key, RopeScaling* scaling) {
  FB_RETURN_IF_ERROR(ReadPositive(rope, "low_freq_factor", &scaling->low_freq_factor, true));
  FB_RETURN_IF_ERROR(ReadPositive(rope, "high_freq_factor", &scaling->high_freq_factor, true));
  FB_RETURN_IF_ERROR(
      ReadPositive(rope, "original_max_position_embeddings", &scaling->original_context, true));
  if (scaling->high_freq_factor > scaling->low_freq_factor) return OkStatus();
  return InvalidArgument(
      fmt::format("config.json: \"{}\" has high_freq_factor {} and low_freq_factor {}; the first "
                  "must be larger",
                  key, scaling->high_freq_factor, scaling->low_freq_factor));
}

// A number above 0 if it is there.
Status ReadOptional(const json& rope, std::string_view key, std::optional<double>* out) {
  if (Find(rope, key) == nullptr) return OkStatus();
  double number = 0;
  FB_RETURN_IF_ERROR(ReadPositive(rope, key, &number, true));
  *out = number;
  return OkStatus();
}

Status ReadYarn(const json& rope, std::string_view key, int64_t context, RopeScaling* scaling) {
  scaling->original_context = static_cast<double>(context);
  FB_RETURN_IF_ERROR(
      ReadPositive(rope, "original_max_position_embeddings", &scaling->original_context, false));
  FB_RETURN_IF_ERROR(ReadPositive(rope, "beta_fast", &scaling->beta_fast, false));
  FB_RETURN_IF_ERROR(ReadPositive(rope, "beta_slow", &scaling->beta_slow, false));
  FB_RETURN_IF_ERROR(ReadOptional(rope, "attention_factor", &scaling->attention_factor));
  FB_RETURN_IF_ERROR(ReadOptional(rope, "mscale", &scaling->mscale));
  FB_RETURN_IF_ERROR(ReadOptional(rope, "mscale_all_dim", &scaling->mscale_all_dim));
  if (const json* truncate = Find(rope, "truncate"); truncate != nullptr) {
    if (!truncate->is_boolean()) {
      return InvalidArgument(
          fmt::format("config.json: \"truncate\" of \"{}\" is {}; it must be true or false", key,
                      Show(*truncate)));
    }
    scaling->truncate = truncate->get<bool>();
  }
  if (scaling->beta_fast > scaling->beta_slow) return OkStatus();
  return InvalidArgument(
      fmt::format("config.json: \"{}\" has beta_fast {} and beta_slow {}; the first must be larger",
                  key, scaling->beta_fast, scaling->beta_slow));
}

// `context`: max_position_embeddings.
Result<std::optional<RopeScaling>> ReadRope(const json& rope, std::string_view key, int64_t context,
                                            double* theta) {
  if (!rope.is_object()) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be null or an object", key, Show(rope)));
  }
  FB_RETURN_IF_ERROR(ReadPositive(rope, "rope_theta", theta, false));
  const json* type = Find(rope, "rope_type");
  if (type == nullptr) type = Find(rope, "type");
  if (type == nullptr || *type == "default") return std::optional<RopeScaling>();
  RopeScaling scaling;
  if (*type == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
  } else if (*type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (*type == "yarn") {
    scaling.kind = RopeScaling::Kind::kYarn;
  } else if (*type != "dynamic") {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" has the type {}; supported are \"llama3\", \"yarn\", "
                    "\"linear\", \"dynamic\" and \"default\" (or null)",
                    key, Show(*type)));
  }
  FB_RETURN_IF_ERROR(ReadPositive(rope, "factor", &scaling.factor, true));
  // Dynamic rotations stretch only beyond max_position_embeddings, where no context goes.
  if (*type == "dynamic") return std::optional<RopeScaling>();
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    FB_RETURN_IF_ERROR(ReadLlama3(rope, key, &scaling));
  }
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    FB_RETURN_IF_ERROR(ReadYarn(rope, key, context, &scaling));
  }
  return std::optional(scaling);
}

}  // namespace

Result<ConfigReader> ConfigReader::Parse(const std::string& config_json, std::string_view family) {
  auto object =
      std::make_shared<json>(json::parse(config_json, nullptr, /*allow_exceptions=*/false));
  if (!object->is_object()) {
    return InvalidArgument("config.json is not a JSON object; it must be a model's configuration");
  }
  return ConfigReader(std::move(object), family);
}

bool ConfigReader::Has(std::string_view key) const { return Find(*object_, key) != nullptr; }

bool ConfigReader::EmptyList(std::string_view key) const {
  const json* value = Find(*object_, key);
  return value == nullptr || (value->is_array() && value->empty());
}

Status ConfigReader::Size(std::string_view key, int64_t* out, bool required) const {
  const json* value = Find(*object_, key);
  if (value == nullptr) {
    if (!required) return OkStatus();
    return InvalidArgument(
        fmt::format("config.json has no \"{}\"; a {} model needs it", key, family_));
  }
  if (!value->is_number_integer() || value->is_number_float() || *value < 1 || *value > kSizeMax) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be an integer from 1 to {}", key,
                    Show(*value), kSizeMax));
  }
  *out = value->get<int64_t>();
  return OkStatus();
}

Status ConfigReader::Positive(std::string_view key, double* out) const {
  return ReadPositive(*object_, key, out, false);
}

Status ConfigReader::Bool(std::string_view key, bool* out) const {
  const json* value = Find(*object_, key);
  if (value == nullptr) return OkStatus();
  if (!value->is_boolean()) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be true or false", key, Show(*value)));
  }
  *out = value->get<bool>();
  return OkStatus();
}

// A token id, or the first of a list of them ("eos_token_id": [128001, 128009]).
Status ConfigReader::Token(std::string_view key, int64_t vocab_size, int32_t* out) const {
  const json* value = Find(*object_, key);
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

Status ConfigReader::Strings(std::string_view key, std::vector<std::string>* out) const {
  const json* value = Find(*object_, key);
  if (value == nullptr) return OkStatus();
  const bool valid = value->is_array() &&
                     std::ranges::all_of(*value, [](const json& item) { return item.is_string(); });
  if (!valid) {
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; it must be a list of strings", key, Show(*value)));
  }
  *out = value->get<std::vector<std::string>>();
  return OkStatus();
}

Status ConfigReader::ExpectString(std::string_view key,
                                  std::initializer_list<std::string_view> known) const {
  const json* value = Find(*object_, key);
  if (value == nullptr ||
      std::ranges::any_of(known, [&](std::string_view name) { return *value == name; })) {
    return OkStatus();
  }
  return InvalidArgument(fmt::format("config.json: \"{}\" is {}; supported for {} models: \"{}\"",
                                     key, Show(*value), family_, fmt::join(known, "\", \"")));
}

Status ConfigReader::ExpectFalse(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    bool on = false;
    FB_RETURN_IF_ERROR(Bool(key, &on));
    if (!on) continue;
    return InvalidArgument(fmt::format(
        "config.json: \"{}\" is true; for {} models only false is supported", key, family_));
  }
  return OkStatus();
}

Status ConfigReader::ExpectAbsent(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    const json* value = Find(*object_, key);
    if (value == nullptr) continue;
    return InvalidArgument(
        fmt::format("config.json: \"{}\" is {}; {} models are supported without it", key,
                    Show(*value), family_));
  }
  return OkStatus();
}

Status ConfigReader::Heads(ModelConfig* config) const {
  config->kv_heads = config->query_heads;
  FB_RETURN_IF_ERROR(Size("num_key_value_heads", &config->kv_heads));
  if (config->query_heads % config->kv_heads != 0) {
    return InvalidArgument(fmt::format(
        "config.json: \"num_attention_heads\" {} is not a multiple of \"num_key_value_heads\" {}",
        config->query_heads, config->kv_heads));
  }
  if (!Has("head_dim") && config->width % config->query_heads != 0) {
    return InvalidArgument(
        fmt::format("config.json: \"hidden_size\" {} is not a multiple of \"num_attention_heads\" "
                    "{}, and there is no \"head_dim\"",
                    config->width, config->query_heads));
  }
  config->head_dim = config->width / config->query_heads;
  FB_RETURN_IF_ERROR(Size("head_dim", &config->head_dim));
  if (config->head_dim % 2 != 0 || config->head_dim == 0) {
    return InvalidArgument(fmt::format(
        "config.json: the head size is {}; rotary embeddings need an even one", config->head_dim));
  }
  if (config->query_heads > kSizeMax / config->head_dim) {
    return InvalidArgument(fmt::format(
        "config.json: {} attention heads of {} are too large; their product may be {} at most",
        config->query_heads, config->head_dim, kSizeMax));
  }
  return OkStatus();
}

Result<ModelConfig> ConfigReader::Base(std::string_view architecture, bool tied) const {
  if (const json* part = Find(*object_, "partial_rotary_factor"); part != nullptr && *part != 1) {
    return InvalidArgument(fmt::format(
        "config.json: \"partial_rotary_factor\" is {}; only 1 is supported", Show(*part)));
  }
  if (const json* quantization = Find(*object_, "quantization_config"); quantization != nullptr) {
    return InvalidArgument(
        fmt::format("config.json: \"quantization_config\" is {}; quantised checkpoints are not "
                    "supported: use the model's unquantised weights",
                    Show(*quantization)));
  }
  ModelConfig config;
  config.architecture = architecture;
  FB_RETURN_IF_ERROR(Size("vocab_size", &config.vocab_size, true));
  FB_RETURN_IF_ERROR(Size("hidden_size", &config.width, true));
  FB_RETURN_IF_ERROR(Size("num_hidden_layers", &config.layers, true));
  FB_RETURN_IF_ERROR(Size("num_attention_heads", &config.query_heads, true));
  FB_RETURN_IF_ERROR(Size("intermediate_size", &config.ff_width, true));
  FB_RETURN_IF_ERROR(Heads(&config));
  // What transformers assumes where the file is silent, as for the next two.
  config.context_max = 2048;
  FB_RETURN_IF_ERROR(Size("max_position_embeddings", &config.context_max));
  config.rms_eps = 1e-6;
  FB_RETURN_IF_ERROR(Positive("rms_norm_eps", &config.rms_eps));
  config.rope_theta = 1e4;
  FB_RETURN_IF_ERROR(Positive("rope_theta", &config.rope_theta));
  config.tied_embedding = tied;
  FB_RETURN_IF_ERROR(Bool("tie_word_embeddings", &config.tied_embedding));
  FB_RETURN_IF_ERROR(Token("bos_token_id", config.vocab_size, &config.bos_token));
  FB_RETURN_IF_ERROR(Token("eos_token_id", config.vocab_size, &config.eos_token));
  constexpr int64_t kLayersMax = 4096;  // a program has a node for each operation of each layer
  if (config.layers > kLayersMax) {
    return InvalidArgument(
        fmt::format("config.json: \"num_hidden_layers\" is {}; at most {} are supported",
                    config.layers, kLayersMax));
  }
  return config;
}

Result<std::optional<RopeScaling>> ConfigReader::Rope(ModelConfig* config,
                                                      std::string_view part) const {
  std::optional<RopeScaling> scaling;
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const json* rope = Find(*object_, key);
    if (rope == nullptr) continue;
    if (!part.empty() && rope->is_object()) {
      if (const json* own = Find(*rope, part); own != nullptr) rope = own;
    }
    FB_ASSIGN_OR_RETURN(const std::optional<RopeScaling> found,
                        ReadRope(*rope, key, config->context_max, &config->rope_theta));
    if (found) scaling = found;
  }
  if (scaling && scaling->kind == RopeScaling::Kind::kYarn) {
    // Files differ in whether max_position_embeddings already is the stretched context.
    const double reached =
        std::min(scaling->original_context * scaling->factor, static_cast<double>(kSizeMax));
    config->context_max = std::max(config->context_max, static_cast<int64_t>(reached));
  }
  return scaling;
}

Result<std::optional<RopeScaling>> ConfigReader::LocalRope(std::string_view part,
                                                           const ModelConfig& config,
                                                           double* theta) const {
  const json* rope = Find(*object_, "rope_parameters");
  if (rope == nullptr || !rope->is_object()) return std::optional<RopeScaling>();
  const json* own = Find(*rope, part);
  if (own == nullptr) return std::optional<RopeScaling>();
  return ReadRope(*own, "rope_parameters", config.context_max, theta);
}

Result<std::vector<bool>> ConfigReader::SlidingLayers(int64_t layers) const {
  std::vector<std::string> types;
  FB_RETURN_IF_ERROR(Strings("layer_types", &types));
  std::vector<bool> sliding;
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return InvalidArgument(fmt::format(
          "config.json: \"layer_types\" has \"{}\"; supported are \"full_attention\" and "
          "\"sliding_attention\"",
          type.substr(0, 60)));
    }
    sliding.push_back(type == "sliding_attention");
  }
  if (!sliding.empty() && static_cast<int64_t>(sliding.size()) != layers) {
    return InvalidArgument(
        fmt::format("config.json: \"layer_types\" has {} entries for \"num_hidden_layers\" {}",
                    sliding.size(), layers));
  }
  return sliding;
}

}  // namespace forebay::models
