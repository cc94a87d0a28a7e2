#include "forebay/weights/model_files.h"

#include <fmt/core.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/gguf_model.h"
#include "forebay/weights/gguf_tokenizer.h"
#include "forebay/weights/mapped_file.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The largest tokenizer.json known has 34 MB.
constexpr size_t kTextBytesMax = size_t{256} << 20;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Result<std::string> ReadIfThere(const std::string& path) {
  if (!Exists(path)) return std::string();
  return ReadFile(path, kTextBytesMax);
}

// The template is a string, or a list of named ones of which "default" is for chats.
Result<std::string> ChatTemplateIn(const std::string& tokenizer_config, const std::string& path) {
  if (tokenizer_config.empty()) return std::string();
  const Json config = Json::parse(tokenizer_config, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return DataLoss(fmt::format("{}: not a JSON object", path));
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& named : *found) {
      if (named.is_object() && named.value("name", Json()) == "default" &&
          named.value("template", Json()).is_string()) {
        return named["template"].get<std::string>();
      }
    }
  }
  return std::string();
}

Result<TensorMap> ReadFolderTensors(const std::string& folder) {
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  if (Exists(single)) return ReadSafetensors(single);
  if (Exists(index)) return ReadShardedSafetensors(index);
  return NotFound(fmt::format(
      "{} has neither model.safetensors nor model.safetensors.index.json (other weight files, as "
      "pytorch_model.bin, are not read)",
      folder));
}

Result<std::string> FolderConfigJson(const std::string& folder) {
  const std::string config = folder + "/config.json";
  if (!Exists(config)) {
    return NotFound(
        fmt::format("{} has no config.json: it is not a Hugging Face model folder", folder));
  }
  return ReadFile(config, kTextBytesMax);
}

Result<ModelFiles> LoadFolder(const std::string& folder) {
  ModelFiles files;
  FB_ASSIGN_OR_RETURN(files.config_json, FolderConfigJson(folder));
  FB_ASSIGN_OR_RETURN(files.tokenizer_json, ReadIfThere(folder + "/tokenizer.json"));
  FB_ASSIGN_OR_RETURN(files.generation_config_json,
                      ReadIfThere(folder + "/generation_config.json"));
  const std::string tokenizer_config = folder + "/tokenizer_config.json";
  FB_ASSIGN_OR_RETURN(files.tokenizer_config_json, ReadIfThere(tokenizer_config));
  FB_ASSIGN_OR_RETURN(files.chat_template, ReadIfThere(folder + "/chat_template.jinja"));
  if (files.chat_template.empty()) {
    FB_ASSIGN_OR_RETURN(files.chat_template,
                        ChatTemplateIn(files.tokenizer_config_json, tokenizer_config));
  }
  FB_ASSIGN_OR_RETURN(files.tensors, ReadFolderTensors(folder));
  return files;
}

Result<ModelFiles> FromGguf(const GgufFile& gguf) {
  ModelFiles files;
  FB_ASSIGN_OR_RETURN(files.config_json, GgufConfigJson(gguf));
  FB_ASSIGN_OR_RETURN(files.generation_config_json, GgufGenerationConfigJson(gguf));
  FB_ASSIGN_OR_RETURN(files.tokenizer_json, GgufTokenizerJson(gguf));
  FB_ASSIGN_OR_RETURN(files.chat_template, GgufChatTemplate(gguf));
  FB_ASSIGN_OR_RETURN(files.tensors, GgufTensors(gguf));
  return files;
}

// What `read` makes of the file.
template <typename Read>
auto FromGgufAt(const std::string& path, const Read& read)
    -> decltype(read(std::declval<const GgufFile&>())) {
  FB_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  Result<GgufFile> gguf = GgufFile::Parse(file->bytes());
  if (!gguf.ok()) return gguf.status().WithContext(path);
  auto made = read(*gguf);
  // A key that every model has: its absence is the file's fault, not a wrong path.
  if (made.status().code() == StatusCode::kNotFound) {
    return DataLoss(fmt::format("{}: {}", path, made.status().message()));
  }
  if (!made.ok()) return made.status().WithContext(path);
  return made;
}

// Whether it is a folder. Errors say what a model is.
Result<bool> IsFolder(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return NotFound(fmt::format(
        "there is no model at {}: a Hugging Face folder or a .gguf file is expected", path));
  }
  if (!fs::is_directory(status) && path.ends_with(".safetensors")) {
    return InvalidArgument(
        fmt::format("{} holds weights alone: give the folder that it lies in", path));
  }
  return fs::is_directory(status);
}

}  // namespace

Result<ModelFiles> LoadModelFiles(const std::string& path) {
  FB_ASSIGN_OR_RETURN(const bool folder, IsFolder(path));
  return folder ? LoadFolder(path) : FromGgufAt(path, FromGguf);
}

Result<std::string> LoadConfigJson(const std::string& path) {
  FB_ASSIGN_OR_RETURN(const bool folder, IsFolder(path));
  return folder ? FolderConfigJson(path) : FromGgufAt(path, GgufConfigJson);
}

}  // namespace forebay::weights
