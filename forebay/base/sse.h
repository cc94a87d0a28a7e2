// Server-sent events: the lines of a text/event-stream body as events, and back.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/base/http_client.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {

struct SseEvent {
  std::string event;  // "" is a plain message
  std::string data;   // lines joined by '\n'
  std::string id;     // of this event; "" if it has none
  friend bool operator==(const SseEvent&, const SseEvent&) = default;
};

// Cuts bytes into events. Holds at most `event_bytes_max` bytes and what was fed since the last
// Next.
class SseParser {
 public:
  explicit SseParser(size_t event_bytes_max = size_t{4} << 20)
      : event_bytes_max_(event_bytes_max) {}
  void Feed(std::string_view bytes) { bytes_.append(bytes); }
  // The next whole event; nullopt: none is complete. Comments are skipped. kResourceExhausted when
  // an event is too long.
  Result<std::optional<SseEvent>> Next();

 private:
  bool TakeLine(std::string* line);

  const size_t event_bytes_max_;
  std::string bytes_;
  size_t begin_ = 0, scanned_ = 0;
  bool skip_newline_ = false;
  SseEvent event_;
  bool has_data_ = false;
};

// The events of an answer whose body is an event stream.
class SseReader {
 public:
  explicit SseReader(std::unique_ptr<HttpStream> stream) : stream_(std::move(stream)) {}
  // nullopt at the end of the stream. Errors as of HttpStream::Read and SseParser::Next.
  Task<Result<std::optional<SseEvent>>> Next();
  HttpStream& stream() { return *stream_; }

 private:
  std::unique_ptr<HttpStream> stream_;
  SseParser parser_;
};

// "data: ...\n\n", one data line for each line of `data`.
std::string SseMessage(std::string_view data);

}  // namespace forebay
