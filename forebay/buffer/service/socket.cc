#include "forebay/buffer/service/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/socket.h"
#include "forebay/base/status.h"

namespace forebay::buffer {
namespace {

constexpr int kSocketBufferBytes = 4 << 20;

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

Result<Fd> ConnectTo(const SocketName& name, TimePoint deadline) {
  Fd fd(socket(name.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus("cannot make a socket", errno);
  TuneSocket(fd.get(), name.family() == AF_UNIX);
  int error = connect(fd.get(), name.get(), name.size) == 0 ? 0 : errno;
  // A Unix listener whose queue is full says EAGAIN at once.
  while (error == EAGAIN && Now() < deadline) {
    usleep(2000);
    error = connect(fd.get(), name.get(), name.size) == 0 ? 0 : errno;
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

Result<Fd> ConnectSocket(const Address& address, TimePoint deadline) {
  const auto with_context = [&](const Status& status) {
    return status.WithContext(fmt::format("cannot reach the buffer at {}", address.ToString()));
  };
  const Result<std::vector<SocketName>> names = SocketNames(address);
  // A host without an address today may have one when the client tries again.
  if (!names.ok() && address.is_unix) return names.status();
  if (!names.ok()) return with_context(Unavailable(names.status().message()));
  Status last = Unavailable("no address");
  for (const SocketName& name : *names) {
    Result<Fd> fd = ConnectTo(name, deadline);
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
