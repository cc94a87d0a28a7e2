#include "forebay/base/sse.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {

// Lines end with \n, \r or \r\n; a \r at the end of what has come may be half of a \r\n, whose
// other half is then skipped when it comes.
bool SseParser::TakeLine(std::string* line) {
  if (skip_newline_ && begin_ < bytes_.size()) {
    if (bytes_[begin_] == '\n') ++begin_;
    skip_newline_ = false;
  }
  scanned_ = std::max(scanned_, begin_);
  const size_t end = bytes_.find_first_of("\r\n", scanned_);
  if (end == std::string::npos) {
    scanned_ = bytes_.size();
    return false;
  }
  line->assign(bytes_, begin_, end - begin_);
  skip_newline_ = bytes_[end] == '\r';
  begin_ = scanned_ = end + 1;
  return true;
}

Result<std::optional<SseEvent>> SseParser::Next() {
  std::string line;
  while (TakeLine(&line)) {
    if (event_.data.size() + line.size() > event_bytes_max_) break;
    if (line.empty()) {
      SseEvent event = std::exchange(event_, {});
      if (!std::exchange(has_data_, false)) continue;  // an event without data is none
      return std::optional<SseEvent>(std::move(event));
    }
    const size_t colon = line.find(':');
    const std::string_view field = std::string_view(line).substr(0, colon);
    std::string_view value;
    if (colon != std::string::npos) value = std::string_view(line).substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (field == "data") {
      if (has_data_) event_.data += '\n';
      has_data_ = true;
      event_.data += value;
    } else if (field == "event") {
      event_.event = value;
    } else if (field == "id") {
      event_.id = value;
    }
  }
  // All of it is parsed, or one event is too long.
  if (bytes_.size() - begin_ + event_.data.size() > event_bytes_max_) {
    return ResourceExhausted(
        fmt::format("a server-sent event is longer than {} bytes", event_bytes_max_));
  }
  bytes_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = 0;
  return std::optional<SseEvent>();
}

Task<Result<std::optional<SseEvent>>> SseReader::Next() {
  while (true) {
    Result<std::optional<SseEvent>> event = parser_.Next();
    if (!event.ok() || event->has_value()) co_return event;
    Task<Result<std::optional<std::string>>> reading = stream_->Read();
    Result<std::optional<std::string>> bytes = co_await std::move(reading);
    if (!bytes.ok()) co_return bytes.status();
    if (!bytes->has_value()) co_return std::optional<SseEvent>();
    parser_.Feed(**bytes);
  }
}

std::string SseMessage(std::string_view data) {
  std::string out;
  while (true) {
    const size_t end = data.find('\n');
    out += "data: ";
    out += data.substr(0, end);
    out += '\n';
    if (end == std::string_view::npos) break;
    data.remove_prefix(end + 1);
  }
  out += '\n';
  return out;
}

}  // namespace forebay
