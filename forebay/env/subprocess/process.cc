#include "forebay/env/subprocess/process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/env/subprocess/confine.h"

namespace forebay::env {
namespace {

// Pairs of descriptors numbered 3 and above, so that dup2 onto 0, 1, 2 in the child never meets its
// own source.
struct FdPair {
  Fd ours, theirs;
};

Result<Fd> AboveStandard(int fd) {
  Fd owned(fd);
  if (fd > STDERR_FILENO) return owned;
  Fd moved(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!moved.valid()) return ErrnoStatus("cannot duplicate a descriptor", errno);
  return moved;
}

Result<FdPair> MakePair(int ours, int theirs, bool nonblocking) {
  FdPair pair;
  Fd other(theirs);
  FB_ASSIGN_OR_RETURN(pair.ours, AboveStandard(ours));
  FB_ASSIGN_OR_RETURN(pair.theirs, AboveStandard(other.Release()));
  if (nonblocking && fcntl(pair.ours.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus("cannot make a pipe non-blocking", errno);
  }
  return pair;
}

Result<FdPair> OutputPipe(bool nonblocking) {
  std::array<int, 2> fds{};
  if (pipe2(fds.data(), O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  return MakePair(fds[0], fds[1], nonblocking);
}

Result<FdPair> InputSocket() {
  std::array<int, 2> fds{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return ErrnoStatus("cannot make a socket pair", errno);
  }
  return MakePair(fds[0], fds[1], true);
}

std::map<std::string, std::string> MergedEnvironment(
    const std::map<std::string, std::string>& extra, bool only) {
  std::map<std::string, std::string> merged = extra;
  if (only) return merged;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    merged.emplace(text.substr(0, equals), text.substr(equals + 1));  // `extra` wins
  }
  return merged;
}

Result<std::string> ResolveProgram(const std::string& name,
                                   const std::map<std::string, std::string>& environment) {
  if (name.empty()) return InvalidArgument("the command is empty; its first word names a program");
  if (name.find('/') != std::string::npos) return name;
  const auto it = environment.find("PATH");
  std::string_view path = it == environment.end() ? "/usr/bin:/bin" : std::string_view(it->second);
  while (!path.empty()) {
    const size_t colon = path.find(':');
    const std::string candidate = fmt::format("{}/{}", path.substr(0, colon), name);
    struct stat info{};
    if (stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    path = colon == std::string_view::npos ? std::string_view() : path.substr(colon + 1);
  }
  return NotFound(fmt::format("there is no program '{}' on the PATH", name));
}

constexpr int kStatusLost = -1;
constexpr unsigned kNobody = 65534;

// What the child tells us when it cannot become the program.
struct ExecFailure {
  int32_t stage = 0;  // an index of kStages
  int32_t error = 0;
};
constexpr std::array<std::string_view, 6> kStages = {"prepare the child process for",
                                                     "enter the folder of",
                                                     "set the limits of",
                                                     "run",
                                                     "give up the rights of root for",
                                                     "confine"};

// Everything the child needs, made before the fork: between vfork and exec only async-signal-safe
// calls are allowed.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  const char* folder;  // nullptr: ours
  int input, output, errors, report;
  pid_t parent;
  ProcessLimits limits;
  bool drop_root, confine;
};

[[noreturn]] void FailInChild(const ChildPlan& plan, int stage) {
  const ExecFailure failure{stage, errno};
  [[maybe_unused]] const ssize_t n = write(plan.report, &failure, sizeof(failure));
  _exit(127);
}

bool Limit(int resource, int64_t value) {
  if (value <= 0) return true;
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  return setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0;
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  for (int s = 1; s < NSIG; ++s)
    signal(s, SIG_DFL);  // an ignored signal would stay ignored over exec
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (setpgid(0, 0) != 0) FailInChild(plan, 0);
  // The bare calls: those of the C library would change every thread of ours. Before prctl, which
  // they undo.
  if (plan.drop_root && (syscall(SYS_setgroups, 0, nullptr) != 0 ||
                         syscall(SYS_setresgid, kNobody, kNobody, kNobody) != 0 ||
                         syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0)) {
    FailInChild(plan, 4);
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) FailInChild(plan, 0);
  if (getppid() != plan.parent) _exit(127);  // the parent died before prctl
  if (dup2(plan.input, STDIN_FILENO) < 0 || dup2(plan.output, STDOUT_FILENO) < 0 ||
      dup2(plan.errors, STDERR_FILENO) < 0) {
    FailInChild(plan, 0);
  }
  // Descriptors that some library opened without CLOEXEC. An older kernel says no; ours are all
  // CLOEXEC.
  syscall(SYS_close_range, 3U, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
  if (plan.folder != nullptr && chdir(plan.folder) != 0) FailInChild(plan, 1);
  const rlimit no_core{0, 0};
  if (setrlimit(RLIMIT_CORE, &no_core) != 0 || !Limit(RLIMIT_AS, plan.limits.memory_bytes_max) ||
      !Limit(RLIMIT_CPU, plan.limits.cpu_s_max) ||
      !Limit(RLIMIT_NOFILE, plan.limits.open_files_max)) {
    FailInChild(plan, 2);
  }
  if (plan.confine) {
    const std::span<const sock_filter> filter = ConfineFilter();
    const sock_fprog program{static_cast<uint16_t>(filter.size()),
                             const_cast<sock_filter*>(filter.data())};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      FailInChild(plan, 5);
    }
  }
  execve(plan.program, plan.argv, plan.envp);
  FailInChild(plan, 3);
}

// With every signal blocked, so that no handler of ours runs in the child. vfork: fork would copy
// the page tables of what may be many gigabytes, and hold up the loop for it.
pid_t ForkWithSignalsBlocked(const ChildPlan& plan) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // The child only makes system calls until exec; posix_spawn can set neither limits nor the signal
  // of our death.
  const pid_t pid = vfork();  // NOLINT(bugprone-unsafe-functions)
  if (pid == 0) RunChild(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

// Blocks until exec has closed the pipe, or the child has reported why it cannot.
std::optional<ExecFailure> ReadFailure(int fd) {
  ExecFailure failure;
  ssize_t n = 0;
  do {
    n = read(fd, &failure, sizeof(failure));
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof(failure))) return failure;
  return std::nullopt;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

void Reap(pid_t pid) {
  // may wait: for the end of what was killed, microseconds
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (!signalled && value == kStatusLost) return "ended in an unknown way";
  if (!signalled) return fmt::format("exited with code {}", value);
  const char* name = sigabbrev_np(value);
  return fmt::format("was killed by signal {} (SIG{})", value, name == nullptr ? "?" : name);
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ProcessOptions& options) {
  if (options.command.empty())
    return InvalidArgument("the command is empty; its first word names a program");
  const std::map<std::string, std::string> environment =
      MergedEnvironment(options.environment, options.only_environment);
  FB_ASSIGN_OR_RETURN(const std::string program, ResolveProgram(options.command[0], environment));
  std::vector<std::string> words = options.command;
  std::vector<std::string> settings;
  settings.reserve(environment.size());
  for (const auto& [name, value] : environment)
    settings.push_back(fmt::format("{}={}", name, value));
  const std::vector<char*> argv = Pointers(words);
  const std::vector<char*> envp = Pointers(settings);

  FB_ASSIGN_OR_RETURN(FdPair input, InputSocket());
  FB_ASSIGN_OR_RETURN(FdPair output, OutputPipe(true));
  FB_ASSIGN_OR_RETURN(FdPair errors, OutputPipe(true));
  FB_ASSIGN_OR_RETURN(FdPair report, OutputPipe(false));
  const ChildPlan plan{.program = program.c_str(),
                       .argv = argv.data(),
                       .envp = envp.data(),
                       .folder = options.folder.empty() ? nullptr : options.folder.c_str(),
                       .input = input.theirs.get(),
                       .output = output.theirs.get(),
                       .errors = errors.theirs.get(),
                       .report = report.theirs.get(),
                       .parent = getpid(),
                       .limits = options.limits,
                       .drop_root = options.drop_root && geteuid() == 0,
                       .confine = options.confine};
  const pid_t pid = ForkWithSignalsBlocked(plan);
  if (pid < 0) return ErrnoStatus("cannot start another process", errno);
  report.theirs.Close();
  if (const auto failure = ReadFailure(report.ours.get())) {
    Reap(pid);
    return ErrnoStatus(
        fmt::format("cannot {} '{}'{}", kStages[static_cast<size_t>(failure->stage)], program,
                    failure->stage == 1 ? fmt::format(" ({})", options.folder) : ""),
        failure->error);
  }

  std::unique_ptr<ChildProcess> process(new ChildProcess());
  process->pid_ = pid;
  process->input_ = std::move(input.ours);
  process->output_ = std::move(output.ours);
  process->errors_ = std::move(errors.ours);
  process->exit_fd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));  // always CLOEXEC
  if (!process->exit_fd_.valid()) return ErrnoStatus("cannot watch a process (pidfd_open)", errno);
  return process;
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || status_) return;
  KillGroup(SIGKILL);
  Reap(pid_);
}

int ChildProcess::KillChildren() {
  int killed = 0;
  if (status_) return killed;
  std::ifstream list(fmt::format("/proc/{0}/task/{0}/children", pid_));
  for (pid_t child = 0; list >> child;) {
    // Its number may be another's by now: the descriptor holds on to one process, its parent says
    // whether it is the right one.
    const Fd held(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
    std::ifstream stat(fmt::format("/proc/{}/stat", child));
    std::string text;
    std::getline(stat, text);
    const size_t name_end = text.rfind(") ");  // the name may hold anything
    if (!held.valid() || name_end == std::string::npos) continue;
    std::istringstream fields(text.substr(name_end + 2));
    std::string state;
    pid_t parent = 0;
    if (fields >> state >> parent && parent == pid_) {
      if (syscall(SYS_pidfd_send_signal, held.get(), SIGKILL, nullptr, 0) == 0) ++killed;
    }
  }
  return killed;
}

void ChildProcess::KillGroup(int signal) {
  // Until it is reaped its number cannot be given to another group.
  if (!status_) kill(-pid_, signal);
}

std::optional<ExitStatus> ChildProcess::Poll() {
  if (status_) return status_;
  siginfo_t info{};
  // WNOWAIT first: the group is killed while its leader's number is still taken.
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    // Someone else reaped it (a program that ignores SIGCHLD): it has ended, how is lost.
    if (errno == ECHILD) status_ = ExitStatus{.value = kStatusLost};
    return status_;
  }
  if (info.si_pid == 0) return std::nullopt;  // still running
  KillGroup(SIGKILL);
  Reap(pid_);
  status_ = ExitStatus{.signalled = info.si_code != CLD_EXITED, .value = info.si_status};
  return status_;
}

}  // namespace forebay::env
