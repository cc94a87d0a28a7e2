// SentencePiece tokenizers made from GGUF metadata give the ids of the sentencepiece library
// (0.2.3, a BPE model of the same pieces, identity normalizer, byte fallback).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/gguf_tokenizer.h"
#include "forebay/weights/weights_testing.h"

namespace forebay::weights {
namespace {

using ::testing::HasSubstr;

struct Vocabulary {
  std::vector<std::string> pieces;
  std::vector<int32_t> types;
  std::vector<float> scores;

  void Add(std::string piece, float score, int32_t type) {
    pieces.push_back(std::move(piece));
    scores.push_back(score);
    types.push_back(type);
  }
};

// Ids 0 - 4, the bytes, the pieces by falling score.
Vocabulary Small() {
  Vocabulary v;
  v.Add("<unk>", 0, 2);
  v.Add("<s>", 0, 3);
  v.Add("</s>", 0, 3);
  v.Add("\n\n", 0, 4);
  v.Add("▁▁", 0, 4);
  for (int byte = 0; byte < 256; ++byte) v.Add(fmt::format("<0x{:02X}>", byte), 0, 6);
  float score = 0;
  for (const char* piece :
       {"th",  "he", "▁t",  "at",  "ca", "▁c", "the", "▁the", "cat", "▁cat", "hat", "▁a", "aa",
        "aaa", "ac", "aca", "act", "éa", "▁",  "a",   "b",    "c",   "t",    "h",   "e",  "é"}) {
    v.Add(piece, score--, 1);
  }
  return v;
}

GgufBuilder Metadata(const Vocabulary& v) {
  GgufBuilder builder;
  builder.String("tokenizer.ggml.model", "llama");
  builder.Strings("tokenizer.ggml.tokens", v.pieces);
  builder.Ints("tokenizer.ggml.token_type", v.types);
  builder.Floats("tokenizer.ggml.scores", v.scores);
  return builder;
}

Result<std::string> Json(const GgufBuilder& builder) {
  const std::string bytes = builder.Build();
  const auto file = GgufFile::Parse(BytesOf(bytes));
  if (!file.ok()) return file.status();
  return GgufTokenizerJson(*file);
}

std::unique_ptr<tokenizer::Tokenizer> Load(const GgufBuilder& builder) {
  const auto json = Json(builder);
  EXPECT_TRUE(json.ok()) << json.status().ToString();
  auto made = tokenizer::Tokenizer::FromJson(*json);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(*made);
}

struct Case {
  std::string text;
  std::vector<int32_t> ids;
};

TEST(GgufSentencePiece, GemmaKindHasTheIdsOfSentencePiece) {
  GgufBuilder builder = Metadata(Small());
  builder.Bool("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = Load(builder);
  const std::vector<Case> cases = {
      {"the cat", {267, 270}},
      {"cat hat", {269, 279, 271}},
      {"  the   cat", {4, 267, 4, 270}},
      {"aaaaa", {273, 274}},
      {"aaacat", {274, 269}},
      {"théa z", {261, 278, 279, 127}},
      {"a\n\nb\nt", {280, 3, 281, 15, 283}},
      {" ", {279}},
      {"acaca theéact", {276, 265, 268, 286, 277}},
      {"ttt 世", {283, 283, 283, 279, 233, 189, 155}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(tokenizer->Encode(c.text).value(), c.ids) << c.text;
    EXPECT_EQ(tokenizer->Decode(c.ids, false).value(), c.text);
  }
  // Control tokens are found in text, and skipped on request.
  const std::vector<int32_t> special = {1, 267, 2};
  EXPECT_EQ(tokenizer->Encode("<s>the</s>").value(), special);
  EXPECT_EQ(tokenizer->Decode(special, true).value(), "the");
}

TEST(GgufSentencePiece, LlamaKindPutsASpaceInFront) {
  const std::vector<Case> cases = {
      {"the cat", {268, 270}},
      {"cat hat", {270, 279, 271}},
      {"aaaaa", {272, 273, 273}},
      {"aaacat", {272, 273, 269}},
      {"théa z", {279, 261, 278, 279, 127}},
      {"acaca theéact", {272, 265, 265, 268, 286, 277}},
      {"ttt 世", {263, 283, 283, 279, 233, 189, 155}},
  };
  const auto tokenizer = Load(Metadata(Small()));  // the format's default
  for (const Case& c : cases) {
    EXPECT_EQ(tokenizer->Encode(c.text).value(), c.ids) << c.text;
    EXPECT_EQ(tokenizer->Decode(c.ids, false).value(), c.text);
  }
}

TEST(GgufSentencePiece, AFileWithoutBytesUsesTheUnknownToken) {
  Vocabulary v;
  v.Add("<unk>", 0, 2);
  v.Add("a", -1, 1);
  v.Add("▁", -2, 1);
  GgufBuilder builder = Metadata(v);
  builder.Bool("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(Load(builder)->Encode("a xyz a").value(), (std::vector<int32_t>{1, 2, 0, 2, 1}));
}

TEST(GgufSentencePiece, ListsThatCannotBeAreRefused) {
  const auto code = [](const Vocabulary& v) { return Json(Metadata(v)).status().code(); };
  EXPECT_EQ(code(Small()), StatusCode::kOk);
  Vocabulary v = Small();
  v.scores.pop_back();
  EXPECT_EQ(code(v), StatusCode::kDataLoss);
  v = Small();
  v.types.pop_back();
  EXPECT_EQ(code(v), StatusCode::kDataLoss);
  v = Small();
  v.scores[270] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code(v), StatusCode::kDataLoss);
  v = Small();
  v.Add("cat", -50, 1);
  EXPECT_EQ(code(v), StatusCode::kDataLoss);
  v = Small();
  v.Add("\xff", -50, 1);
  EXPECT_EQ(code(v), StatusCode::kDataLoss);
  v = Small();
  v.Add(std::string(1 << 20, 'a'), -50, 1);
  EXPECT_THAT(Json(Metadata(v)).status().message(), HasSubstr("1048576 bytes"));
  GgufBuilder none;
  none.String("tokenizer.ggml.model", "llama");
  EXPECT_EQ(Json(none).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace forebay::weights
