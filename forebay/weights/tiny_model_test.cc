// A tiny model's tokenizer takes any text at one token a byte; its template and config agree with
// it.
#include "forebay/weights/tiny_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::weights {
namespace {

using ::testing::ElementsAre;

// A random text of every kind of code point.
std::string RandomText(std::mt19937_64* random) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    const int bits = std::uniform_int_distribution<int>(3, 20)(*random);
    const auto c = static_cast<uint32_t>((*random)() % (uint64_t{1} << bits));
    if (c >= 0xd800 && c < 0xe000) continue;
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else if (c < 0x800) {
      text += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
    } else if (c < 0x10000) {
      text += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
               static_cast<char>(0x80 | (c & 0x3f))};
    } else {
      text += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3f)),
               static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
    }
  }
  return text;
}

TEST(TinyModelTest, AnyTextIsItsBytes) {
  const auto tokenizer = tokenizer::Tokenizer::FromJson(TinyModelFiles({}).tokenizer_json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->vocab_size(), kTinyVocabSize);
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const std::string text = RandomText(&random);
    const auto ids = (*tokenizer)->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    std::vector<int32_t> bytes;
    for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
    ASSERT_EQ(*ids, bytes);
    ASSERT_EQ(*(*tokenizer)->Decode(*ids, false), text);
  }
}

TEST(TinyModelTest, SpecialTokensHaveTheirIds) {
  const auto tokenizer = tokenizer::Tokenizer::FromJson(TinyModelFiles({}).tokenizer_json);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->TokenId("<|endoftext|>"), kTinyEndOfText);
  EXPECT_THAT(*(*tokenizer)->Encode("<|im_start|>a<|im_end|>"),
              ElementsAre(kTinyStart, 'a', kTinyEnd));
}

TEST(TinyModelTest, ChatsAreChatMl) {
  const auto chat_template = tokenizer::ChatTemplate::Parse(TinyModelFiles({}).chat_template);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().ToString();
  const std::vector<tokenizer::Message> messages = {{"system", "S"}, {"user", "U"}};
  EXPECT_EQ(
      *(*chat_template)->Render(messages, {.add_generation_prompt = true}),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
}

TEST(TinyModelTest, ConfigHasTheOptions) {
  const auto files = TinyModelFiles(
      {.layers = 3, .width = 32, .heads = 8, .kv_heads = 4, .ff_width = 48, .context_tokens = 99});
  const auto config = nlohmann::json::parse(files.config_json);
  EXPECT_EQ(config["num_hidden_layers"], 3);
  EXPECT_EQ(config["hidden_size"], 32);
  EXPECT_EQ(config["num_attention_heads"], 8);
  EXPECT_EQ(config["num_key_value_heads"], 4);
  EXPECT_EQ(config["intermediate_size"], 48);
  EXPECT_EQ(config["max_position_embeddings"], 99);
  EXPECT_EQ(config["vocab_size"], kTinyVocabSize);
  EXPECT_EQ(config["eos_token_id"], kTinyEnd);
  EXPECT_TRUE(files.tensors.empty());
}

}  // namespace
}  // namespace forebay::weights
