// RunProgram: any command as a process of its own on a Loop, until it ends or its time is over.
//
// Not a sandbox (env/sandbox.h is one): it sees what we see. For programs that the user has named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::env {

struct ProgramOptions {
  std::vector<std::string> command;  // command[0] is looked up on PATH unless it has a '/'
  std::string folder;                // it runs there; "" is ours
  std::map<std::string, std::string> environment;  // variables on top of ours
  int64_t memory_bytes_max = 0;                    // of address space, each process; 0: as ours
  size_t tail_bytes = size_t{64} << 10;            // kept of each of its two streams
};

struct ProgramEnd {
  bool ok = false;             // exit code 0
  std::string how;             // "exited with code 3", "was killed by signal 9 (SIGKILL)"
  std::string output, errors;  // the last lines of its streams
};

// Its standard input is empty. `stop` (may be null) is asked a few times a second; when true the
// program is killed. At its end, and when the Task is dropped, its whole process group is killed
// and reaped. Errors: what starting says (kInvalidArgument, kNotFound ...), kDeadlineExceeded,
// kCancelled (stopped).
Task<Result<ProgramEnd>> RunProgram(Loop& loop, ProgramOptions options, TimePoint deadline,
                                    std::function<bool()> stop);

}  // namespace forebay::env
