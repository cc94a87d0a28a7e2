// Where an environment process's standard error goes: its last lines into error messages, all of it
// into a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/file.h"

namespace forebay::env {

// The last bytes of a stream.
class StderrTail {
 public:
  explicit StderrTail(size_t bytes_max) : bytes_max_(bytes_max) {}
  void Add(std::string_view bytes);
  // Whole lines, unless one line is longer than the limit; without the last newline; "" if there
  // were none.
  std::string Lines() const;

 private:
  size_t bytes_max_;
  std::string bytes_;
  bool cut_ = false;  // the first line in bytes_ may lack its beginning
};

// A file that is appended to and renamed to PATH.1 (replacing it) when it is full, so that it never
// takes more than twice `bytes_max`. A failed write is dropped: diagnostics must not end an
// episode.
class RotatingLog {
 public:
  RotatingLog(std::string path, int64_t bytes_max)
      : path_(std::move(path)), bytes_max_(bytes_max) {}
  // No effect when the path is "".
  void Append(std::string_view bytes);

 private:
  std::string path_;
  int64_t bytes_max_;
  int64_t bytes_ = 0;
  Fd file_;
};

}  // namespace forebay::env
