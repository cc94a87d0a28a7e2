// RunDirectory: everything a run leaves on disk, readable while it runs and after.
//
//   config.toml         the complete configuration
//   starts.jsonl        one line a start of the program: from which step, under which configuration
//   metrics.jsonl       one line an optimizer step; of a step that was repeated the last one counts
//   trajectories.jsonl  one line an acknowledged episode: ids, outcome, rewards, spans, no tokens
//   evals.jsonl         one line an evaluation
//   run.log             what happened, one sentence a line
//   environment.log     what the environment's processes wrote to stderr
//   report.json         what the run ended with
//   lock                held by the program that writes here
//   buffer/             owned by that room
//   checkpoints/        owned by the learner
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::control {

enum class OpenMode { kNew, kOverwrite, kResume };

// Thread-safe. Lines are handed to the operating system one by one, so a killed run keeps them;
// writing never fails the run: the first failure is kept in status().
class RunDirectory {
 public:
  // kNew: kAlreadyExists if the folder holds a run. kOverwrite: removes the run's own files there,
  // nothing else. kResume: kNotFound if there is none; a line that the last program left torn is
  // ended. All: kFailedPrecondition while another process writes there.
  static Result<std::unique_ptr<RunDirectory>> Open(const std::string& path, OpenMode mode);

  const std::string& path() const { return path_; }
  std::string buffer_path() const { return path_ + "/buffer"; }
  std::string checkpoints_path() const { return path_ + "/checkpoints"; }

  void WriteMetrics(std::string_view json_line) { Append(metrics_, json_line); }
  void WriteStart(std::string_view json_line) { Append(starts_, json_line); }
  void WriteEval(std::string_view json_line) { Append(evals_, json_line); }
  void WriteTrajectory(std::string_view line) { Append(trajectories_, line); }  // a TrajectoryLine
  void Log(std::string_view sentence);
  // The first failure of a write; what was written then is missing.
  Status status() const;
  // kNotFound: the folder was removed, moved or replaced since Open, and what is written goes
  // nowhere.
  Status StillThere() const;

 private:
  struct LineFile {
    std::string name;
    Fd fd;
    bool torn = false;  // half a line is there
  };

  RunDirectory(std::string path, Fd lock);
  void Append(LineFile& file, std::string_view line);

  const std::string path_;
  const Fd lock_;  // closing it gives the lock back, and so does the death of the process
  mutable Mutex mutex_;
  LineFile starts_, metrics_, trajectories_, evals_, log_;
  Status status_ FB_GUARDED_BY(mutex_);
};

// The line of trajectories.jsonl, without its line feed.
std::string TrajectoryLine(const Trajectory& trajectory);

}  // namespace forebay::control
