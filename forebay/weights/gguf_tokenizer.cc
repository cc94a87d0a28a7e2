#include "forebay/weights/gguf_tokenizer.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/gguf_tokenizer_parts.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::json;

// How the published tokenizers split text before BPE: these patterns are part of the models.
constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json Sequence(Json first, Json second) {
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({std::move(first), std::move(second)})}};
}

Json Split(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

// What differs between the kinds of byte-level BPE.
struct PreTokenizer {
  Json normalizer;  // null: none
  Json pre_tokenizer;
  bool ignore_merges = false;
};

Result<PreTokenizer> PreTokenizerByName(std::string_view name) {
  if (name == "smollm") {
    const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
    return PreTokenizer{.pre_tokenizer = Sequence(digits, ByteLevel(true))};
  }
  if (name == "qwen2") {
    return PreTokenizer{.normalizer = {{"type", "NFC"}},
                        .pre_tokenizer = Sequence(Split(kQwen2Split), ByteLevel(false))};
  }
  if (name == "llama-bpe") {
    return PreTokenizer{.pre_tokenizer = Sequence(Split(kLlama3Split), ByteLevel(false)),
                        .ignore_merges = true};
  }
  if (name == "gpt-2") return PreTokenizer{.pre_tokenizer = ByteLevel(true)};
  return InvalidArgument(
      fmt::format("the GGUF tokenizer.ggml.pre {} is not supported (smollm, qwen2, llama-bpe and "
                  "gpt-2 are): use the Hugging Face folder of the model",
                  name));
}

struct Vocabulary {
  Json tokens = Json::object();
  Json added = Json::array();
};

Result<Vocabulary> ReadVocabulary(const GgufFile& file) {
  FB_ASSIGN_OR_RETURN(const auto tokens, file.Strings("tokenizer.ggml.tokens"));
  FB_ASSIGN_OR_RETURN(const auto types, file.Integers("tokenizer.ggml.token_type"));
  if (tokens.size() != types.size()) {
    return DataLoss(fmt::format("the GGUF metadata has {} tokens and {} token types: corrupt",
                                tokens.size(), types.size()));
  }
  Vocabulary vocabulary;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!vocabulary.tokens.emplace(std::string(tokens[id]), id).second) {
      return DataLoss(fmt::format("the GGUF metadata has the token {} twice", tokens[id]));
    }
    if (types[id] != kControlToken && types[id] != kUserDefinedToken) continue;
    vocabulary.added.push_back(AddedToken(id, tokens[id], types[id]));
  }
  return vocabulary;
}

}  // namespace

Json AddedToken(size_t id, std::string_view text, int64_t type) {
  return {{"id", id},
          {"content", text},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", type == kControlToken}};
}

Result<std::string> DumpTokenizer(const Json& tokenizer) {
  try {
    return tokenizer.dump();
  } catch (const Json::exception& e) {
    return DataLoss(fmt::format("a token of the GGUF file is not UTF-8: {}", e.what()));
  }
}

Result<std::string> GgufTokenizerJson(const GgufFile& file) {
  if (!file.Has("tokenizer.ggml.model")) return std::string();
  FB_ASSIGN_OR_RETURN(const std::string_view model, file.String("tokenizer.ggml.model"));
  if (model == "llama") return SentencePieceJson(file);
  if (model != "gpt2") {
    return InvalidArgument(fmt::format(
        "the GGUF tokenizer.ggml.model {} is not supported (gpt2, the byte-level BPE, and llama, "
        "SentencePiece's, are): use the Hugging Face folder of the model",
        model));
  }
  FB_ASSIGN_OR_RETURN(const std::string_view pre, file.String("tokenizer.ggml.pre"));
  FB_ASSIGN_OR_RETURN(PreTokenizer kind, PreTokenizerByName(pre));
  FB_ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(file));
  FB_ASSIGN_OR_RETURN(const auto merges, file.Strings("tokenizer.ggml.merges"));

  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", std::move(vocabulary.added)},
                          {"normalizer", std::move(kind.normalizer)},
                          {"pre_tokenizer", std::move(kind.pre_tokenizer)},
                          {"post_processor", nullptr},
                          {"decoder", ByteLevel(true)},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", kind.ignore_merges},
                            {"vocab", std::move(vocabulary.tokens)},
                            {"merges", merges}}}};
  return DumpTokenizer(tokenizer);
}

Result<std::string> GgufChatTemplate(const GgufFile& file) {
  if (!file.Has("tokenizer.chat_template")) return std::string();
  FB_ASSIGN_OR_RETURN(const std::string_view text, file.String("tokenizer.chat_template"));
  return std::string(text);
}

}  // namespace forebay::weights
