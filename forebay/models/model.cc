#include "forebay/models/model.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/models/llama/config.h"
#include "forebay/models/llama/llama.h"

namespace forebay::models {
namespace {

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
    return name == "llama" ? "LlamaForCausalLM" : name;
  }
  return InvalidArgument(
      "config.json names no architecture: \"architectures\" must be a list such as "
      "[\"LlamaForCausalLM\"]");
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Create(const std::string& config_json) {
  FB_ASSIGN_OR_RETURN(const std::string architecture, Architecture(config_json));
  if (architecture == "LlamaForCausalLM") {
    FB_ASSIGN_OR_RETURN(LlamaConfig config, ParseLlamaConfig(config_json));
    return std::unique_ptr<Model>(std::make_unique<Llama>(std::move(config)));
  }
  return InvalidArgument(
      fmt::format("config.json: the architecture \"{}\" is not supported; supported is "
                  "LlamaForCausalLM (Llama, SmolLM2)",
                  architecture.substr(0, 80)));
}

}  // namespace forebay::models
