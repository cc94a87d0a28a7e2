// ReadAvailable: what a pipe holds now, bounded, so that a loud program does not take the loop.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace forebay::env {

inline constexpr int64_t kReadBytesPerTurn = 256 * 1024;  // then the loop's other work comes first

// Feeds what is there to `sink` while that says true, up to about `bytes_max` bytes. False at the
// end of the stream.
template <typename Sink>
bool ReadAvailable(int fd, int64_t bytes_max, Sink sink) {
  std::array<char, size_t{64} * 1024> buffer;  // NOLINT: filled by the read
  while (bytes_max > 0) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) return false;
    bytes_max -= n;
    if (!sink(std::string_view(buffer.data(), static_cast<size_t>(n)))) return true;
  }
  return true;
}

}  // namespace forebay::env
