#include "forebay/env/builtin/answer_text.h"

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/text.h"

namespace forebay::env {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";
constexpr std::string_view kBox = "\\boxed{";
constexpr size_t kNumberBytesMax = 100;  // what is longer is no number
constexpr size_t kSignLookBackMax = 32;  // spaces looked past, in front of a minus

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlnum(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The end of the digits that begin at `at`.
size_t Digits(std::string_view text, size_t at) {
  while (at < text.size() && IsDigit(text[at])) ++at;
  return at;
}

// The end of "1,234,567" at `at`; `at` if there are no such groups. What would cut a group of more
// than three digits is none: 1,2345 is 1 and 2345.
size_t Grouped(std::string_view text, size_t at) {
  size_t end = Digits(text, at);
  if (end == at || end - at > 3) return at;
  size_t good = at;
  while (end < text.size() && text[end] == ',') {
    const size_t next = Digits(text, end + 1);
    if (next - end - 1 != 3) break;
    end = next;
    good = end;
  }
  return good;
}

// The end of the number that begins at `at`; `at` if none does.
size_t NumberEnd(std::string_view text, size_t at) {
  size_t end = Grouped(text, at);
  if (end == at) end = Digits(text, at);
  if (end == at && text[at] != '.') return at;
  if (end < text.size() && text[end] == '.') {
    const size_t decimals = Digits(text, end + 1);
    if (decimals > end + 1) end = decimals;
  }
  if (end == at) return at;
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    size_t digits = end + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    const size_t exponent = Digits(text, digits);
    if (exponent > digits) end = exponent;
  }
  if (end < text.size() && text[end] == '/') {
    const size_t below = Digits(text, end + 1);
    if (below > end + 1) end = below;
  }
  return end;
}

std::optional<double> Value(std::string_view number) {
  if (number.size() > kNumberBytesMax) return std::nullopt;
  std::string plain;
  for (const char c : number) {
    if (c != ',') plain += c;
  }
  const size_t slash = plain.find('/');
  double value = std::strtod(plain.substr(0, slash).c_str(), nullptr);
  if (slash != std::string::npos) {
    const double below = std::strtod(plain.c_str() + slash + 1, nullptr);
    if (below == 0) return std::nullopt;
    value /= below;
  }
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

// Whether a sign stands before the number at `at`: a minus, unless it stands between two things.
bool Negative(std::string_view text, size_t at) {
  std::string_view before = text.substr(0, at);
  if (before.ends_with('-')) {
    before.remove_suffix(1);
  } else if (before.ends_with("\u2212")) {
    before.remove_suffix(3);
  } else {
    return false;
  }
  if (!before.empty() && IsAlnum(before.back())) return false;
  for (size_t looked = 0; looked < kSignLookBackMax && !before.empty(); ++looked) {
    if (before.back() != ' ' && before.back() != '\t') {
      return !IsDigit(before.back()) && before.back() != ')';
    }
    before.remove_suffix(1);
  }
  return true;
}

std::string_view Stripped(std::string_view text) { return Trim(text, kSpace); }

bool Consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes what stands before the first `end`, and `end`; false if another of the tags comes first.
bool ConsumeBody(std::string_view& text, std::string_view end) {
  size_t first = std::string_view::npos;
  std::string_view which;
  for (const std::string_view tag : {"<think>", "</think>", "<answer>", "</answer>"}) {
    const size_t at = text.find(tag);
    if (at < first) {
      first = at;
      which = tag;
    }
  }
  if (which != end) return false;
  text.remove_prefix(first + end.size());
  return true;
}

}  // namespace

std::optional<std::string_view> Boxed(std::string_view text) {
  std::vector<size_t> open;  // where what stands between the braces that are open begins
  std::optional<std::string_view> last;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '{') open.push_back(at + 1);
    if (text[at] != '}' || open.empty()) continue;
    const size_t begin = open.back();
    open.pop_back();
    if (!text.substr(0, begin).ends_with(kBox)) continue;
    if (!last || begin > static_cast<size_t>(last->data() - text.data())) {
      last = text.substr(begin, at - begin);
    }
  }
  return last;
}

std::optional<std::string_view> LastLine(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  if (last == std::string_view::npos) return std::nullopt;
  const size_t before = text.rfind('\n', last);
  const size_t begin = before == std::string_view::npos ? 0 : before + 1;
  const size_t end = text.find('\n', last);
  return text.substr(begin, end == std::string_view::npos ? end : end - begin);
}

std::optional<std::string_view> After(std::string_view text, std::string_view mark) {
  const size_t at = text.rfind(mark);
  if (at == std::string_view::npos) return std::nullopt;
  return text.substr(at + mark.size());
}

std::optional<std::string_view> AnswerTag(std::string_view text) {
  constexpr std::string_view kOpen = "<answer>";
  const size_t end = text.rfind("</answer>");
  if (end == std::string_view::npos) return std::nullopt;
  return After(text.substr(0, end), kOpen);
}

std::optional<double> LastNumber(std::string_view text) {
  std::optional<double> last;
  for (size_t at = 0; at < text.size();) {
    const size_t end = NumberEnd(text, at);
    if (end == at) {
      ++at;
      continue;
    }
    if (const std::optional<double> value = Value(text.substr(at, end - at))) {
      last = Negative(text, at) ? -*value : *value;
    }
    at = end;
  }
  return last;
}

std::string Folded(std::string_view text) {
  std::string folded;
  for (size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;) {
    const size_t end = text.find_first_of(kSpace, at);
    if (!folded.empty()) folded += ' ';
    folded += text.substr(at, end == std::string_view::npos ? end : end - at);
    at = end == std::string_view::npos ? end : text.find_first_not_of(kSpace, end);
  }
  if (folded.ends_with('.')) folded.pop_back();
  for (char& c : folded) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return folded;
}

bool IsBareNumber(std::string_view text) {
  text = Stripped(text);
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const size_t whole = Digits(text, 0);
  if (whole == 0) return false;
  if (whole == text.size()) return true;
  return text[whole] == '.' && whole + 1 < text.size() && Digits(text, whole + 1) == text.size();
}

bool IsThinkAnswer(std::string_view text) {
  text = Stripped(text);
  if (!Consume(text, "<think>") || !ConsumeBody(text, "</think>")) return false;
  text = Stripped(text);
  return Consume(text, "<answer>") && ConsumeBody(text, "</answer>") && text.empty();
}

bool HasCodeBlock(std::string_view text) {
  for (size_t at = text.find("```"); at != std::string_view::npos; at = text.find("```", at + 1)) {
    size_t end = at + 3;
    while (end < text.size() &&
           (IsAlnum(text[end]) || text[end] == '_' || text[end] == '+' || text[end] == '-')) {
      ++end;
    }
    while (end < text.size() && (text[end] == ' ' || text[end] == '\t')) ++end;
    if (end < text.size() && text[end] == '\n') {
      return text.find("```", end + 1) != std::string_view::npos;
    }
  }
  return false;
}

bool IsJsonObject(std::string_view text) {
  return Stripped(text).starts_with('{') && nlohmann::json::accept(text);
}

}  // namespace forebay::env
