// ChildProcess: a program in a process group of its own, with pipes to its three standard streams.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::env {

// How a process ended.
struct ExitStatus {
  bool signalled = false;
  int value = 0;  // exit code, or the signal's number

  // "exited with code 3", "was killed by signal 9 (SIGKILL)".
  std::string ToString() const;
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

// Limits of the child and what it starts (setrlimit); 0: as ours.
struct ProcessLimits {
  int64_t memory_bytes_max = 0;  // of address space, per process
  int64_t cpu_s_max = 0;
  int64_t open_files_max = 0;
};

struct ProcessOptions {
  std::vector<std::string> command;  // command[0] is looked up on PATH unless it has a '/'
  std::string folder;                // it runs there; "" is ours
  std::map<std::string, std::string> environment;  // on top of ours
  bool only_environment = false;                   // without ours
  ProcessLimits limits;
  // As nobody when we are root, who is exempt from some limits; no effect else.
  bool drop_root = false;
  // For sandboxes, which nothing of this leaves: the calls of confine.h fail, and the rights that a
  // setuid program gives are gone.
  bool confine = false;
};

// Owns the process: it is killed with its whole group and reaped at destruction, and the kernel
// kills it when the thread that started it ends (PR_SET_PDEATHSIG), so start it on a thread that
// lives on. A grandchild that leaves the group (setsid) is out of reach.
//
// Not thread-safe. Nothing blocks but Start (until exec, milliseconds) and the destructor of a
// process that was not reaped (until the kernel has killed it). Needs Linux 5.3 (pidfd).
class ChildProcess {
 public:
  // kInvalidArgument or kNotFound when the command or folder is wrong, else what the system said.
  static Result<std::unique_ptr<ChildProcess>> Start(const ProcessOptions& options);

  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Our ends, non-blocking. Standard input is a socket, so that a write to a dead process is EPIPE
  // and never SIGPIPE: use send with MSG_NOSIGNAL.
  Fd& input() { return input_; }
  Fd& output() { return output_; }
  Fd& errors() { return errors_; }
  // Readable when the process has ended.
  int exit_fd() const { return exit_fd_.get(); }

  // Kills its children, not it; says how many. A process that waits for its children and ends after
  // them then leaves no zombie to strangers.
  int KillChildren();

  // Signals the process and everything in its group. No effect after it was reaped.
  void KillGroup(int signal);

  // How it ended, once it has; kills what is left of its group and reaps it (both at the first call
  // that sees the end).
  std::optional<ExitStatus> Poll();

 private:
  ChildProcess() = default;

  pid_t pid_ = -1;
  Fd input_, output_, errors_, exit_fd_;
  std::optional<ExitStatus> status_;
};

}  // namespace forebay::env
