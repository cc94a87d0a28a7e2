#include "apps/model_setup.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/mesh_check.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::apps {
namespace {

constexpr const char* kTiny = "tiny:";

// The token ids that end a turn, by the model's own files: generation_config.json first, then
// config.json.
std::vector<int32_t> EndTokens(const weights::ModelFiles& files) {
  for (const std::string* text : {&files.generation_config_json, &files.config_json}) {
    const nlohmann::json config = nlohmann::json::parse(*text, nullptr, false);
    if (!config.is_object() || !config.contains("eos_token_id")) continue;
    const nlohmann::json& eos = config["eos_token_id"];
    if (eos.is_number_integer()) return {eos.get<int32_t>()};
    std::vector<int32_t> out;
    if (eos.is_array()) {
      for (const nlohmann::json& id : eos) {
        if (id.is_number_integer()) out.push_back(id.get<int32_t>());
      }
    }
    if (!out.empty()) return out;
  }
  return {};
}

Result<std::vector<int32_t>> StopTokens(const control::Config& config, const LoadedModel& model) {
  std::vector<int32_t> out;
  for (const std::string& token : config.rollout.stop_tokens) {
    const std::optional<int32_t> id = model.tokenizer->TokenId(token);
    if (!id) {
      return InvalidArgument("rollout.stop_tokens: '" + token +
                             "' is not one token of the model's vocabulary");
    }
    out.push_back(*id);
  }
  if (!out.empty()) return out;
  for (const int32_t id : EndTokens(model.files)) {
    FB_ASSIGN_OR_RETURN(const std::string text,
                        model.tokenizer->Decode(std::vector<int32_t>{id}, false));
    if (model.tokenizer->TokenId(text) == std::optional<int32_t>(id)) out.push_back(id);
  }
  return out;
}

// The text of a token, "" for an id that is none.
Result<std::string> TokenText(const tokenizer::Tokenizer& tokenizer, int32_t id) {
  if (id < 0) return std::string();
  return tokenizer.Decode(std::vector<int32_t>{id}, false);
}

bool IsTiny(const control::Config& config) { return config.model.path.rfind(kTiny, 0) == 0; }

weights::ModelFiles TinyFiles(const control::Config& config) {
  const control::ModelSection& m = config.model;
  return weights::TinyModelFiles({.layers = m.tiny_layers,
                                  .width = m.tiny_width,
                                  .heads = m.tiny_heads,
                                  .kv_heads = m.tiny_kv_heads,
                                  .ff_width = m.tiny_ff,
                                  .context_tokens = config.rollout.context});
}

}  // namespace

Result<std::unique_ptr<models::Model>> ReadModel(const control::Config& config) {
  std::string text;
  if (IsTiny(config)) {
    text = TinyFiles(config).config_json;
  } else {
    FB_ASSIGN_OR_RETURN(text, weights::LoadConfigJson(config.Resolve(config.model.path)));
  }
  FB_ASSIGN_OR_RETURN(std::unique_ptr<models::Model> model, models::Model::Create(text));
  FB_RETURN_IF_ERROR(CheckMesh(config, *model));
  return model;
}

Result<LoadedModel> LoadModel(const control::Config& config) {
  LoadedModel out;
  FB_ASSIGN_OR_RETURN(out.model, ReadModel(config));
  if (IsTiny(config)) {
    out.files = TinyFiles(config);
    FB_ASSIGN_OR_RETURN(
        out.initial, out.model->ToCheckpoint(
                         models::RandomWeights(*out.model, static_cast<uint64_t>(config.run.seed)),
                         models::LayerLayout::kPerLayer));
  } else {
    FB_ASSIGN_OR_RETURN(out.files, weights::LoadModelFiles(config.Resolve(config.model.path)));
    out.initial = std::exchange(out.files.tensors, {});
  }
  FB_ASSIGN_OR_RETURN(out.tokenizer, tokenizer::Tokenizer::FromJson(out.files.tokenizer_json));
  if (!out.files.chat_template.empty()) {
    FB_ASSIGN_OR_RETURN(out.chat, tokenizer::ChatTemplate::Parse(out.files.chat_template));
  }
  FB_ASSIGN_OR_RETURN(out.stop_tokens, StopTokens(config, out));
  FB_ASSIGN_OR_RETURN(out.bos_token, TokenText(*out.tokenizer, out.model->config().bos_token));
  FB_ASSIGN_OR_RETURN(out.eos_token, TokenText(*out.tokenizer, out.model->config().eos_token));
  return out;
}

Status CheckAgent(const control::Config& config, const LoadedModel& model) {
  if (model.chat == nullptr) {
    return InvalidArgument("'" + config.model.path +
                           "' has no chat template: an agent needs an instruction-tuned model");
  }
  if (model.stop_tokens.empty()) {
    return InvalidArgument(
        "the model does not say which token ends a turn (eos_token_id): set rollout.stop_tokens");
  }
  const int64_t context_max = model.model->config().context_max;
  if (config.rollout.context > context_max) {
    return InvalidArgument(
        "rollout.context = " + std::to_string(config.rollout.context) +
        " is beyond what the model was made for: " + std::to_string(context_max) + " tokens");
  }
  return OkStatus();
}

rollout::ServedModel Served(const LoadedModel& model, std::string name, rollout::Engine* engine) {
  return {.name = std::move(name),
          .engine = engine,
          .tokenizer = model.tokenizer.get(),
          .chat = model.chat.get(),
          .stop_tokens = model.stop_tokens,
          .bos_token = model.bos_token,
          .eos_token = model.eos_token};
}

}  // namespace forebay::apps
