// RoleProcess: a part of the recovery benchmarks in a process of its own, made to be killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/recovery_roles.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::bench {

// This very program again, with a word that says what it is to be as its first argument. What it
// writes to RoleReport() is read here. Dies with the process that started it. Not thread-safe.
class RoleProcess {
 public:
  static Result<RoleProcess> Start(const std::vector<std::string>& args,
                                   const std::string& word = kRecoveryRoleWord);
  // Moved-from and killed ones have no process.
  RoleProcess(RoleProcess&& other) noexcept;
  RoleProcess& operator=(RoleProcess&& other) noexcept;
  ~RoleProcess();

  // kill -9, and waits for its end. kInternal: it had ended by itself before, which it never
  // should; says how.
  Status Kill();
  // What it reported since the last call, as far as it is there; never blocks. What it wrote before
  // it was killed is still there after Kill.
  std::string TakeReport();
  // The next line that it reports, without its end. kUnavailable: it ended; kDeadlineExceeded.
  Result<std::string> ReadLine(TimePoint deadline);

 private:
  RoleProcess(pid_t pid, Fd reports) : pid_(pid), reports_(std::move(reports)) {}
  bool Drain();  // false: its end of the pipe is closed

  pid_t pid_ = -1;
  Fd reports_;
  std::string unread_;
};

// In a role: where its reports go.
inline constexpr int kRoleReportFd = 3;
// Writes it all; ends the process when nobody reads (the parent is gone).
void RoleReport(std::string_view bytes);

}  // namespace forebay::bench
