// Goal: the pieces of an answer's text are together what the tokenizer makes of all its tokens,
// they come soon, and no sequence of tokens makes the stream hold more than a few.
#include "forebay/rollout/serving/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout::serving {
namespace {

class TextStreamTest : public ::testing::Test {
 protected:
  // The text of all pieces; the longest wait for one, in tokens, is `waited_`.
  std::string Stream(const std::vector<int32_t>& ids, bool skip_special = true) {
    TextStream stream(*bench_.tokenizer, {}, skip_special);
    std::string out;
    size_t waits = 0;
    waited_ = 0;
    for (const int32_t id : ids) {
      const std::string piece = stream.Feed(id).value();
      waits = piece.empty() ? waits + 1 : 0;
      waited_ = std::max(waited_, waits);
      out += piece;
    }
    return out + stream.Finish().value();
  }
  std::string Whole(const std::vector<int32_t>& ids, bool skip_special = true) {
    return bench_.tokenizer->Decode(ids, skip_special).value();
  }
  Bench bench_;
  size_t waited_ = 0;
};

TEST_F(TextStreamTest, GarbageComesInPieces) {
  const std::vector<int32_t> garbage(1000, 255);
  EXPECT_EQ(Stream(garbage), Whole(garbage));
  EXPECT_LE(waited_, 16U);
  std::vector<int32_t> mixed;
  for (int i = 0; i < 200; ++i) {
    // Halves of characters, characters after garbage, and garbage after halves.
    for (const int id : {0xE2, 0x82, 0xFF, 0xF0, 0x9F, 0x98, 0x80, 0x98, 0x80, 0xE2, 0x82, 0xAC}) {
      mixed.push_back(id);
    }
  }
  EXPECT_EQ(Stream(mixed), Whole(mixed));
}

TEST_F(TextStreamTest, AnyTokensAreTheirText) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < 60; ++i) {
      const uint64_t random = DeriveSeed(seed, i);
      // Mostly bytes that are parts of characters.
      const uint64_t byte = random % 4 == 0 ? random / 4 % 256 : 128 + random / 4 % 128;
      ids.push_back(static_cast<int32_t>(byte));
    }
    EXPECT_EQ(Stream(ids), Whole(ids)) << seed;
  }
}

TEST_F(TextStreamTest, SpecialTokensThatAreNotShownAreNotKept) {
  std::vector<int32_t> ids(500, weights::kTinyEnd);
  ids.insert(ids.begin(), 'a');
  ids.push_back('b');
  EXPECT_EQ(Stream(ids), "ab");
  EXPECT_EQ(Stream(ids, /*skip_special=*/false), Whole(ids, false));
}

TEST_F(TextStreamTest, AnIdThatTheTokenizerDoesNotKnowHasNoText) {
  EXPECT_EQ(Stream({'a', 1 << 20, -1, 'b'}), "ab");
}

}  // namespace
}  // namespace forebay::rollout::serving
