#include "forebay/models/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/gemma3/config.h"
#include "forebay/models/gemma3/gemma3.h"
#include "forebay/models/llama/config.h"
#include "forebay/models/llama/llama.h"
#include "forebay/models/qwen2/config.h"
#include "forebay/models/qwen2/qwen2.h"
#include "forebay/models/qwen3/config.h"
#include "forebay/models/qwen3/qwen3.h"
#include "forebay/models/qwen3_moe/config.h"
#include "forebay/models/qwen3_moe/qwen3_moe.h"

namespace forebay::models {
namespace {

template <typename Family, typename Config>
Result<std::unique_ptr<Model>> Make(Result<Config> config) {
  FB_RETURN_IF_ERROR(config.status());
  return std::unique_ptr<Model>(std::make_unique<Family>(*config));
}

struct Family {
  std::string_view architecture, model_type;
  Result<std::unique_ptr<Model>> (*create)(const std::string& config_json);
};

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama",
     [](const std::string& json) { return Make<Llama>(ParseLlamaConfig(json)); }},
    {"Qwen2ForCausalLM", "qwen2",
     [](const std::string& json) { return Make<Qwen2>(ParseQwen2Config(json)); }},
    {"Qwen3ForCausalLM", "qwen3",
     [](const std::string& json) { return Make<Qwen3>(ParseQwen3Config(json)); }},
    {"Qwen3MoeForCausalLM", "qwen3_moe",
     [](const std::string& json) { return Make<Qwen3Moe>(ParseQwen3MoeConfig(json)); }},
    {"Gemma3ForCausalLM", "gemma3_text",
     [](const std::string& json) { return Make<Gemma3>(ParseGemma3Config(json)); }},
};

// The entry of "architectures", or "" where the file has none; its "model_type" may still say.
Result<std::string> Architecture(const std::string& config_json) {
  const auto object = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return InvalidArgument("config.json is not a JSON object; it must be a model's configuration");
  }
  const auto names = object.find("architectures");
  if (names != object.end() && names->is_array() && !names->empty() && names->front().is_string()) {
    return names->front().get<std::string>();
  }
  const auto type = object.find("model_type");
  if (type != object.end() && type->is_string()) {
    const auto name = type->get<std::string>();
    for (const Family& family : kFamilies) {
      if (name == family.model_type) return std::string(family.architecture);
    }
    return name;
  }
  return InvalidArgument(
      "config.json names no architecture: \"architectures\" must be a list such as "
      "[\"LlamaForCausalLM\"]");
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Create(const std::string& config_json) {
  FB_ASSIGN_OR_RETURN(const std::string architecture, Architecture(config_json));
  std::vector<std::string_view> supported;
  for (const Family& family : kFamilies) {
    if (architecture == family.architecture) return family.create(config_json);
    supported.push_back(family.architecture);
  }
  return InvalidArgument(
      fmt::format("config.json: the architecture \"{}\" is not supported; supported are {}",
                  architecture.substr(0, 80), fmt::join(supported, ", ")));
}

}  // namespace forebay::models
