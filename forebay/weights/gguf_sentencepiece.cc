// SentencePiece's BPE from GGUF metadata (Llama 2, Gemma, Mistral): pieces with scores instead of
// a list of merges. Text is cut into characters, and the two neighbours whose joint piece has the
// highest score are joined, until none have one. A merge list that is ordered by the scores of what
// it makes says the same.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/gguf_tokenizer_parts.h"

namespace forebay::weights {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpace = "\u2581";  // stands for a space in pieces
constexpr size_t kPieceBytesMax = 1024;        // the work grows with its square

// A piece made of two others.
struct Merge {
  double score;
  size_t left, right;  // ids
};

bool StartsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

std::string WithSpaces(std::string_view piece) {
  std::string out;
  for (size_t at = 0; at < piece.size();) {
    if (piece.substr(at).starts_with(kSpace)) {
      out += ' ';
      at += kSpace.size();
    } else {
      out += piece[at++];
    }
  }
  return out;
}

struct Pieces {
  std::vector<std::string> texts;  // by id
  std::vector<int64_t> types;
  std::vector<double> scores;
};

Result<Pieces> ReadPieces(const GgufFile& file) {
  FB_ASSIGN_OR_RETURN(const auto tokens, file.Strings("tokenizer.ggml.tokens"));
  Pieces p;
  FB_ASSIGN_OR_RETURN(p.types, file.Integers("tokenizer.ggml.token_type"));
  FB_ASSIGN_OR_RETURN(p.scores, file.Floats("tokenizer.ggml.scores"));
  if (tokens.size() != p.types.size() || tokens.size() != p.scores.size()) {
    return DataLoss(
        fmt::format("the GGUF metadata has {} tokens, {} token types and {} scores: corrupt",
                    tokens.size(), p.types.size(), p.scores.size()));
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() > kPieceBytesMax) {
      return DataLoss(fmt::format("token {} of the GGUF metadata has {} bytes, at most {} are read",
                                  id, tokens[id].size(), kPieceBytesMax));
    }
    if (!std::isfinite(p.scores[id])) {
      return DataLoss(fmt::format("the score of token {} of the GGUF metadata is no number", id));
    }
    // What users defined is looked for in the text as it is.
    p.texts.push_back(p.types[id] == kUserDefinedToken ? WithSpaces(tokens[id])
                                                       : std::string(tokens[id]));
  }
  return p;
}

// Best first. Pieces that are made in several ways list all of them: which one the text goes
// depends on what was joined before.
std::vector<Merge> MergesOf(const Pieces& pieces) {
  std::unordered_map<std::string_view, size_t> normal;
  for (size_t id = 0; id < pieces.texts.size(); ++id) {
    if (pieces.types[id] == kNormalToken) normal.emplace(pieces.texts[id], id);
  }
  std::vector<Merge> merges;
  for (const auto& [text, id] : normal) {
    for (size_t at = 1; at < text.size(); ++at) {
      if (!StartsCharacter(text[at])) continue;
      const auto left = normal.find(text.substr(0, at));
      if (left == normal.end()) continue;
      const auto right = normal.find(text.substr(at));
      if (right == normal.end()) continue;
      merges.push_back({pieces.scores[id], left->second, right->second});
    }
  }
  std::ranges::sort(merges, [](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.left, a.right) < std::pair(b.left, b.right);
  });
  return merges;
}

Json Replace(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json Steps(std::string_view list, Json steps) {
  return {{"type", "Sequence"}, {list, std::move(steps)}};
}

}  // namespace

Result<std::string> SentencePieceJson(const GgufFile& file) {
  FB_ASSIGN_OR_RETURN(const Pieces pieces, ReadPieces(file));
  // Llama 2 puts a space in front of a text, Gemma does not.
  bool prefix = true;
  if (file.Has("tokenizer.ggml.add_space_prefix")) {
    FB_ASSIGN_OR_RETURN(prefix, file.Bool("tokenizer.ggml.add_space_prefix"));
  }
  Json vocabulary = Json::object(), added = Json::array(), unknown = nullptr;
  bool bytes = false;
  for (size_t id = 0; id < pieces.texts.size(); ++id) {
    const std::string& text = pieces.texts[id];
    if (!vocabulary.emplace(text, id).second) {
      return DataLoss(fmt::format("the GGUF metadata has the token {} twice", text));
    }
    const int64_t type = pieces.types[id];
    if (type == kUnknownToken) unknown = text;
    bytes = bytes || type == kByteToken;
    if (type == kControlToken || type == kUserDefinedToken)
      added.push_back(AddedToken(id, text, type));
  }
  if (unknown.is_null() && file.Has("tokenizer.ggml.unknown_token_id")) {
    FB_ASSIGN_OR_RETURN(const uint64_t id, file.Unsigned("tokenizer.ggml.unknown_token_id"));
    if (id >= pieces.texts.size()) {
      return DataLoss(
          fmt::format("the GGUF metadata has the unknown token {} of {}", id, pieces.texts.size()));
    }
    unknown = pieces.texts[id];
  }
  std::vector<std::string> merges;
  for (const Merge& merge : MergesOf(pieces)) {
    const std::string &left = pieces.texts[merge.left], &right = pieces.texts[merge.right];
    if (left.find(' ') != left.npos || right.find(' ') != right.npos) {
      return DataLoss("a token of the GGUF file has a space, which SentencePiece never writes");
    }
    merges.push_back(fmt::format("{} {}", left, right));
  }
  Json normalizer = Replace(" ", kSpace);
  Json decoder =
      Json::array({Replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) {
    const Json prepend = {{"type", "Prepend"}, {"prepend", kSpace}};
    normalizer = Steps("normalizers", Json::array({prepend, std::move(normalizer)}));
    decoder.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", std::move(added)},
                          {"normalizer", std::move(normalizer)},
                          {"pre_tokenizer", nullptr},
                          {"post_processor", nullptr},
                          {"decoder", Steps("decoders", std::move(decoder))},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", std::move(unknown)},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", true},
                            {"byte_fallback", bytes},
                            {"ignore_merges", false},
                            {"vocab", std::move(vocabulary)},
                            {"merges", std::move(merges)}}}};
  return DumpTokenizer(tokenizer);
}

}  // namespace forebay::weights
