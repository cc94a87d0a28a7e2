#include "bench/recovery_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::bench {

Result<RoleProcess> RoleProcess::Start(const std::vector<std::string>& args,
                                       const std::string& word) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  Fd ours(ends[0]), theirs(ends[1]);
  ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  // A writer must not wait in a report for a reader that is busy.
  ::fcntl(theirs.get(), F_SETPIPE_SZ, 1 << 20);
  std::vector<std::string> words = {"forebay-bench", word};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus("cannot fork", errno);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    // A descriptor keeps its close-on-exec when it is duplicated onto itself.
    if (theirs.get() == kRoleReportFd) {
      ::fcntl(kRoleReportFd, F_SETFD, 0);
    } else if (::dup2(theirs.get(), kRoleReportFd) < 0) {
      ::_exit(1);
    }
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  return RoleProcess(pid, std::move(ours));
}

RoleProcess::RoleProcess(RoleProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      reports_(std::move(other.reports_)),
      unread_(std::move(other.unread_)) {}

RoleProcess& RoleProcess::operator=(RoleProcess&& other) noexcept {
  if (this == &other) return *this;
  (void)Kill();
  pid_ = std::exchange(other.pid_, -1);
  reports_ = std::move(other.reports_);
  unread_ = std::move(other.unread_);
  return *this;
}

RoleProcess::~RoleProcess() { (void)Kill(); }

Status RoleProcess::Kill() {
  if (pid_ <= 0) return OkStatus();
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return OkStatus();
  return Internal(WIFEXITED(status)
                      ? fmt::format("a process ended by itself with {}", WEXITSTATUS(status))
                      : fmt::format("a process died of signal {}", WTERMSIG(status)));
}

bool RoleProcess::Drain() {
  char bytes[1 << 16];
  while (true) {
    const ssize_t n = ::read(reports_.get(), bytes, sizeof(bytes));
    if (n > 0) {
      unread_.append(bytes, static_cast<size_t>(n));
    } else if (n == 0) {
      return false;
    } else if (errno != EINTR) {
      return true;
    }
  }
}

std::string RoleProcess::TakeReport() {
  Drain();
  return std::exchange(unread_, {});
}

Result<std::string> RoleProcess::ReadLine(TimePoint deadline) {
  while (true) {
    const bool open = Drain();
    const size_t end = unread_.find('\n');
    if (end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!open) return Unavailable("a process ended before it reported");
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Now());
    if (left.count() <= 0) return DeadlineExceeded("a process did not report in time");
    pollfd wait = {.fd = reports_.get(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left.count() + 1, 1000)));
  }
}

void RoleReport(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(kRoleReportFd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ::_exit(1);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace forebay::bench
