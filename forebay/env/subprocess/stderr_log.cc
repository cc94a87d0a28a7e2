#include "forebay/env/subprocess/stderr_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "forebay/base/file.h"

namespace forebay::env {

void StderrTail::Add(std::string_view bytes) {
  bytes_.append(bytes);
  if (bytes_.size() <= bytes_max_) return;
  bytes_.erase(0, bytes_.size() - bytes_max_);
  cut_ = true;
}

std::string StderrTail::Lines() const {
  std::string_view lines = bytes_;
  while (lines.ends_with('\n')) lines.remove_suffix(1);
  const size_t newline = lines.find('\n');
  if (cut_ && newline != std::string_view::npos) lines.remove_prefix(newline + 1);
  return std::string(lines);
}

void RotatingLog::Append(std::string_view bytes) {
  if (path_.empty() || bytes.empty()) return;
  if (file_.valid() && bytes_ + static_cast<int64_t>(bytes.size()) > bytes_max_) {
    file_.Close();
    if (std::rename(path_.c_str(), (path_ + ".1").c_str()) != 0)
      path_.clear();  // never grow without bound
    if (path_.empty()) return;
  }
  if (!file_.valid()) {
    file_ = Fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    struct stat info{};
    if (!file_.valid() || fstat(file_.get(), &info) != 0) return;
    bytes_ = info.st_size;
  }
  while (!bytes.empty()) {
    const ssize_t n = write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    bytes_ += n;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace forebay::env
