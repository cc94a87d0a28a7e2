// The lines that a pool and its environment processes exchange (docs/environment_protocol.md). Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env {

inline constexpr int kProtocolVersion = 1;
inline constexpr size_t kMessagesMax = 64;           // in one answer
inline constexpr size_t kRewardsMax = 64;            // components in one answer
inline constexpr size_t kNameBytesMax = 128;         // of a tool, a reward component
inline constexpr size_t kErrorBytesMax = 16 * 1024;  // of an error's message; the rest is cut

// What we send: one line each, without its newline. Bytes that are not UTF-8 become U+FFFD.
std::string HelloLine(int64_t episodes, size_t line_bytes_max);
std::string ResetLine(uint64_t id, uint64_t episode, const ResetRequest& request, Duration left);
std::string StepLine(uint64_t id, uint64_t episode, std::string_view action, Duration left);
std::string CloseLine(uint64_t episode);

// What a process sends.
struct HelloReply {
  std::string name;
};
struct AnswerReply {  // to a reset or step
  uint64_t id = 0;
  StepResult result;
};
struct ErrorReply {
  uint64_t id = 0;
  Status status;  // kInternal: the environment; kFailedPrecondition: the grader
};
struct ClosedReply {  // the episode holds no thread any more
  uint64_t episode = 0;
};
using Reply = std::variant<HelloReply, AnswerReply, ErrorReply, ClosedReply>;

// kDataLoss: not one JSON object of the protocol, with what is wrong and the line's beginning.
// kUnimplemented: a hello of another protocol version.
Result<Reply> ParseReply(std::string_view line);

// Cuts a stream of bytes into lines of at most `line_bytes_max` bytes; holds at most that many and
// what was fed since the last Next.
class LineSplitter {
 public:
  explicit LineSplitter(size_t line_bytes_max) : line_bytes_max_(line_bytes_max) {}

  void Feed(std::string_view bytes);
  // The next line without its newline, valid until the next call of this class; nullopt: none is
  // complete. kDataLoss when a line, complete or not, is too long; nothing can be read after that.
  Result<std::optional<std::string_view>> Next();
  // The line that Next has just given, for good; it is copied only if it is a small part of what is
  // held.
  std::string TakeLine();

 private:
  size_t line_bytes_max_;
  std::string bytes_;
  size_t last_ = 0;     // where the line begins that was given out last
  size_t begin_ = 0;    // of the first line not yet given out
  size_t scanned_ = 0;  // no newline in [begin_, scanned_)
};

}  // namespace forebay::env
