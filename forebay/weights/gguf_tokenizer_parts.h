// What the kinds of tokenizers in GGUF files share. Private to weights/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"

namespace forebay::weights {

// tokenizer.ggml.token_type
inline constexpr int64_t kNormalToken = 1, kUnknownToken = 2, kControlToken = 3,
                         kUserDefinedToken = 4, kByteToken = 6;

// An entry of tokenizer.json's added_tokens, for control and user-defined tokens.
nlohmann::json AddedToken(size_t id, std::string_view text, int64_t type);

// kDataLoss for text that is not UTF-8.
Result<std::string> DumpTokenizer(const nlohmann::json& tokenizer);

// See GgufTokenizerJson; of tokenizer.ggml.model "llama".
Result<std::string> SentencePieceJson(const GgufFile& file);

}  // namespace forebay::weights
