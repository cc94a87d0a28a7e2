#include "forebay/base/text.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/json_scan.h"

namespace forebay {
namespace {

TEST(TextTest, TrimTakesSpaceOffTheEndsAlone) {
  struct Case {
    std::string_view text, trimmed;
  };
  for (const Case& c : std::vector<Case>{{"", ""},
                                         {" \r\n\t", ""},
                                         {"a", "a"},
                                         {" a b\n", "a b"},
                                         {"\va\f", "\va\f"},
                                         {"\xc2\xa0 x", "\xc2\xa0 x"}}) {
    EXPECT_EQ(Trim(c.text), c.trimmed) << c.text;
  }
  EXPECT_EQ(Trim("--a-b-", "-"), "a-b");
  const std::string_view text = "  x  ";
  EXPECT_EQ(Trim(text).data(), text.data() + 2);  // a view
}

TEST(TextTest, AWalkOverJsonLeavesStringsOut) {
  struct Case {
    std::string_view text, outside;
    bool in_string;
  };
  for (const Case& c : std::vector<Case>{{"", "", false},
                                         {R"({"a": 1})", "{: 1}", false},
                                         {R"(["\"]", 2])", "[, 2]", false},
                                         {R"("\\"x)", "x", false},
                                         {R"(x")", "x", true},
                                         {R"("\)", "", true}}) {
    std::string outside;
    EXPECT_EQ(OutsideJsonStrings(c.text, 0,
                                 [&](char at, size_t) {
                                   outside += at;
                                   return true;
                                 }),
              c.in_string)
        << c.text;
    EXPECT_EQ(outside, c.outside);
  }
  size_t last = 0;
  OutsideJsonStrings("abcd", 1, [&](char c, size_t i) {
    last = i;
    return c != 'c';
  });
  EXPECT_EQ(last, 2U);
}

}  // namespace
}  // namespace forebay
