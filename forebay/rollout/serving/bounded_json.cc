#include "forebay/rollout/serving/bounded_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/base/json_depth.h"

namespace forebay::rollout::serving {
namespace {

using Json = nlohmann::ordered_json;

// Each name of an object is looked for among those before it, as their order is kept: the time to
// read an object grows with the square of its members.
constexpr int64_t kMembersMax = 1024;

constexpr size_t kBeforeBytes = 24;  // that are quoted of what stands before a mistake
constexpr size_t kReasonBytesMax = 160;

// The first mistake of a text; its values are dropped as they come.
class FirstMistake final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FirstMistake(std::string_view text) : text_(text) {}
  size_t at() const { return at_; }
  const std::string& reason() const { return reason_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }

  // `position` counts the bytes that were read, the end of the text as one.
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kOutOfRange = 406;
    at_ = std::min(position == 0 ? 0 : position - 1, text_.size());
    const std::string_view what = error.what();
    const auto has = [&](std::string_view text) { return what.find(text) != what.npos; };
    if (error.id == kOutOfRange) {
      at_ = position > token.size() ? position - token.size() : 0;
      reason_ = fmt::format("the number {} is out of the range of a double", token.substr(0, 40));
    } else if (has("ill-formed UTF-8")) {
      reason_ = "a byte is not UTF-8";
    } else if (at_ < text_.size() && text_[at_] == '\0') {
      reason_ = "a NUL byte";  // which is the end for the parser
    } else if (at_ == text_.size()) {
      reason_ = has("missing closing quote") ? "the text ends within a string"
                                             : "the text ends too early";
    } else if (has("; expected end of input")) {
      reason_ = "there is more text after the end of the value";
    } else {
      // "[json...] parse error at line 1, column 3: syntax error while parsing value - reason"
      size_t begin = what.find(" - ");
      begin = begin == what.npos ? what.rfind(": ") + 2 : begin + 3;
      std::string reason(what.substr(begin, what.find("; last read", begin) - begin));
      if (const size_t expected = what.rfind("; expected "); expected != what.npos) {
        reason += what.substr(expected);
      }
      reason_ = reason.substr(0, kReasonBytesMax);
    }
    return false;
  }

 private:
  const std::string_view text_;
  size_t at_ = 0;
  std::string reason_;
};

// The bytes before `at` as they are, less those that are no characters of a line.
std::string Before(std::string_view text, size_t at) {
  size_t begin = at > kBeforeBytes ? at - kBeforeBytes : 0;
  // Whole characters.
  while (begin < at && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) ++begin;
  std::string out(text.substr(begin, at - begin));
  std::ranges::replace_if(out, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return out;
}

std::string At(std::string_view text, size_t at, std::string_view reason) {
  if (at == 0) return fmt::format("at byte 0: {}", reason);
  return fmt::format("at byte {}, after '{}': {}", at, Before(text, at), reason);
}

std::string ProblemOf(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) return "is empty, where JSON was expected";
  FirstMistake mistake(text);
  if (nlohmann::json::sax_parse(text, &mistake)) return "is no JSON";
  return "is no JSON: " + At(text, mistake.at(), mistake.reason());
}

}  // namespace

std::optional<Json> ParseBounded(std::string_view text, std::string* problem) {
  const auto fail = [&](const auto& why) -> std::optional<Json> {
    if (problem != nullptr) *problem = why();
    return std::nullopt;
  };
  size_t at = 0;
  if (TooDeep(text, &at)) {
    return fail([&] {
      return "cannot be read: " +
             At(text, at, fmt::format("values are nested more than {} deep", kJsonDepthMax));
    });
  }
  if (TooCrowded(text, kMembersMax, &at)) {
    return fail([&] {
      return "cannot be read: " +
             At(text, at, fmt::format("an object has more than {} members", kMembersMax));
    });
  }
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return fail([&] { return ProblemOf(text); });
  return value;
}

}  // namespace forebay::rollout::serving
