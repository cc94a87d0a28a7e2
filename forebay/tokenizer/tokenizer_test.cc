// Tokenizer: ids as the reference gives them, text back byte for byte, and an error instead of a
// crash for whatever a file or a prompt may hold. (The tokenizers of real models:
// weights/model_files_test.)
#include "forebay/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A byte-level BPE of a few tokens: "Ã" and "©" are the two bytes of "é".
std::string TokenizerJson(std::string_view extra = R"("truncation":null,"padding":null)") {
  return R"({"version":"1.0",)" + std::string(extra) + R"(,
    "added_tokens":[{"id":8,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,
                     "normalized":false,"special":true}],
    "normalizer":null,
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
    "post_processor":null,
    "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
    "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
             "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,
             "vocab":{"a":0,"b":1,"c":2,"ab":3,"Ġ":4,"Ã":5,"©":6,"Ā":7},"merges":["a b"]}})";
}

std::unique_ptr<Tokenizer> Make() {
  auto tokenizer = Tokenizer::FromJson(TokenizerJson());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(TokenizerTest, EncodesMergesAndSpecialTokens) {
  const auto tokenizer = Make();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_THAT(*tokenizer->Encode("abc ab"), ElementsAre(3, 2, 4, 3));
  EXPECT_THAT(*tokenizer->Encode("c<|end|>é"), ElementsAre(2, 8, 5, 6));
  EXPECT_THAT(*tokenizer->Encode(""), IsEmpty());
  EXPECT_THAT(*tokenizer->Encode(std::string_view("a\0a", 3)), ElementsAre(0, 7, 0));
}

TEST(TokenizerTest, DecodesToTheSameBytes) {
  const auto tokenizer = Make();
  ASSERT_NE(tokenizer, nullptr);
  const std::string text("ab c\0é<|end|>", 14);
  const auto ids = tokenizer->Encode(text);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*tokenizer->Decode(*ids, /*skip_special=*/false), text);
  EXPECT_EQ(*tokenizer->Decode(*ids, /*skip_special=*/true), text.substr(0, 7));
  EXPECT_EQ(*tokenizer->Decode({}, false), "");
}

TEST(TokenizerTest, HalfACharacterBecomesTheReplacementCharacter) {
  const auto tokenizer = Make();
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<int32_t> half = {0, 5};
  EXPECT_EQ(*tokenizer->Decode(half, false), "a\ufffd");
}

TEST(TokenizerTest, UnknownIdsAreRefusedNotDropped) {
  const auto tokenizer = Make();
  ASSERT_NE(tokenizer, nullptr);
  for (const int32_t id : {9, 1'000'000, -1}) {
    const std::vector<int32_t> ids = {0, id};
    const auto text = tokenizer->Decode(ids, false);
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(text.status().message(), HasSubstr("position 1"));
    EXPECT_THAT(text.status().message(), HasSubstr(std::to_string(id)));
  }
}

TEST(TokenizerTest, TextThatIsNotUtf8IsRefused) {
  const auto tokenizer = Make();
  ASSERT_NE(tokenizer, nullptr);
  for (const std::string_view text : {"a\xff", "a\xc3", "a\xed\xa0\x80", "a\xf8\x88\x80\x80\x80"}) {
    const auto ids = tokenizer->Encode(text);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(ids.status().message(), HasSubstr("offset 1"));
  }
}

TEST(TokenizerTest, FindsTokensByTheirText) {
  const auto tokenizer = Make();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->TokenId("<|end|>"), 8);
  EXPECT_EQ(tokenizer->TokenId("ab"), 3);
  EXPECT_EQ(tokenizer->TokenId("abc"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenId(""), std::nullopt);
  EXPECT_EQ(tokenizer->TokenId("\xff"), std::nullopt);
}

// A tokenizer.json saved during training asks to cut and to pad: a prompt must be neither.
TEST(TokenizerTest, TruncationAndPaddingOfTheFileAreIgnored) {
  for (
      const std::string_view extra :
      {R"("truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},"padding":null)",
       R"("truncation":null,"padding":{"strategy":{"Fixed":16},"direction":"Right","pad_to_multiple_of":null,
           "pad_id":0,"pad_type_id":0,"pad_token":"a"})"}) {
    const auto tokenizer = Tokenizer::FromJson(TokenizerJson(extra));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    EXPECT_THAT(*(*tokenizer)->Encode("abcabc"), ElementsAre(3, 2, 3, 2));
  }
}

TEST(TokenizerTest, FilesThatAreNoTokenizersAreRefusedWithTheReason) {
  const std::string good = TokenizerJson();
  std::vector<std::string> bad = {
      "", "{}", "null", "[]", std::string("\0\xff", 2), std::string(100'000, '['),
      R"({"model":)" + std::string(100'000, '{'),
      // A merge of a token that is not in the vocabulary.
      R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})",
      // A table that is no table (inside a library that indexes it without asking).
      R"({"version":"1.0","added_tokens":[],"normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="},
          "model":{"type":"BPE","vocab":{"a":0},"merges":[]}})",
      // A pattern that does not compile.
      R"({"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(("},
          "behavior":"Isolated","invert":false},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})"};
  for (size_t size = 1; size < good.size(); size += 97) bad.push_back(good.substr(0, size));
  for (const std::string& json : bad) {
    const auto tokenizer = Tokenizer::FromJson(json);
    ASSERT_FALSE(tokenizer.ok()) << json.substr(0, 200);
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(tokenizer.status().message(), HasSubstr("tokenizer.json is not usable: "));
  }
}

// Whatever one wrong character does to the file, the process goes on.
TEST(TokenizerTest, OneWrongCharacterAnywhereDoesNotCrash) {
  const std::string good = TokenizerJson();
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char wrong : {'0', '"', '}', '\xff'}) {
      std::string json = good;
      json[i] = wrong;
      const auto tokenizer = Tokenizer::FromJson(json);
      if (!tokenizer.ok()) continue;
      const auto ids = (*tokenizer)->Encode("abc é<|end|>");
      if (ids.ok()) EXPECT_LE(ids->size(), 32U);
    }
  }
}

TEST(TokenizerTest, ManyThreadsShareOne) {
  const auto tokenizer = Make();
  ASSERT_NE(tokenizer, nullptr);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const auto ids = tokenizer->Encode("abc ab");
        if (!ids.ok() || *ids != std::vector<int32_t>{3, 2, 4, 3}) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace forebay::tokenizer
