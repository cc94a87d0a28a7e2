// Pattern: a regular expression for texts that a policy wrote.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::env {

// Perl's syntax, as Python's `re` reads it: "." is no end of line and "^", "$" are the ends of the
// text, unless (?s), (?m) say otherwise. Bytes, so a class like \w is ASCII. Immutable; copies
// share it. Matching ends after some ten milliseconds at most: kFailedPrecondition says that the
// pattern is too expensive for the text.
class Pattern {
 public:
  // kInvalidArgument with the place and the reason.
  static Result<Pattern> Compile(std::string_view pattern);

  Result<bool> Found(std::string_view text) const;  // anywhere
  Result<bool> Whole(std::string_view text) const;
  // The last match that overlaps no earlier one: its first group if the pattern has one, "" if that
  // took no part.
  Result<std::optional<std::string>> Last(std::string_view text) const;

 private:
  struct Compiled;
  explicit Pattern(std::shared_ptr<const Compiled> compiled);
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace forebay::env
