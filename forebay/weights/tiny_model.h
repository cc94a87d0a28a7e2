// A model without weights: the configuration, tokenizer and chat template of a small Llama, for
// tests and for training from scratch.
#pragma once

#include <cstdint>

#include "forebay/weights/model_files.h"

namespace forebay::weights {

struct TinyModelOptions {
  int64_t layers = 2;
  int64_t width = 64;
  int64_t heads = 4;     // divides width
  int64_t kv_heads = 2;  // divides heads
  int64_t ff_width = 160;
  int64_t context_tokens = 1024;
};

// The vocabulary of every tiny model: one token a byte, whose id is the byte, and three special
// tokens. So any text has exactly as many tokens as UTF-8 bytes, and no text is out of vocabulary.
inline constexpr int32_t kTinyEndOfText = 256;  // <|endoftext|>, pads
inline constexpr int32_t kTinyStart = 257;      // <|im_start|>
inline constexpr int32_t kTinyEnd = 258;        // <|im_end|>, ends a turn: the eos token
inline constexpr int64_t kTinyVocabSize = 259;

// config.json of a LlamaForCausalLM with a tied embedding, tokenizer.json, a ChatML template and no
// tensors (models::RandomWeights makes them). The options are not checked here:
// models::Model::Create does it.
ModelFiles TinyModelFiles(const TinyModelOptions& options);

}  // namespace forebay::weights
