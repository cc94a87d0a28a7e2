// LineProcess: a process that is spoken with in lines, over its standard input and output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/json_work.h"
#include "forebay/env/subprocess/process.h"
#include "forebay/env/subprocess/stderr_log.h"
#include "forebay/env/subprocess/wire.h"

namespace forebay::env {

struct LineProcessOptions {
  ProcessOptions process;
  std::string what;  // what it is, for reasons: "the environment process"
  size_t line_bytes_max = size_t{4} << 20;
  size_t outbox_bytes_max = size_t{64} << 20;  // written and not taken by the process
  size_t stderr_tail_bytes = 4096;
  std::shared_ptr<RotatingLog> log;  // of its standard error; null drops it
  WorkerPool* workers = nullptr;     // read long lines; null: read on the loop
};

// Called on the loop, also from inside the owner's calls. None is called after Abandon.
struct LineProcessEvents {
  // Reads a line of its output and gives what is then done about it, on the loop; an error that
  // this returns ends the process. A long line (kInlineJsonBytes) is read on a worker, so `read`
  // may touch nothing of the loop, and neither may own the LineProcess. The lines after it wait, in
  // the process's pipe at last.
  std::function<std::function<Status()>(std::string_view)> read;
  // Once, why nothing more comes: that reason, Kill's, or how the process ended (kUnavailable),
  // with the last lines of its stderr.
  std::function<void(const Status&)> on_end;
  // Once, afterwards: it is gone, with its whole group. May be null.
  std::function<void()> on_reaped;
};

// Lives on the loop. The destructor kills it.
class LineProcess : public std::enable_shared_from_this<LineProcess> {
 public:
  static Result<std::shared_ptr<LineProcess>> Start(Loop& loop, LineProcessOptions options,
                                                    LineProcessEvents events);
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  // A newline is added. Dropped when it has ended, or its input has.
  void Send(std::string_view line);
  void Kill(const Status& reason);
  // Asks it to end: it reads what was sent and then the end of its input.
  void EndInput();
  // The same, and waits for its end; kills it at the deadline.
  static Task<void> End(std::shared_ptr<LineProcess> self, TimePoint deadline);
  // Kills and reaps it at once, which may block for milliseconds. Nothing is called any more.
  void Abandon();

  // "WHAT `COMMAND` (pid 7): DID; its last lines on stderr: ...": for errors about one that runs.
  std::string Describe(std::string_view did);

  bool ended() const { return !reason_.ok(); }
  const Status& reason() const { return reason_; }

 private:
  LineProcess(Loop& loop, LineProcessOptions options, LineProcessEvents events);
  void Begin();
  void Unwatch();
  void Write();
  void WatchOutput();
  void WatchErrors();
  bool ReadOutput(int64_t bytes_max);  // false at its end
  void TakeLines();
  void ReadElsewhere(std::string line);
  void LineWasRead(const std::function<Status()>& take);
  bool ReadErrors(int64_t bytes_max);
  void StreamEnded(std::string_view stream);
  void OnExit();
  void Break(const Status& reason);
  std::function<void()> Weakly(std::function<void(LineProcess&)> fn);

  Loop& loop_;
  const LineProcessOptions options_;
  LineProcessEvents events_;
  std::unique_ptr<ChildProcess> process_;
  LineSplitter lines_;
  StderrTail tail_;
  const JsonWork work_;
  bool reading_ = false;     // a worker reads a line: no other is looked at
  bool exit_waits_ = false;  // the process has ended meanwhile
  std::string outbox_;
  size_t sent_ = 0;  // of outbox_
  bool write_watched_ = false;
  bool input_ended_ = false;
  Status reason_;               // why it ended
  const OneShot<bool> reaped_;  // the process is gone
};

}  // namespace forebay::env
