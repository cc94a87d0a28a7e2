#include "forebay/env/tool_calls.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/text.h"
#include "forebay/env/tools/call_json.h"

namespace forebay::env {
namespace {

constexpr std::string_view kTagBegin = "<tool_call>";
constexpr std::string_view kTagEnd = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::array<std::string_view, 2> kPythonTagEnds = {"<|eom_id|>", "<|eot_id|>"};
constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kFence = "```";
constexpr size_t kFenceLineBytesMax = 64;  // a longer first line names no language
constexpr size_t kBareKeyBytesMax = 32;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// `text` ends before it can be told whether it begins with `mark`.
bool MayBegin(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

enum class Guess { kWait, kText, kCalls };

// What begins with a bracket at the start of a line: an object whose first key is one of a call's,
// or a list of these.
Guess GuessBare(std::string_view text) {
  size_t at = 0;
  const auto skip = [&text, &at] {
    while (at < text.size() && IsSpace(text[at])) ++at;
    return at < text.size();
  };
  if (text[at] == '[') {
    ++at;
    if (!skip()) return Guess::kWait;
    if (text[at] != '{') return Guess::kText;
  }
  ++at;
  if (!skip()) return Guess::kWait;
  if (text[at] != '"') return Guess::kText;
  const size_t end = text.find('"', ++at);
  const std::string_view key = text.substr(at, end == std::string_view::npos ? end : end - at);
  if (end == std::string_view::npos) {
    return key.size() > kBareKeyBytesMax ? Guess::kText : Guess::kWait;
  }
  constexpr std::array<std::string_view, 6> kKeys = {"name",      "type", "function",
                                                     "arguments", "id",   "parameters"};
  return std::ranges::find(kKeys, key) != kKeys.end() ? Guess::kCalls : Guess::kText;
}

// Where the first of `marks` begins at or after `from`, its size in `bytes`; npos if none does.
size_t FindFirst(std::string_view text, size_t from, std::span<const std::string_view> marks,
                 size_t* bytes) {
  size_t first = std::string_view::npos;
  for (const std::string_view mark : marks) {
    const size_t at = text.find(mark, from);
    if (at < first) {
      first = at;
      *bytes = mark.size();
    }
  }
  return first;
}

// From where on to search again once more text has come.
size_t KeepFrom(std::string_view text, size_t mark_bytes) {
  return text.size() < mark_bytes ? 0 : text.size() - mark_bytes + 1;
}

}  // namespace

void ToolCallParser::JsonState::Take(char c) {
  if (in_string) {
    if (escaped) {
      escaped = false;
    } else if (c == '\\') {
      escaped = true;
    } else if (c == '"') {
      in_string = false;
    }
  } else if (c == '"') {
    in_string = true;
  } else if (c == '{' || c == '[') {
    ++depth;
  } else if (c == '}' || c == ']') {
    --depth;
  }
}

std::vector<ToolEvent> ToolCallParser::Feed(std::string_view piece) {
  pending_.erase(0, taken_);
  taken_ = 0;
  pending_.append(piece);
  while (Advance(/*final=*/false)) {
  }
  return std::exchange(events_, {});
}

std::vector<ToolEvent> ToolCallParser::Finish() {
  while (Advance(/*final=*/true)) {
  }
  if (!space_.empty() && !after_call_) {
    const std::string rest = std::exchange(space_, {});
    events_.push_back({.kind = ToolEvent::Kind::kText, .text = rest});
  }
  return std::exchange(events_, {});
}

bool ToolCallParser::Advance(bool final) {
  if (taken_ == pending_.size()) return false;
  switch (mode_) {
    case Mode::kText:
      return AdvanceText(final);
    case Mode::kThink:
      return AdvanceThink(final);
    case Mode::kTags:
      return AdvanceTags(final);
    case Mode::kPythonTag:
      return AdvancePythonTag(final);
    case Mode::kFence:
      return AdvanceFence(final);
    case Mode::kBare:
      return AdvanceBare(final);
  }
  return false;
}

void ToolCallParser::Enter(Mode mode) {
  mode_ = mode;
  scanned_ = 0;
  json_ = {};
  body_ = 0;
  end_in_string_ = 0;
}

bool ToolCallParser::AdvanceText(bool final) {
  const std::string_view text = Rest();
  if (calls_ >= kToolCallsMax) {
    TakeText(text.size());
    return false;
  }
  bool line_start = line_start_;
  bool at_start = at_start_;
  bool after_call = after_call_;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    const auto begins = [&](bool wanted, std::string_view mark, Mode mode) {
      if (!wanted || !rest.starts_with(mark)) return false;
      TakeText(i);
      Enter(mode);
      return true;
    };
    const auto may_begin = [&](bool wanted, std::string_view mark) {
      if (final || !wanted || !MayBegin(rest, mark)) return false;
      TakeText(i);
      return true;
    };
    const char c = rest.front();
    if (c == '<') {
      if (begins(at_start, kThinkBegin, Mode::kThink) ||
          begins(syntax_.tags, kTagBegin, Mode::kTags) ||
          begins(syntax_.python_tag, kPythonTag, Mode::kPythonTag)) {
        return true;
      }
      if (may_begin(at_start, kThinkBegin) || may_begin(syntax_.tags, kTagBegin) ||
          may_begin(syntax_.python_tag, kPythonTag)) {
        return false;
      }
    } else if (c == '`') {
      if (begins(syntax_.fences, kFence, Mode::kFence)) return true;
      if (may_begin(syntax_.fences, kFence)) return false;
    } else if ((c == '{' || c == '[') && line_start && !in_code_ && syntax_.bare_json) {
      const Guess guess = GuessBare(rest);
      if (guess == Guess::kCalls) {
        TakeText(i);
        Enter(Mode::kBare);
        return true;
      }
      if (guess == Guess::kWait && !final) {
        TakeText(i);
        return false;
      }
    }
    if (c == '\n') {
      line_start = true;
    } else if (!IsSpace(c) && !(c == ';' && after_call)) {  // Llama separates calls by it
      line_start = at_start = after_call = false;
    }
  }
  TakeText(text.size());
  return false;
}

bool ToolCallParser::AdvanceThink(bool final) {
  const size_t end = Rest().find(kThinkEnd);
  if (end == std::string::npos) {
    TakeText(final ? Rest().size() : KeepFrom(Rest(), kThinkEnd.size()));
    return false;
  }
  TakeText(end + kThinkEnd.size());
  line_start_ = true;
  Enter(Mode::kText);
  return true;
}

bool ToolCallParser::AdvanceTags(bool final) {
  const std::string_view text = Rest();
  if (scanned_ == 0) scanned_ = kTagBegin.size();
  size_t end = 0;
  for (; scanned_ < text.size(); ++scanned_) {
    const char c = text[scanned_];
    if (c == '<') {
      const std::string_view rest = text.substr(scanned_);
      if (rest.starts_with(kTagEnd)) {
        if (!json_.in_string) {
          end = scanned_;
          break;
        }
        if (end_in_string_ == 0) end_in_string_ = scanned_;
      } else if (!final && MayBegin(rest, kTagEnd)) {
        return TooLong(final);
      }
    }
    json_.Take(c);
  }
  if (end == 0 && !final) return TooLong(final);
  // A string that never ended: then its first end mark was one.
  if (end == 0) end = end_in_string_;
  const bool closed = end != 0;
  if (!closed) end = text.size();
  const std::string_view body = text.substr(kTagBegin.size(), end - kTagBegin.size());
  TakeCalls(closed ? end + kTagEnd.size() : end, body, /*surely=*/true, closed);
  return true;
}

bool ToolCallParser::AdvancePythonTag(bool final) {
  const std::string_view text = Rest();
  size_t mark = 0;
  const size_t end = FindFirst(text, std::max(scanned_, kPythonTag.size()), kPythonTagEnds, &mark);
  if (end == std::string_view::npos && !final) {
    scanned_ = KeepFrom(text, kPythonTagEnds[0].size());
    return TooLong(final);
  }
  const size_t size = end == std::string_view::npos ? text.size() : end;
  const std::string_view body = text.substr(kPythonTag.size(), size - kPythonTag.size());
  TakeCalls(size + mark, body, /*surely=*/true, /*complete=*/true);
  return true;
}

bool ToolCallParser::AdvanceFence(bool final) {
  const std::string_view text = Rest();
  if (body_ == 0) {
    const std::string_view line = text.substr(0, kFenceLineBytesMax);
    const size_t newline = line.find('\n');
    bool calls = !in_code_;
    if (calls) {
      if (newline == std::string_view::npos && line.size() < kFenceLineBytesMax && !final) {
        return false;
      }
      const std::string_view info = Trim(line.substr(kFence.size(), newline - kFence.size()));
      calls = newline != std::string_view::npos &&
              (info.empty() || info == "json" || info == "tool_call" || info == "tool_calls");
    }
    if (calls && syntax_.tags) {
      // Some models put a fence around their tags.
      const size_t first = text.find_first_not_of(" \t\r\n", newline);
      if (!final && (first == std::string_view::npos || MayBegin(text.substr(first), kTagBegin))) {
        return TooLong(final);
      }
      calls = first == std::string_view::npos || !text.substr(first).starts_with(kTagBegin);
    }
    if (!calls) {
      in_code_ = !in_code_;
      Enter(Mode::kText);
      TakeText(kFence.size());
      return true;
    }
    body_ = newline + 1;
    scanned_ = body_;
  }
  size_t end = 0;
  bool line_start = true;  // of the body's last line so far
  for (size_t i = scanned_; i-- > body_;) {
    if (text[i] == '\n') break;
    if (!IsSpace(text[i])) line_start = false;
  }
  for (; scanned_ < text.size(); ++scanned_) {
    const char c = text[scanned_];
    if (c == '`') {
      const std::string_view rest = text.substr(scanned_);
      // A newline is never inside a JSON string: at the start of a line it ends also broken ones.
      if (rest.starts_with(kFence) && (line_start || !json_.in_string)) {
        end = scanned_;
        break;
      }
      if (!final && MayBegin(rest, kFence)) return TooLong(final);
    }
    if (c == '\n') {
      line_start = true;
    } else if (!IsSpace(c)) {
      line_start = false;
    }
    json_.Take(c);
  }
  if (end == 0 && !final) return TooLong(final);
  const bool closed = end != 0;
  if (!closed) end = text.size();
  const bool surely = text.substr(kFence.size()).starts_with("tool_call");
  const std::string_view body = text.substr(body_, end - body_);
  TakeCalls(closed ? end + kFence.size() : end, body, surely, closed);
  return true;
}

bool ToolCallParser::AdvanceBare(bool final) {
  const std::string_view text = Rest();
  size_t size = 0;
  bool closed = false;
  for (; scanned_ < text.size() && size == 0; ++scanned_) {
    if (syntax_.tags && text[scanned_] == '<') {  // of a call behind an object that is not closed
      const std::string_view rest = text.substr(scanned_);
      if (rest.starts_with(kTagBegin)) {
        size = scanned_;
        break;
      }
      if (!final && MayBegin(rest, kTagBegin)) return TooLong(final);
    }
    json_.Take(text[scanned_]);
    closed = json_.depth <= 0 && !json_.in_string;
    if (closed) size = scanned_ + 1;
  }
  if (size == 0 && !final) return TooLong(final);
  if (size == 0) size = text.size();
  TakeCalls(size, text.substr(0, size), /*surely=*/false, closed);
  return true;
}

bool ToolCallParser::TooLong(bool final) {
  if (final || Rest().size() <= kToolCallBytesMax) return false;
  CutLongCall();
  return true;
}

// At the same place however the text came.
void ToolCallParser::CutLongCall() {
  EmitBroken(std::string(Rest().substr(0, kToolCallBytesMax)),
             fmt::format("it is longer than {} bytes", kToolCallBytesMax));
  taken_ += kToolCallBytesMax;
  line_start_ = at_start_ = false;
  Enter(Mode::kText);
}

void ToolCallParser::TakeText(size_t bytes) {
  const std::string_view text = Rest().substr(0, bytes);
  bool after_call = after_call_;
  for (const char c : text) {
    if (c == '\n') {
      line_start_ = true;
    } else if (!IsSpace(c) && !(c == ';' && after_call)) {
      line_start_ = at_start_ = after_call = false;
    }
  }
  EmitText(text);
  taken_ += bytes;
}

void ToolCallParser::TakeCalls(size_t bytes, std::string_view body, bool surely, bool complete) {
  if (bytes > kToolCallBytesMax) {
    CutLongCall();
    return;
  }
  ParsedCalls parsed = ParseCallJson(body, /*arguments_needed=*/mode_ != Mode::kTags);
  const bool failed = !parsed.reason.empty();
  const bool room = calls_ + parsed.calls.size() <= kToolCallsMax;
  const bool text = !room || (failed && !surely && !LooksLikeCall(body));
  Enter(Mode::kText);
  if (!room) calls_ = kToolCallsMax;
  if (text) {
    TakeText(bytes);
    return;
  }
  std::string all(Rest().substr(0, bytes));
  taken_ += bytes;
  at_start_ = false;
  line_start_ = true;
  if (failed) {
    if (!complete) parsed.reason = "the answer ended in the middle of it: " + parsed.reason;
    EmitBroken(std::move(all), std::move(parsed.reason));
    return;
  }
  for (ToolCall& call : parsed.calls) {
    events_.push_back({.kind = ToolEvent::Kind::kCall, .text = "", .call = std::move(call)});
    ++calls_;
  }
  space_.clear();
  after_call_ = true;
}

void ToolCallParser::EmitBroken(std::string text, std::string reason) {
  events_.push_back({.kind = ToolEvent::Kind::kBroken,
                     .text = std::move(text),
                     .call = {},
                     .reason = std::move(reason)});
  ++calls_;
  space_.clear();
  after_call_ = true;
}

void ToolCallParser::EmitText(std::string_view text) {
  if (after_call_) {
    while (!text.empty() && (IsSpace(text.front()) || text.front() == ';')) text.remove_prefix(1);
    if (text.empty()) return;
    after_call_ = false;
  }
  size_t end = text.size();
  while (end > 0 && IsSpace(text[end - 1])) --end;
  if (end > 0) {
    std::string now = std::exchange(space_, {});
    now.append(text.substr(0, end));
    if (!events_.empty() && events_.back().kind == ToolEvent::Kind::kText) {
      events_.back().text.append(now);
    } else {
      events_.push_back({.kind = ToolEvent::Kind::kText, .text = std::move(now)});
    }
  }
  space_.append(text.substr(end));
}

ToolAnswer ParseToolAnswer(std::string_view answer, const ToolSyntax& syntax) {
  ToolCallParser parser(syntax);
  ToolAnswer result;
  const auto add = [&result](std::vector<ToolEvent> events) {
    for (ToolEvent& event : events) {
      switch (event.kind) {
        case ToolEvent::Kind::kText:
          result.text.append(event.text);
          break;
        case ToolEvent::Kind::kCall:
          result.calls.push_back(std::move(event.call));
          break;
        case ToolEvent::Kind::kBroken:
          result.broken.push_back({.text = std::move(event.text),
                                   .reason = std::move(event.reason),
                                   .calls_before = result.calls.size()});
          break;
      }
    }
  };
  add(parser.Feed(answer));
  add(parser.Finish());
  return result;
}

}  // namespace forebay::env
