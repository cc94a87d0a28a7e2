// Addresses as text and as the kernel knows them, and listening on them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

// What the kernel calls an address.
struct SocketName {
  sockaddr_storage name{};
  socklen_t size = 0;
  int family() const { return name.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};
// All that the address stands for, in the order in which to try them: one for a Unix socket, at
// least one for a host. Asks the name service, so it may block. kInvalidArgument: there is no such
// host, or the path is too long; kUnavailable: the name service does not answer.
Result<std::vector<SocketName>> SocketNames(const SocketAddress& address);

// True when every address that the host stands for is a loopback one. May block, as SocketNames:
// for the start of a program.
Result<bool> IsLoopback(const SocketAddress& address);

// A non-blocking listening socket; the port is filled in where it was 0. A Unix socket gets mode
// 0600, whoever sees its file can connect, and it replaces one that nobody listens on;
// kAlreadyExists if somebody does. For the start of a program, as IsLoopback.
Result<Fd> ListenOn(SocketAddress& address);

}  // namespace forebay
