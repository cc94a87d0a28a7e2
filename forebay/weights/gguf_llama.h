// A GGUF file of architecture llama as a Hugging Face checkpoint of LlamaForCausalLM.
#pragma once

#include <string>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {

// config.json's text. kInvalidArgument for what the architecture cannot say in it (experts, rope
// scaling), by key; kDataLoss for sizes that contradict each other.
Result<std::string> LlamaConfigJson(const GgufFile& file);

// generation_config.json's text: the ids that begin and end a text.
Result<std::string> LlamaGenerationConfigJson(const GgufFile& file);

// All tensors in f32 under Hugging Face names and layouts: attn_q and attn_k come back from
// llama.cpp's row order. kInvalidArgument for a tensor that has no such name: nothing is skipped
// silently.
Result<TensorMap> LlamaTensors(const GgufFile& file);

}  // namespace forebay::weights
