// Addresses, listening and connecting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::buffer {

struct Address {
  bool is_unix = false;
  std::string path;  // Unix
  std::string host;  // TCP, without brackets
  uint16_t port = 0;
  std::string ToString() const;
};
// "unix:/path" or "tcp:host:port" ("tcp:[::1]:7000"). kInvalidArgument.
Result<Address> ParseAddress(std::string_view text);

// True when every address that the host stands for is a loopback one.
Result<bool> IsLoopback(const Address& address);

// A non-blocking listening socket; the port is filled in where it was 0. A Unix socket gets mode
// 0600 before anybody can connect, and replaces one that nobody listens on; kAlreadyExists if
// somebody does.
Result<Fd> Listen(Address& address);

// Connected and non-blocking, with large buffers, or kUnavailable / kDeadlineExceeded.
Result<Fd> ConnectSocket(const Address& address, TimePoint deadline);

// Large buffers, no delay, keepalive.
void TuneSocket(int fd, bool is_unix);

// Waits until fd is readable / writable or the deadline has passed (false).
bool WaitReadable(int fd, TimePoint deadline);
bool WaitWritable(int fd, TimePoint deadline);

}  // namespace forebay::buffer
