// The tokenizer.json made from GGUF metadata loads, and splits text as its kind does.
#include "forebay/weights/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/gguf.h"
#include "forebay/weights/weights_testing.h"

namespace forebay::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "11" and "111" exist as tokens: the kinds differ in whether digits may join. "e" + U+0301
// composes under NFC to "é", whose bytes are "Ã" "©".
const std::vector<std::string> kTokens = {"1", "11", "111", "Ġ", "<|end|>", "<tool>",
                                          "e", "Ã",  "©",   "Ì", "ģ"};
const std::vector<int32_t> kTypes = {1, 1, 1, 1, 3, 4, 1, 1, 1, 1, 1};

GgufBuilder Metadata(std::string_view pre, std::string_view model = "gpt2") {
  GgufBuilder builder;
  builder.String("tokenizer.ggml.model", model);
  builder.String("tokenizer.ggml.pre", pre);
  return builder;
}

Result<std::string> Json(const GgufBuilder& builder) {
  const std::string bytes = builder.Build();
  const auto file = GgufFile::Parse(BytesOf(bytes));
  if (!file.ok()) return file.status();
  return GgufTokenizerJson(*file);
}

Result<std::vector<int32_t>> Encode(std::string_view pre, std::string_view text) {
  GgufBuilder builder = Metadata(pre);
  builder.Strings("tokenizer.ggml.tokens", kTokens);
  builder.Ints("tokenizer.ggml.token_type", kTypes);
  builder.Strings("tokenizer.ggml.merges", {"1 1", "11 1"});
  FB_ASSIGN_OR_RETURN(const std::string json, Json(builder));
  FB_ASSIGN_OR_RETURN(const auto tokenizer, tokenizer::Tokenizer::FromJson(json));
  return tokenizer->Encode(text);
}

TEST(GgufTokenizerTest, EachKindSplitsDigitsInItsWay) {
  EXPECT_THAT(*Encode("gpt-2", "1111"), ElementsAre(1, 1));
  EXPECT_THAT(*Encode("smollm", "1111"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(*Encode("qwen2", "1111"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(*Encode("llama-bpe", "1111"), ElementsAre(2, 0));
}

TEST(GgufTokenizerTest, OnlyQwenComposesCharacters) {
  EXPECT_THAT(*Encode("qwen2", "e\u0301"), ElementsAre(7, 8));
  EXPECT_THAT(*Encode("gpt-2", "e\u0301"), ElementsAre(6, 9, 10));
}

TEST(GgufTokenizerTest, AddedTokensAreFoundInText) {
  EXPECT_THAT(*Encode("smollm", "1<|end|> <tool>11"), ElementsAre(0, 4, 3, 5, 0, 0));
}

TEST(GgufTokenizerTest, SpecialTokensAreSkippedOnRequestPlainAddedOnesAreNot) {
  GgufBuilder builder = Metadata("smollm");
  builder.Strings("tokenizer.ggml.tokens", kTokens);
  builder.Ints("tokenizer.ggml.token_type", kTypes);
  builder.Strings("tokenizer.ggml.merges", {});
  const auto json = Json(builder);
  ASSERT_TRUE(json.ok()) << json.status().ToString();
  const auto tokenizer = tokenizer::Tokenizer::FromJson(*json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const std::vector<int32_t> ids = {0, 4, 5};
  EXPECT_EQ(*(*tokenizer)->Decode(ids, /*skip_special=*/true), "1<tool>");
  EXPECT_EQ(*(*tokenizer)->Decode(ids, /*skip_special=*/false), "1<|end|><tool>");
}

TEST(GgufTokenizerTest, AFileWithoutATokenizerGivesNone) {
  GgufBuilder builder;
  EXPECT_EQ(*Json(builder), "");
  const std::string bytes = builder.Build();
  EXPECT_EQ(*GgufChatTemplate(*GgufFile::Parse(BytesOf(bytes))), "");
}

TEST(GgufTokenizerTest, OtherKindsAreRefusedByName) {
  EXPECT_THAT(Json(Metadata("smollm", "t5")).status().message(), HasSubstr("t5"));
  EXPECT_EQ(Json(Metadata("bloom")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Json(Metadata("bloom")).status().message(), HasSubstr("bloom"));
}

TEST(GgufTokenizerTest, ListsThatContradictEachOtherAreRefused) {
  const auto status = [](const std::vector<std::string>& tokens,
                         const std::vector<int32_t>& types) {
    GgufBuilder builder = Metadata("smollm");
    builder.Strings("tokenizer.ggml.tokens", tokens);
    builder.Ints("tokenizer.ggml.token_type", types);
    builder.Strings("tokenizer.ggml.merges", {});
    return Json(builder).status();
  };
  EXPECT_EQ(status({"a", "b"}, {1, 1}), OkStatus());
  EXPECT_EQ(status({"a", "b"}, {1}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(status({"a", "a"}, {1, 1}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(status({"a", "\xff"}, {1, 1}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(Json(Metadata("smollm")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace forebay::weights
