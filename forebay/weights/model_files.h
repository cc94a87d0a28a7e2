// LoadModelFiles: everything that a model folder or a .gguf file holds, in one form.
#pragma once

#include <string>

#include "forebay/base/status.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {

struct ModelFiles {
  std::string config_json;     // as Hugging Face's config.json; made from the metadata for GGUF
  std::string tokenizer_json;  // as Hugging Face's tokenizer.json; made from the metadata for GGUF
  std::string chat_template;   // Jinja; "" if the model has none
  std::string generation_config_json;  // "" if none
  TensorMap tensors;                   // Hugging Face names and layouts; GGUF is dequantised to f32
};

// `path` is a Hugging Face folder (config.json, model.safetensors or a sharded index) or a GGUF
// file of architecture llama. Blocks while reading. Errors: kNotFound (what was looked for),
// kDataLoss (corrupt or truncated: file, offset, tensor), kInvalidArgument (an architecture or
// tensor type that is not supported, by name).
Result<ModelFiles> LoadModelFiles(const std::string& path);

// Writes a Hugging Face folder (config.json, tokenizer.json, tokenizer_config.json with the chat
// template, generation_config.json, model.safetensors) that transformers and vLLM load. Written
// aside and renamed.
Status WriteModelFolder(const std::string& path, const ModelFiles& files);

}  // namespace forebay::weights
