#include "forebay/base/socket.h"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay {
namespace {

constexpr int kBacklog = 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> Resolve(const SocketAddress& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return InvalidArgument(
        fmt::format("the host '{}' has no address: {}", address.host, gai_strerror(error)));
  }
  return Addresses(list);
}

Result<sockaddr_un> UnixName(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(out.sun_path)) {
    return InvalidArgument(fmt::format("the socket path '{}' has {} bytes; 1 to {} are possible",
                                       path, path.size(), sizeof(out.sun_path) - 1));
  }
  std::memcpy(out.sun_path, path.data(), path.size());
  return out;
}

bool SomebodyListens(const sockaddr_un& name) {
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // EAGAIN: its queue is full.
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 ||
         errno == EAGAIN;
}

Result<Fd> ListenUnix(const SocketAddress& address) {
  FB_ASSIGN_OR_RETURN(const sockaddr_un name, UnixName(address.path));
  struct stat info{};
  if (lstat(address.path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return AlreadyExists(
          fmt::format("'{}' is there and is no socket: give another path", address.path));
    }
    if (SomebodyListens(name)) {
      return AlreadyExists(fmt::format("another process serves on '{}'", address.path));
    }
    unlink(address.path.c_str());
  }
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus("cannot make a socket", errno);
  // bind gives the file the socket's own mode.
  if (fchmod(fd.get(), 0600) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoStatus(fmt::format("cannot listen on '{}'", address.path), errno);
  }
  return fd;
}

}  // namespace

std::string SocketAddress::ToString() const {
  if (is_unix) return "unix:" + path;
  const bool brackets = host.find(':') != std::string::npos;
  return fmt::format("tcp:{}{}{}:{}", brackets ? "[" : "", host, brackets ? "]" : "", port);
}

Result<SocketAddress> ParseSocketAddress(std::string_view text) {
  SocketAddress address;
  if (text.starts_with("unix:")) {
    address.is_unix = true;
    address.path = text.substr(5);
    FB_RETURN_IF_ERROR(UnixName(address.path).status());
    return address;
  }
  const Status wrong = InvalidArgument(fmt::format(
      "'{}' is no address: write unix:/path/to.sock or tcp:host:port (tcp:[::1]:7000)", text));
  if (!text.starts_with("tcp:")) return wrong;
  text.remove_prefix(4);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (host.empty() || error != std::errc() || end != port.data() + port.size()) return wrong;
  address.host = host;
  return address;
}

Result<bool> IsLoopback(const SocketAddress& address) {
  if (address.is_unix) return true;
  FB_ASSIGN_OR_RETURN(const Addresses list, Resolve(address));
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    if (item->ai_family == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(item->ai_addr);
      if ((ntohl(in->sin_addr.s_addr) >> 24) != 127) return false;
    } else if (item->ai_family == AF_INET6) {
      const auto* in = reinterpret_cast<const sockaddr_in6*>(item->ai_addr);
      if (!IN6_IS_ADDR_LOOPBACK(&in->sin6_addr)) return false;
    } else {
      return false;
    }
  }
  return true;
}

Result<Fd> ListenOn(SocketAddress& address) {
  if (address.is_unix) return ListenUnix(address);
  FB_ASSIGN_OR_RETURN(const Addresses list, Resolve(address));
  int error = 0;
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    Fd fd(socket(item->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!fd.valid() || bind(fd.get(), item->ai_addr, item->ai_addrlen) != 0 ||
        listen(fd.get(), kBacklog) != 0) {
      error = errno;
      continue;
    }
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    address.port = ntohs(bound.ss_family == AF_INET
                             ? reinterpret_cast<const sockaddr_in*>(&bound)->sin_port
                             : reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port);
    return fd;
  }
  if (error == EADDRINUSE) {
    return AlreadyExists(fmt::format("another process listens on {}", address.ToString()));
  }
  return ErrnoStatus(fmt::format("cannot listen on {}", address.ToString()), error);
}

}  // namespace forebay
