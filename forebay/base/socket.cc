#include "forebay/base/socket.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay {
namespace {

constexpr int kBacklog = 1024;

Result<SocketName> UnixName(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return InvalidArgument(fmt::format("the socket path '{}' has {} bytes; 1 to {} are possible",
                                       path, path.size(), sizeof(name.sun_path) - 1));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  SocketName out{.size = sizeof(name)};
  std::memcpy(&out.name, &name, sizeof(name));
  return out;
}

bool SomebodyListens(const SocketName& name) {
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // EAGAIN: its queue is full.
  return connect(fd.get(), name.get(), name.size) == 0 || errno == EAGAIN;
}

Result<Fd> ListenUnix(const SocketAddress& address) {
  FB_ASSIGN_OR_RETURN(SocketName name, UnixName(address.path));
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
  // Made aside, so that whoever sees the file can connect: between bind and listen it would be
  // refused. A name of this socket's own, which nobody else can hold.
  static std::atomic<uint32_t> made = 0;
  const std::string aside = fmt::format("{}.{}.{}", address.path, getpid(), made++);
  const Result<SocketName> aside_name = UnixName(aside);
  const bool renames = aside_name.ok();  // else the path is too long for that
  if (renames) name = *aside_name;
  // bind gives the file the socket's own mode.
  const bool bound = fchmod(fd.get(), 0600) == 0 && bind(fd.get(), name.get(), name.size) == 0;
  // Another server may have come meanwhile: its socket stays.
  if (!bound || listen(fd.get(), kBacklog) != 0 ||
      (renames &&
       renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, address.path.c_str(), RENAME_NOREPLACE) != 0)) {
    const int error = errno;
    if (renames && bound) unlink(aside.c_str());
    return ErrnoStatus(fmt::format("cannot listen on '{}'", address.path), error);
  }
  return fd;
}

uint16_t PortOf(const SocketName& name) {
  return ntohs(name.family() == AF_INET
                   ? reinterpret_cast<const sockaddr_in*>(&name.name)->sin_port
                   : reinterpret_cast<const sockaddr_in6*>(&name.name)->sin6_port);
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

Result<std::vector<SocketName>> SocketNames(const SocketAddress& address) {
  std::vector<SocketName> out;
  if (address.is_unix) {
    FB_ASSIGN_OR_RETURN(const SocketName name, UnixName(address.path));
    out.push_back(name);
    return out;
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) {
    std::string why =
        fmt::format("the host '{}' has no address: {}", address.host, gai_strerror(error));
    return error == EAI_NONAME ? InvalidArgument(std::move(why)) : Unavailable(std::move(why));
  }
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    SocketName& name = out.emplace_back();
    name.size = item->ai_addrlen;
    std::memcpy(&name.name, item->ai_addr, item->ai_addrlen);
  }
  freeaddrinfo(list);
  return out;
}

Result<bool> IsLoopback(const SocketAddress& address) {
  if (address.is_unix) return true;
  FB_ASSIGN_OR_RETURN(const std::vector<SocketName> names, SocketNames(address));
  return std::ranges::all_of(names, [](const SocketName& name) {
    if (name.family() == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(&name.name);
      return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
    }
    if (name.family() != AF_INET6) return false;
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&name.name)->sin6_addr) != 0;
  });
}

Result<Fd> ListenOn(SocketAddress& address) {
  if (address.is_unix) return ListenUnix(address);
  FB_ASSIGN_OR_RETURN(const std::vector<SocketName> names, SocketNames(address));
  int error = 0;
  for (const SocketName& name : names) {
    Fd fd(socket(name.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!fd.valid() || bind(fd.get(), name.get(), name.size) != 0 ||
        listen(fd.get(), kBacklog) != 0) {
      error = errno;
      continue;
    }
    SocketName bound{.size = sizeof(sockaddr_storage)};
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.name), &bound.size);
    address.port = PortOf(bound);
    return fd;
  }
  if (error == EADDRINUSE) {
    return AlreadyExists(fmt::format("another process listens on {}", address.ToString()));
  }
  return ErrnoStatus(fmt::format("cannot listen on {}", address.ToString()), error);
}

}  // namespace forebay
