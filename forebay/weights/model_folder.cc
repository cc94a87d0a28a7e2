// WriteModelFolder: the export side of model_files.h.
#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/safetensors.h"

namespace forebay::weights {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Result<Json> ParseObject(const std::string& text, const char* file) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument(fmt::format("{}: not a JSON object", file));
  return json;
}

// An id of config.json; models with several ends list them, the first being the usual one.
std::optional<int64_t> TokenIdIn(const Json& config, const char* key) {
  if (!config.contains(key)) return std::nullopt;
  const Json& id = config[key].is_array() && !config[key].empty() ? config[key][0] : config[key];
  if (!id.is_number_integer()) return std::nullopt;
  return id.get<int64_t>();
}

std::optional<std::string> TokenText(const nlohmann::json& tokenizer, int64_t id) {
  if (tokenizer.contains("added_tokens") && tokenizer["added_tokens"].is_array()) {
    for (const auto& token : tokenizer["added_tokens"]) {
      if (token.is_object() && token.value("id", nlohmann::json()) == id &&
          token.value("content", nlohmann::json()).is_string()) {
        return token["content"].get<std::string>();
      }
    }
  }
  const auto vocab = nlohmann::json::json_pointer("/model/vocab");
  if (!tokenizer.contains(vocab) || !tokenizer[vocab].is_object()) return std::nullopt;
  for (const auto& [text, value] : tokenizer[vocab].items()) {
    if (value == id) return text;
  }
  return std::nullopt;
}

// What transformers needs beside tokenizer.json.
Result<Json> MakeTokenizerConfig(const ModelFiles& files) {
  FB_ASSIGN_OR_RETURN(const Json config, ParseObject(files.config_json, "config.json"));
  const auto tokenizer =
      nlohmann::json::parse(files.tokenizer_json, nullptr, /*allow_exceptions=*/false);
  if (!tokenizer.is_object()) return InvalidArgument("tokenizer.json: not a JSON object");
  Json result = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  if (config.contains("max_position_embeddings")) {
    result["model_max_length"] = config["max_position_embeddings"];
  }
  constexpr std::array<std::pair<const char*, const char*>, 3> kTokens = {
      {{"bos_token_id", "bos_token"},
       {"eos_token_id", "eos_token"},
       {"pad_token_id", "pad_token"}}};
  for (const auto& [id_key, text_key] : kTokens) {
    const auto id = TokenIdIn(config, id_key);
    const auto text = id ? TokenText(tokenizer, *id) : std::nullopt;
    if (text) result[text_key] = *text;
  }
  return result;
}

Result<std::string> TokenizerConfigText(const ModelFiles& files) {
  Json config;
  if (files.tokenizer_config_json.empty()) {
    FB_ASSIGN_OR_RETURN(config, MakeTokenizerConfig(files));
  } else {
    FB_ASSIGN_OR_RETURN(config, ParseObject(files.tokenizer_config_json, "tokenizer_config.json"));
  }
  if (!files.chat_template.empty()) config["chat_template"] = files.chat_template;
  try {
    return config.dump(2);
  } catch (const Json::exception& e) {
    return InvalidArgument(fmt::format("the chat template is not UTF-8: {}", e.what()));
  }
}

Status WriteFiles(const std::string& folder, const ModelFiles& files) {
  FB_RETURN_IF_ERROR(WriteFileAtomic(folder + "/config.json", files.config_json));
  if (!files.generation_config_json.empty()) {
    FB_RETURN_IF_ERROR(
        WriteFileAtomic(folder + "/generation_config.json", files.generation_config_json));
  }
  if (!files.tokenizer_json.empty()) {
    FB_ASSIGN_OR_RETURN(const std::string tokenizer_config, TokenizerConfigText(files));
    FB_RETURN_IF_ERROR(WriteFileAtomic(folder + "/tokenizer.json", files.tokenizer_json));
    FB_RETURN_IF_ERROR(WriteFileAtomic(folder + "/tokenizer_config.json", tokenizer_config));
  }
  return WriteModelTensors(folder, files.tensors);
}

}  // namespace

Status WriteModelFolder(const std::string& path, const ModelFiles& files) {
  FB_RETURN_IF_ERROR(ParseObject(files.config_json, "config.json").status());
  const fs::path normal =
      fs::path(path + "/.").lexically_normal().parent_path();  // without a slash at its end
  const std::string target = normal.string();
  const std::string parent = normal.has_parent_path() ? normal.parent_path().string() : ".";
  std::error_code error;
  if (fs::exists(normal, error) &&
      !(fs::is_directory(normal, error) && fs::is_empty(normal, error))) {
    return AlreadyExists(
        fmt::format("{} is there already: give a new folder, or remove it", target));
  }

  const std::string aside = target + ".tmp";
  fs::remove_all(aside, error);  // what a killed export left
  FB_RETURN_IF_ERROR(MakeFolders(aside));
  if (const Status written = WriteFiles(aside, files); !written.ok()) {
    fs::remove_all(aside, error);
    return written;
  }
  FB_RETURN_IF_ERROR(SyncFolder(aside));
  fs::rename(aside, normal, error);
  if (error)
    return ErrnoStatus(fmt::format("cannot rename {} to {}", aside, target), error.value());
  return SyncFolder(parent);
}

}  // namespace forebay::weights
