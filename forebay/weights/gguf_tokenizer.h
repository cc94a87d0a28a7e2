// The tokenizer in a GGUF file's metadata as the text of a tokenizer.json.
#pragma once

#include <string>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"

namespace forebay::weights {

// "" if the file has no tokenizer. Read are byte-level BPE (tokenizer.ggml.model "gpt2") and
// SentencePiece's BPE ("llama": Llama 2, Mistral, Gemma). kInvalidArgument for another kind or an
// unknown pre-tokenizer (tokenizer.ggml.pre), by name; kDataLoss for lists that contradict each
// other.
Result<std::string> GgufTokenizerJson(const GgufFile& file);

// The Jinja chat template, "" if the file has none.
Result<std::string> GgufChatTemplate(const GgufFile& file);

}  // namespace forebay::weights
