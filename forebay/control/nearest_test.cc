#include "forebay/control/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace forebay::control {
namespace {

constexpr std::string_view kWords[] = {"train", "plan", "replay", "buffer"};

TEST(Nearest, DistancesAreThoseOfLevenshtein) {
  EXPECT_EQ(EditDistance("", ""), 0U);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3U);
  EXPECT_EQ(EditDistance("", "abc"), 3U);
  EXPECT_EQ(EditDistance("plan", "plan"), 0U);
}

TEST(Nearest, FindsWhatWasMeantAndGuessesNothing) {
  EXPECT_EQ(Nearest("trian", kWords), "train");
  EXPECT_EQ(Nearest("pln", kWords), "plan");
  EXPECT_EQ(Nearest("reply", kWords), "replay");
  EXPECT_EQ(Nearest("BUFFER", kWords), "buffer");
  EXPECT_EQ(Nearest("xyz", kWords), "");
  EXPECT_EQ(Nearest("", kWords), "");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'x'), kWords), "");
  EXPECT_EQ(Nearest("train", {}), "");
}

}  // namespace
}  // namespace forebay::control
