#include "forebay/env/builtin/grading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/env/builtin/answer_text.h"
#include "forebay/env/builtin/pattern.h"
#include "forebay/env/json.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameBytesMax = 128;
constexpr std::string_view kRegex = "regex:";
constexpr std::array<std::string_view, 4> kKinds = {"exact", "numeric", "regex", "format"};
constexpr std::array<std::string_view, 6> kExtracts = {"all",    "last_line",  "after_think",
                                                       "hashes", "answer_tag", "boxed"};
constexpr std::array<std::string_view, 5> kForms = {"bare_number", "think_answer", "boxed", "json",
                                                    "code_block"};

template <size_t kCount>
bool In(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status OfType(const Json& table, std::string_view key, bool right, std::string_view wanted) {
  if (right) return OkStatus();
  return InvalidArgument(
      fmt::format("a reward's {} must be {}, not {}", key, wanted, table[std::string(key)].dump()));
}

Result<std::string> Text(const Json& table, const std::string& key, std::string_view otherwise) {
  const auto it = table.find(key);
  if (it == table.end()) return std::string(otherwise);
  FB_RETURN_IF_ERROR(OfType(table, key, it->is_string(), "a text"));
  return it->get<std::string>();
}

Result<double> Number(const Json& table, const std::string& key, double otherwise) {
  const auto it = table.find(key);
  if (it == table.end()) return otherwise;
  FB_RETURN_IF_ERROR(OfType(table, key, it->is_number(), "a number"));
  return it->get<double>();
}

// The pattern of "regex:PATTERN"; none if `text` is one of the names.
template <size_t kCount>
Result<std::optional<Pattern>> PatternUnlessNamed(
    std::string_view key, std::string_view text,
    const std::array<std::string_view, kCount>& names) {
  if (In(names, text)) return std::optional<Pattern>();
  if (!text.starts_with(kRegex)) {
    return InvalidArgument(fmt::format("a reward's {} is one of {} or regex:PATTERN, not '{}'", key,
                                       fmt::join(names, ", "), text));
  }
  FB_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Compile(text.substr(kRegex.size())));
  return std::optional<Pattern>(std::move(pattern));
}

std::optional<std::string> Owned(std::optional<std::string_view> text) {
  if (!text) return std::nullopt;
  return std::string(*text);
}

}  // namespace

Result<Answer> ParseAnswer(const Json& value) {
  Answer answer;
  const auto add = [&answer](const Json& one) {
    if (one.is_string()) {
      answer.texts.push_back(one.get<std::string>());
    } else if (one.is_number()) {
      answer.texts.push_back(one.dump());
    } else {
      return false;
    }
    return true;
  };
  bool good = true;
  if (value.is_array()) {
    good = !value.empty();
    for (const Json& one : value) good = good && add(one);
  } else if (!value.is_null()) {
    good = add(value);
  }
  if (good) return answer;
  return InvalidArgument(
      fmt::format("an answer is a text, a number or a list of these, not {:.80}", Dump(value)));
}

Result<Grader> Grader::Parse(const Json& table) {
  if (!table.is_object()) {
    return InvalidArgument(
        "a reward is a table, for instance {\"kind\": \"numeric\", \"extract\": \"boxed\"}");
  }
  constexpr std::array<std::string_view, 8> kKeys = {"kind", "name",      "weight",  "extract",
                                                     "fold", "tolerance", "pattern", "form"};
  for (const auto& [key, value] : table.items()) {
    if (!In(kKeys, key)) {
      return InvalidArgument(
          fmt::format("a reward has no '{}'; it has: {}", key, fmt::join(kKeys, ", ")));
    }
  }
  Grader grader;
  FB_RETURN_IF_ERROR(grader.ParseRule(table));
  return grader;
}

Status Grader::ParseRule(const Json& table) {
  FB_ASSIGN_OR_RETURN(const std::string kind, Text(table, "kind", ""));
  const auto* const at = std::find(kKinds.begin(), kKinds.end(), kind);
  if (at == kKinds.end()) {
    return InvalidArgument(
        fmt::format("a reward's kind is one of {}, not '{}'", fmt::join(kKinds, ", "), kind));
  }
  kind_ = static_cast<Kind>(at - kKinds.begin());
  FB_ASSIGN_OR_RETURN(name_, Text(table, "name", kind));
  if (name_.empty() || name_.size() > kNameBytesMax) {
    return InvalidArgument(
        fmt::format("a reward's name has 1 to {} bytes, not {}", kNameBytesMax, name_.size()));
  }
  FB_ASSIGN_OR_RETURN(weight_, Number(table, "weight", 1));
  FB_ASSIGN_OR_RETURN(tolerance_, Number(table, "tolerance", 1e-6));
  if (!std::isfinite(weight_) || !(tolerance_ >= 0)) {
    return InvalidArgument("a reward's weight is a number, and its tolerance is not below 0");
  }
  FB_ASSIGN_OR_RETURN(extract_, Text(table, "extract", "all"));
  FB_ASSIGN_OR_RETURN(extract_pattern_, PatternUnlessNamed("extract", extract_, kExtracts));
  if (const auto it = table.find("fold"); it != table.end()) {
    FB_RETURN_IF_ERROR(OfType(table, "fold", it->is_boolean(), "true or false"));
    fold_ = it->get<bool>();
  }
  if (kind_ == Kind::kRegex && table.contains("pattern")) {
    FB_ASSIGN_OR_RETURN(const std::string pattern, Text(table, "pattern", ""));
    FB_ASSIGN_OR_RETURN(pattern_, Pattern::Compile(pattern));
  }
  if (kind_ == Kind::kFormat) {
    FB_ASSIGN_OR_RETURN(form_, Text(table, "form", ""));
    FB_ASSIGN_OR_RETURN(pattern_, PatternUnlessNamed("form", form_, kForms));
  }
  return OkStatus();
}

Status Grader::Check(const Answer& answer) const {
  const bool alone = kind_ == Kind::kFormat || (kind_ == Kind::kRegex && pattern_);
  if (alone) return OkStatus();
  if (answer.texts.empty()) {
    return InvalidArgument(fmt::format("the reward '{}' needs an answer to compare with", name_));
  }
  for (const std::string& text : answer.texts) {
    if (kind_ == Kind::kNumeric && !LastNumber(text)) {
      return InvalidArgument(
          fmt::format("the answer '{:.80}' has no number for the reward '{}'", text, name_));
    }
    if (kind_ == Kind::kRegex) FB_RETURN_IF_ERROR(Pattern::Compile(text).status());
  }
  return OkStatus();
}

Result<double> Grader::Score(std::string_view text, const Answer& answer) const {
  if (kind_ == Kind::kFormat) {
    FB_ASSIGN_OR_RETURN(const bool formed, HasForm(text));
    return formed ? 1.0 : 0.0;
  }
  FB_ASSIGN_OR_RETURN(const std::optional<std::string> part, Extract(text));
  if (!part) return 0.0;
  switch (kind_) {
    case Kind::kExact:
      return Exact(*part, answer) ? 1.0 : 0.0;
    case Kind::kNumeric:
      return Numeric(*part, answer) ? 1.0 : 0.0;
    default: {
      FB_ASSIGN_OR_RETURN(const bool matches, Matches(*part, answer));
      return matches ? 1.0 : 0.0;
    }
  }
}

Result<std::optional<std::string>> Grader::Extract(std::string_view text) const {
  if (extract_pattern_) return extract_pattern_->Last(text);
  if (extract_ == "last_line") return Owned(LastLine(text));
  if (extract_ == "hashes") return Owned(After(text, "####"));
  if (extract_ == "answer_tag") return Owned(AnswerTag(text));
  if (extract_ == "boxed") return Owned(Boxed(text));
  if (extract_ == "after_think") text = After(text, "</think>").value_or(text);
  return std::optional<std::string>(text);
}

Result<bool> Grader::HasForm(std::string_view text) const {
  if (pattern_) return pattern_->Whole(text);
  if (form_ == "bare_number") return IsBareNumber(text);
  if (form_ == "think_answer") return IsThinkAnswer(text);
  if (form_ == "boxed") return Boxed(text).has_value();
  if (form_ == "json") return IsJsonObject(text);
  return HasCodeBlock(text);
}

bool Grader::Exact(std::string_view text, const Answer& answer) const {
  const std::string found = fold_ ? Folded(text) : std::string(text);
  return std::any_of(answer.texts.begin(), answer.texts.end(), [&](const std::string& right) {
    return found == (fold_ ? Folded(right) : right);
  });
}

bool Grader::Numeric(std::string_view text, const Answer& answer) const {
  const std::optional<double> found = LastNumber(text);
  if (!found) return false;
  return std::any_of(answer.texts.begin(), answer.texts.end(), [&](const std::string& right) {
    const std::optional<double> expected = LastNumber(right);
    return expected &&
           std::abs(*found - *expected) <= tolerance_ * std::max(1.0, std::abs(*expected));
  });
}

Result<bool> Grader::Matches(std::string_view text, const Answer& answer) const {
  if (pattern_) return pattern_->Found(text);
  for (const std::string& right : answer.texts) {
    FB_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::Compile(right));
    FB_ASSIGN_OR_RETURN(const bool found, pattern.Found(text));
    if (found) return true;
  }
  return false;
}

}  // namespace forebay::env
