#include "forebay/buffer/service/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::buffer {
namespace {

constexpr int kSocketBufferBytes = 4 << 20;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> Resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return Unavailable(
        fmt::format("the host '{}' has no address: {}", address.host, gai_strerror(error)));
  }
  return Addresses(list);
}

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(out.sun_path)) {
    return InvalidArgument(fmt::format("the socket path '{}' has {} bytes; 1 to {} are possible",
                                       path, path.size(), sizeof(out.sun_path) - 1));
  }
  std::memcpy(out.sun_path, path.data(), path.size());
  return out;
}

bool Wait(int fd, int16_t events, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Now()).count();
    pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
    const int n = poll(&poll_fd, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (n > 0) return true;
    if (n == 0) return false;
    if (errno != EINTR) return true;  // the next call on fd tells
  }
}

// A buffer above the limit of ordinary users where we may, else up to it.
void SetBuffer(int fd, int force, int ordinary) {
  const int bytes = kSocketBufferBytes;
  if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof(bytes)) != 0) {
    setsockopt(fd, SOL_SOCKET, ordinary, &bytes, sizeof(bytes));
  }
}

Result<Fd> ConnectTo(int family, const sockaddr* address, socklen_t size, TimePoint deadline) {
  Fd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus("cannot make a socket", errno);
  TuneSocket(fd.get(), family == AF_UNIX);
  int error = connect(fd.get(), address, size) == 0 ? 0 : errno;
  // A Unix listener whose queue is full says EAGAIN at once.
  while (error == EAGAIN && Now() < deadline) {
    usleep(2000);
    error = connect(fd.get(), address, size) == 0 ? 0 : errno;
  }
  if (error == EINPROGRESS) {
    if (!WaitWritable(fd.get(), deadline)) return DeadlineExceeded("no answer");
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) {
    return Unavailable(std::error_code(error, std::generic_category()).message());
  }
  return fd;
}

}  // namespace

std::string Address::ToString() const {
  if (is_unix) return "unix:" + path;
  const bool brackets = host.find(':') != std::string::npos;
  return fmt::format("tcp:{}{}{}:{}", brackets ? "[" : "", host, brackets ? "]" : "", port);
}

Result<Address> ParseAddress(std::string_view text) {
  Address address;
  if (text.starts_with("unix:")) {
    address.is_unix = true;
    address.path = text.substr(5);
    FB_RETURN_IF_ERROR(UnixAddress(address.path).status());
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

Result<bool> IsLoopback(const Address& address) {
  if (address.is_unix) return true;
  FB_ASSIGN_OR_RETURN(const Addresses list, Resolve(address, true));
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

namespace {

Result<Fd> ListenUnix(const Address& address) {
  FB_ASSIGN_OR_RETURN(const sockaddr_un name, UnixAddress(address.path));
  const auto* raw = reinterpret_cast<const sockaddr*>(&name);
  struct stat info{};
  if (lstat(address.path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return AlreadyExists(
          fmt::format("'{}' is there and is no socket: give another path", address.path));
    }
    if (ConnectTo(AF_UNIX, raw, sizeof(name), Now() + std::chrono::seconds(1)).ok()) {
      return AlreadyExists(fmt::format("another process serves on '{}'", address.path));
    }
    unlink(address.path.c_str());
  }
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus("cannot make a socket", errno);
  // Made aside, so that whoever sees the file can connect: between bind and listen it would be
  // refused.
  const std::string aside = address.path + ".new";
  const Result<sockaddr_un> aside_name = UnixAddress(aside);
  const bool renames = aside_name.ok();  // else the path is too long for that
  if (renames) {
    unlink(aside.c_str());
    raw = reinterpret_cast<const sockaddr*>(&*aside_name);
  }
  // bind gives the file the socket's own mode.
  if (fchmod(fd.get(), 0600) != 0 || bind(fd.get(), raw, sizeof(name)) != 0 ||
      listen(fd.get(), 512) != 0 || (renames && rename(aside.c_str(), address.path.c_str()) != 0)) {
    const int error = errno;
    if (renames) unlink(aside.c_str());
    return ErrnoStatus(fmt::format("cannot listen on '{}'", address.path), error);
  }
  return fd;
}

}  // namespace

Result<Fd> Listen(Address& address) {
  if (address.is_unix) return ListenUnix(address);
  FB_ASSIGN_OR_RETURN(const Addresses list, Resolve(address, true));
  int error = 0;
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    Fd fd(socket(item->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!fd.valid() || bind(fd.get(), item->ai_addr, item->ai_addrlen) != 0 ||
        listen(fd.get(), 512) != 0) {
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

Result<Fd> ConnectSocket(const Address& address, TimePoint deadline) {
  const auto with_context = [&](const Status& status) {
    return status.WithContext(fmt::format("cannot reach the buffer at {}", address.ToString()));
  };
  if (address.is_unix) {
    FB_ASSIGN_OR_RETURN(const sockaddr_un name, UnixAddress(address.path));
    Result<Fd> fd =
        ConnectTo(AF_UNIX, reinterpret_cast<const sockaddr*>(&name), sizeof(name), deadline);
    if (!fd.ok()) return with_context(fd.status());
    return fd;
  }
  FB_ASSIGN_OR_RETURN(const Addresses list, Resolve(address, false));
  Status last = Unavailable("no address");
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    Result<Fd> fd = ConnectTo(item->ai_family, item->ai_addr, item->ai_addrlen, deadline);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return with_context(last);
}

void TuneSocket(int fd, bool is_unix) {
  SetBuffer(fd, SO_SNDBUFFORCE, SO_SNDBUF);
  if (is_unix) return;  // only the sender's buffer counts there
  SetBuffer(fd, SO_RCVBUFFORCE, SO_RCVBUF);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

bool WaitReadable(int fd, TimePoint deadline) { return Wait(fd, POLLIN, deadline); }
bool WaitWritable(int fd, TimePoint deadline) { return Wait(fd, POLLOUT, deadline); }

}  // namespace forebay::buffer
