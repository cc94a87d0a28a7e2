// Addresses as text, and listening on them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay {

struct SocketAddress {
  bool is_unix = false;
  std::string path;  // Unix
  std::string host;  // TCP, without brackets
  uint16_t port = 0;
  std::string ToString() const;
};
// "unix:/path" or "tcp:host:port" ("tcp:[::1]:7000"). kInvalidArgument.
Result<SocketAddress> ParseSocketAddress(std::string_view text);

// True when every address that the host stands for is a loopback one. Asks the name service, so it
// may block: for the start of a program.
Result<bool> IsLoopback(const SocketAddress& address);

// A non-blocking listening socket; the port is filled in where it was 0. A Unix socket gets mode
// 0600 before anybody can connect, and replaces one that nobody listens on; kAlreadyExists if
// somebody does. For the start of a program, as IsLoopback.
Result<Fd> ListenOn(SocketAddress& address);

}  // namespace forebay
