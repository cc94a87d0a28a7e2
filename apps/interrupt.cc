#include "apps/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <thread>
#include <utility>

#include "forebay/base/check.h"

namespace forebay::apps {
namespace {

// What a signal handler may touch: one descriptor. Set while an Interrupt lives.
std::atomic<int> g_write_fd{-1};

void OnSignal(int signal) {
  const int saved = errno;
  const char byte = 1;
  (void)!::write(g_write_fd.load(), &byte, 1);
  std::signal(signal, SIG_DFL);  // the second one ends the process
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(std::function<void()> fn) : fn_(std::move(fn)) {
  int fds[2];
  FB_CHECK(::pipe2(fds, O_CLOEXEC) == 0, "a pipe for signals");
  FB_CHECK(g_write_fd.exchange(fds[1]) == -1, "one Interrupt at a time");
  thread_ = std::thread([this, read_fd = fds[0]] {
    char byte = 0;
    while (::read(read_fd, &byte, 1) < 0 && errno == EINTR) {
    }
    if (byte == 1) fn_();
    ::close(read_fd);
  });
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  hangup_ignored_ = std::signal(SIGHUP, OnSignal) == SIG_IGN;
  if (hangup_ignored_) std::signal(SIGHUP, SIG_IGN);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGHUP, hangup_ignored_ ? SIG_IGN : SIG_DFL);
  const int fd = g_write_fd.exchange(-1);
  ::close(fd);  // ends the thread's read
  thread_.join();
}

}  // namespace forebay::apps
