// SubprocessPool: environments written in any language, in processes that speak JSON lines over
// stdio (docs/environment_protocol.md; python/forebay is the SDK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/environment.h"

namespace forebay::env {

struct SubprocessOptions {
  std::vector<std::string> command;  // command[0] is looked up on PATH unless it has a '/'
  std::string folder;                // processes run there; "" is ours
  std::map<std::string, std::string> environment;  // variables on top of ours, e.g. PYTHONPATH
  int64_t processes = 1;
  int64_t episodes_per_process = 64;  // that one process serves at once
  int64_t memory_bytes_max = 0;       // address space of each process; 0: as ours

  size_t line_bytes_max = size_t{4} << 20;
  WorkerPool* workers = nullptr;    // read and write long lines (json_work.h); null: the loop does
  size_t stderr_tail_bytes = 4096;  // kept for error messages
  std::string stderr_path;          // what processes write to stderr is appended here; "" drops it
  int64_t stderr_file_bytes_max = int64_t{64} << 20;  // then it becomes PATH.1

  Duration start_deadline = std::chrono::seconds(60);  // from exec to hello
  // A process that ends before it has answered one request is a failed start: the next try waits
  // `backoff`, twice that, ... up to `backoff_max`.
  int64_t start_failures_max = 5;  // consecutive, of each process; then it is given up
  Duration backoff = std::chrono::milliseconds(500);
  Duration backoff_max = std::chrono::seconds(30);

  // An episode that does not end this long after it was told to hangs: it keeps its place. A
  // process with `hung_episodes_max` of them gets no new episodes and is replaced; the old one is
  // killed when its healthy episodes have ended, after `recycle_deadline` at the latest.
  Duration close_grace = std::chrono::seconds(10);
  int64_t hung_episodes_max = 4;
  Duration recycle_deadline = std::chrono::seconds(300);
};

struct SubprocessStats {
  int64_t started = 0;  // processes that said hello
  int64_t failed_starts = 0;
  int64_t crashed = 0;       // ended or broke the protocol after that, unasked
  int64_t recycled = 0;      // replaced because of hung episodes
  int64_t late_answers = 0;  // to steps whose deadline had passed
  int64_t running = 0;       // processes now
  int64_t episodes = 0;      // now, with those that hang or are closing
  int64_t waiting = 0;       // in Acquire
};

// Places episodes on the least loaded process; processes start at the first Acquire. A crash,
// garbage or a hang costs the episodes it must cost (environment.h says with which error) and never
// more than that. All calls on the loop's thread, which must outlive the processes (the kernel
// kills them with it). The destructor kills what Shutdown did not end; environments may outlive the
// pool, their calls fail then.
class SubprocessPool : public EnvironmentPool {
 public:
  // kInvalidArgument naming the option.
  static Result<std::unique_ptr<SubprocessPool>> Create(Loop& loop, SubprocessOptions options);
  virtual SubprocessStats stats() const = 0;
};

}  // namespace forebay::env
