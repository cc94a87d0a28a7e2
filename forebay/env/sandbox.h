// Sandbox: runs a command that nobody trusts, under bubblewrap.
//
// What it may not do: see the host's files (it has /usr, read-only, and an empty /tmp of its own),
// the network, our environment's variables or other processes, or use more than its share of
// processor time, memory, processes and output. Each run begins anew and leaves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay::env {

// Of each process unless said otherwise; the kernel enforces them.
struct SandboxOptions {
  int64_t cpu_s_max = 5;
  int64_t memory_bytes_max = int64_t{512} << 20;  // of address space; 0: no limit
  int64_t file_bytes_max = int64_t{16} << 20;     // of one file
  int64_t open_files_max = 128;
  int64_t processes_max = 32;                  // of a run, threads included
  int64_t tmp_bytes_max = int64_t{64} << 20;   // of all files of a run (they are in memory)
  size_t output_bytes_max = size_t{64} << 10;  // of each of its two streams; then it is ended
  Duration wall_max = std::chrono::seconds(10);
  int64_t parallel_max = 0;  // runs at once, others wait in order; 0: the number of processors
  // Folders and files of the host that it may read as well, at the same place.
  std::vector<std::string> read_only;
  std::string bwrap = "bwrap";  // looked up on PATH unless it has a '/'
};

struct SandboxRun {
  std::vector<std::string> command;  // looked up in /usr/bin
  std::string input;                 // its standard input
};

struct SandboxResult {
  std::string output, errors;  // its two streams
  int exit_code = 0;           // 128 + n: ended by signal n
  bool timed_out = false;      // after wall_max
  bool output_full = false;    // it was ended because it wrote too much
  Duration took{};
};

// On one loop, whose thread must outlive it. Whatever the command does is a result. The destructor
// kills what runs. A dropped Run kills its command. Works for root, who becomes nobody in it, and
// for others where the kernel lets them make user namespaces.
class Sandbox {
 public:
  // Blocks for some milliseconds: a first run shows that sandboxes can be made here.
  // kFailedPrecondition: they cannot, with what to do; kInvalidArgument: an option.
  static Result<std::unique_ptr<Sandbox>> Create(Loop& loop, SandboxOptions options);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // kDeadlineExceeded: the deadline came before the end and before wall_max; kInvalidArgument: the
  // command is empty or longer than a command may be; kInternal: the sandbox itself failed.
  Task<Result<SandboxResult>> Run(SandboxRun run, TimePoint deadline);

  int64_t running() const;
  int64_t waiting() const;

 private:
  class Core;
  explicit Sandbox(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace forebay::env
