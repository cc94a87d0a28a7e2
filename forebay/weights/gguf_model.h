// A GGUF file of a known architecture as a Hugging Face checkpoint: llama, qwen2, qwen3, qwen3moe,
// gemma3.
#pragma once

#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {

// config.json's text. kInvalidArgument for an architecture that is not known and for what it cannot
// say in it (experts in a llama, rope scaling), by key; kDataLoss for sizes that contradict each
// other.
Result<std::string> GgufConfigJson(const GgufFile& file);

// generation_config.json's text: the ids that begin and end a text.
Result<std::string> GgufGenerationConfigJson(const GgufFile& file);

// All tensors in f32 under Hugging Face names and layouts: a llama's attn_q and attn_k come back
// from llama.cpp's row order, gemma3's norms lose the 1 that it adds to them, experts come apart.
// kInvalidArgument for a tensor that has no such name: nothing is skipped silently.
Result<TensorMap> GgufTensors(const GgufFile& file);

}  // namespace forebay::weights
