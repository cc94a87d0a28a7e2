#include "apps/help_format.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace forebay::apps {
namespace {

constexpr size_t kColumn = 26;  // where meanings begin
constexpr size_t kWidth = 98;

// `left`, and the words of `right` beside it from kColumn on, below it where it is longer.
std::string TwoColumns(const std::string& left, std::string_view right) {
  std::string out = "  " + left;
  size_t at = out.size();
  if (at + 2 > kColumn) {
    out += '\n';
    at = 0;
  }
  out.append(kColumn - at, ' ');
  at = kColumn;
  for (size_t begin = 0; begin < right.size();) {
    const size_t end = std::min(right.find(' ', begin), right.size());
    const std::string_view word = right.substr(begin, end - begin);
    if (at > kColumn && at + 1 + word.size() > kWidth) {
      out += '\n' + std::string(kColumn, ' ');
      at = kColumn;
    } else if (at > kColumn) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
    begin = end + 1;
  }
  return out + "\n";
}

// CLI11 puts what an option takes and its limits into one name: "INT:INT in [0 - 65535]".
struct Type {
  std::string kind, limits;
};

Type TypeOf(const CLI::Option* option) {
  const std::string name = option->get_type_name();
  const size_t colon = name.find(':');
  Type out{.kind = name.substr(0, colon)};
  if (out.kind == "INT" || out.kind == "UINT") out.kind = "N";
  if (out.kind == "FLOAT") out.kind = "X";
  if (colon == std::string::npos) return out;
  const std::string limits = name.substr(colon + 1);
  const size_t begin = limits.find(" in [");
  const size_t dash = limits.find(" - ");
  if (begin != std::string::npos && dash != std::string::npos) {
    const std::string least = limits.substr(begin + 5, dash - begin - 5);
    const std::string most = limits.substr(dash + 3, limits.size() - dash - 4);
    constexpr size_t kDigitsShown = 8;  // more is no limit that anybody meets
    out.limits = most.size() > kDigitsShown ? least + " or more" : least + " to " + most;
  } else if (limits.starts_with('{')) {
    out.limits = "one of ";
    for (const char ch : limits.substr(1, limits.size() - 2)) {
      out.limits += ch;
      if (ch == ',') out.limits += ' ';
    }
  } else if (limits == "NONNEGATIVE") {
    out.limits = "0 or more";
  }
  return out;
}

std::vector<std::string> Excluded(const CLI::Option* option) {
  std::vector<std::string> names;
  for (const CLI::Option* other : option->get_excludes()) names.push_back(other->get_name());
  std::ranges::sort(names);  // CLI11 sorts by address
  return names;
}

}  // namespace

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  const Type type = TypeOf(option);
  std::string left = make_option_name(option, is_positional);
  if (!is_positional && !type.kind.empty()) left += " " + type.kind;
  std::vector<std::string> facts;
  if (!is_positional && option->get_required()) facts.emplace_back("required");
  if (!type.limits.empty()) facts.push_back(type.limits);
  if (const std::vector<std::string> others = Excluded(option); !others.empty()) {
    facts.push_back(fmt::format("not with {}", fmt::join(others, ", ")));
  }
  if (!option->get_default_str().empty()) facts.push_back("default: " + option->get_default_str());
  std::string meaning = option->get_description();
  if (!facts.empty()) {
    const bool open = meaning.ends_with(')');  // one pair of brackets, not two
    if (open) meaning.pop_back();
    meaning += fmt::format("{}{})", open ? "; " : " (", fmt::join(facts, "; "));
  }
  return TwoColumns(left, meaning);
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return TwoColumns(command->get_name(), command->get_description());
}

}  // namespace forebay::apps
