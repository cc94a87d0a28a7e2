#include "forebay/env/builtin/pattern.h"

#include <fmt/core.h>

// A match that takes more steps is given up: on the loop nothing may take long. The only file that
// includes Boost.Regex, so the definition holds for all of it.
#define BOOST_REGEX_MAX_STATE_COUNT 2000000
#include <boost/regex.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"

namespace forebay::env {

struct Pattern::Compiled {
  std::string text;
  boost::regex regex;
};

namespace {

using Iterator = std::string_view::const_iterator;
using Match = boost::match_results<Iterator>;

Status TooExpensive(const std::string& pattern, const std::exception& error) {
  return FailedPrecondition(fmt::format(
      "the pattern '{}' takes too long on what the policy wrote: {}", pattern, error.what()));
}

}  // namespace

Pattern::Pattern(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

Result<Pattern> Pattern::Compile(std::string_view pattern) {
  auto compiled = std::make_shared<Compiled>();
  compiled->text = pattern;
  try {
    compiled->regex.assign(compiled->text,
                           boost::regex::perl | boost::regex::no_mod_m | boost::regex::no_mod_s);
  } catch (const std::exception& error) {
    return InvalidArgument(fmt::format("'{}' is no regular expression: {}", pattern, error.what()));
  }
  return Pattern(std::move(compiled));
}

Result<bool> Pattern::Found(std::string_view text) const {
  try {
    Match match;
    return boost::regex_search(text.begin(), text.end(), match, compiled_->regex);
  } catch (const std::exception& error) {
    return TooExpensive(compiled_->text, error);
  }
}

Result<bool> Pattern::Whole(std::string_view text) const {
  try {
    Match match;
    return boost::regex_match(text.begin(), text.end(), match, compiled_->regex);
  } catch (const std::exception& error) {
    return TooExpensive(compiled_->text, error);
  }
}

Result<std::optional<std::string>> Pattern::Last(std::string_view text) const {
  try {
    std::optional<std::string> last;
    boost::regex_iterator<Iterator> match(text.begin(), text.end(), compiled_->regex);
    for (; match != boost::regex_iterator<Iterator>(); ++match) {
      last = (*match)[match->size() > 1 ? 1 : 0].str();
    }
    return last;
  } catch (const std::exception& error) {
    return TooExpensive(compiled_->text, error);
  }
}

}  // namespace forebay::env
