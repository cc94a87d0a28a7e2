// Stop strings over the borders of tokens and characters. The tiny tokenizer has one token a byte.
#include "forebay/rollout/engine/stop_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/rollout/episode_testing.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {
namespace {

struct Found {
  std::string stop;
  size_t tokens;  // until it was there
  friend bool operator==(const Found&, const Found&) = default;
};

const tokenizer::Tokenizer& Bytes() {
  static const TinyText text = MakeTinyText();
  return *text.tokenizer;
}

Found Feed(std::vector<std::string> stops, const std::string& bytes) {
  StopText text(Bytes(), std::move(stops));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto stop = text.Add(static_cast<unsigned char>(bytes[i]));
    EXPECT_TRUE(stop.ok());
    if (stop.ok() && !stop->empty()) return {*stop, i + 1};
  }
  return {"", bytes.size()};
}

TEST(StopTextTest, AStopStringIsFoundWithTheTokenThatCompletesIt) {
  EXPECT_EQ(Feed({"\nUser:"}, "Hello.\nUser: hi"), (Found{"\nUser:", 12}));
  EXPECT_EQ(Feed({"x"}, "x"), (Found{"x", 1}));
  EXPECT_EQ(Feed({"aab"}, "aaaab"), (Found{"aab", 5})) << "a false start";
  EXPECT_EQ(Feed({"never"}, "neve r neverr"), (Found{"never", 12}));
  EXPECT_EQ(Feed({"no"}, "yes"), (Found{"", 3}));
}

TEST(StopTextTest, OfSeveralTheFirstCompleteOneEnds) {
  EXPECT_EQ(Feed({"long stop", "stop"}, "a long stop"), (Found{"long stop", 11}))
      << "it begins first";
  EXPECT_EQ(Feed({"abc", "b"}, "abc"), (Found{"b", 2}));
}

TEST(StopTextTest, CharactersOfSeveralTokensAreWhole) {
  EXPECT_EQ(Feed({"\u20ac"}, "5\u20ac!"), (Found{"\u20ac", 4}));
  EXPECT_EQ(Feed({"\U0001F600b"}, "a\U0001F600b"), (Found{"\U0001F600b", 6}));
  // Half of one character followed by another: not the first.
  EXPECT_EQ(Feed({"\u20ac"},
                 "\xE2\x82"
                 "A"),
            (Found{"", 3}));
  // Bytes that never become a character hide nothing behind them.
  EXPECT_EQ(Feed({"end"}, "\xFF\xFF\xFF\xFF\xFF\xFF end"), (Found{"end", 10}));
  EXPECT_EQ(Feed({"end"}, std::string(50, '\x80') + "end"), (Found{"end", 53}));
}

TEST(StopTextTest, SpecialTokensAreTheirText) {
  StopText text(Bytes(), {"<|im_end|>"});
  const auto before = text.Add('a');
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(*before, "");
  const auto stop = text.Add(weights::kTinyEnd);
  ASSERT_TRUE(stop.ok());
  EXPECT_EQ(*stop, "<|im_end|>");
}

TEST(StopTextTest, IdsThatAreNoTokensAreNoText) {
  StopText text(Bytes(), {"ab"});
  for (const int32_t token : std::vector<int32_t>{'a', 100000, -1}) {
    const auto stop = text.Add(token);
    ASSERT_TRUE(stop.ok()) << stop.status().ToString();
    EXPECT_EQ(*stop, "");
  }
  EXPECT_EQ(text.Add('b').value(), "ab");
}

TEST(StopTextTest, LongTextsKeepNothingButTheirEnd) {
  EXPECT_EQ(Feed({"needle"}, std::string(20000, 'n') + "eedle"), (Found{"needle", 20005}));
}

}  // namespace
}  // namespace forebay::rollout
