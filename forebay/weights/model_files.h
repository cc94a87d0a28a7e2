// LoadModelFiles: everything that a model folder or a .gguf file holds, in one form.
#pragma once

#include <string>

#include "forebay/base/status.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {

struct ModelFiles {
  std::string config_json;     // as Hugging Face's config.json; made from the metadata for GGUF
  std::string tokenizer_json;  // as Hugging Face's tokenizer.json; made from the metadata for GGUF;
                               // "" if none
  std::string chat_template;   // Jinja; "" if the model has none
  std::string generation_config_json;  // "" if none
  // As in the folder; "" for GGUF: WriteModelFolder then makes one.
  std::string tokenizer_config_json;
  TensorMap tensors;  // Hugging Face names and layouts; GGUF is dequantised to f32
};

// `path` is a Hugging Face folder (config.json, model.safetensors or a sharded index) or a GGUF
// file (llama, qwen2, qwen3, qwen3moe, gemma3). Blocks while reading. Errors: kNotFound (what was
// looked for), kDataLoss (corrupt or truncated: file, offset, tensor), kInvalidArgument (an
// architecture or tensor type that is not supported, by name).
Result<ModelFiles> LoadModelFiles(const std::string& path);

// The config_json of the same, without reading tensors.
Result<std::string> LoadConfigJson(const std::string& path);

// Writes a Hugging Face folder (config.json, tokenizer.json, tokenizer_config.json with the chat
// template, generation_config.json, model.safetensors or shards of 5 GB) that transformers and vLLM
// load. Written aside (`path`.tmp), synced and renamed: the folder is there in full or not at all.
// Blocks until it is durable. Errors: kAlreadyExists when `path` is a file or a folder with
// something in it; kInvalidArgument for JSON texts that are not; kResourceExhausted (disk full).
Status WriteModelFolder(const std::string& path, const ModelFiles& files);

}  // namespace forebay::weights
