#include "forebay/control/run_directory.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::control {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kOwnFiles[] = {
    "config.toml",       "starts.jsonl", "metrics.jsonl", "trajectories.jsonl",
    "evals.jsonl",       "report.json",  "run.log",       "environment.log",
    "environment.log.1", "buffer",       "checkpoints"};
// Those that grow line by line.
constexpr const char* kLineFiles[] = {"starts.jsonl", "metrics.jsonl", "trajectories.jsonl",
                                      "evals.jsonl", "run.log"};

// Held until the descriptor is closed. Its file stays: a new one would be another lock.
Result<Fd> Lock(const std::string& folder) {
  const std::string path = folder + "/lock";
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus("cannot open '" + path + "'", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return ErrnoStatus("cannot lock '" + path + "'", errno);
  return FailedPrecondition("another process runs in '" + folder +
                            "': stop it, or choose another --run folder");
}

// A full disk or a lost power supply can leave half a line; the next one must not be glued to it.
Status EndTornLine(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  if (!file || !file.seekg(-1, std::ios::end)) return OkStatus();  // none, or empty
  if (file.get() == '\n') return OkStatus();
  file.seekp(0, std::ios::end);
  if (!(file << '\n' << std::flush)) return ResourceExhausted("cannot write '" + path + "'");
  return OkStatus();
}

}  // namespace

RunDirectory::RunDirectory(std::string path, Fd lock)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      starts_{std::ofstream(path_ + "/starts.jsonl", std::ios::app)},
      metrics_{std::ofstream(path_ + "/metrics.jsonl", std::ios::app)},
      trajectories_{std::ofstream(path_ + "/trajectories.jsonl", std::ios::app)},
      evals_{std::ofstream(path_ + "/evals.jsonl", std::ios::app)},
      log_{std::ofstream(path_ + "/run.log", std::ios::app)} {}

Result<std::unique_ptr<RunDirectory>> RunDirectory::Open(const std::string& path, OpenMode mode) {
  std::error_code error;
  const auto holds_run = [&] { return fs::exists(path + "/config.toml", error); };
  if (mode == OpenMode::kResume && !holds_run()) {
    return NotFound("'" + path + "' holds no run to resume (it has no config.toml)");
  }
  FB_RETURN_IF_ERROR(MakeFolders(path));
  FB_ASSIGN_OR_RETURN(Fd lock, Lock(path));
  if (mode == OpenMode::kNew && holds_run()) {
    return AlreadyExists("'" + path +
                         "' already holds a run: choose another --run folder, go on with it by "
                         "`forebay train --resume " +
                         path + "`, or replace it with --overwrite");
  }
  if (mode == OpenMode::kOverwrite) {
    for (const char* name : kOwnFiles) {
      fs::remove_all(fs::path(path) / name, error);
      if (error) return ErrnoStatus("cannot remove '" + path + "/" + name + "'", error.value());
    }
  }
  for (const char* name : kLineFiles) {
    FB_RETURN_IF_ERROR(EndTornLine(path + "/" + name));
  }
  std::unique_ptr<RunDirectory> run(new RunDirectory(path, std::move(lock)));
  if (!run->starts_.stream || !run->metrics_.stream || !run->trajectories_.stream ||
      !run->evals_.stream || !run->log_.stream) {
    return FailedPrecondition("cannot write in '" + path + "'");
  }
  return run;
}

void RunDirectory::Append(LineFile& file, std::string_view line) {
  MutexLock lock(mutex_);
  if (file.torn) file.stream << '\n';  // what was torn must not be glued to this line
  file.stream << line << '\n' << std::flush;
  file.torn = !file.stream;
  if (!file.torn) return;
  file.stream.clear();  // the next line is tried again
  if (status_.ok()) status_ = ResourceExhausted("a write in '" + path_ + "' failed (disk full?)");
}

void RunDirectory::Log(std::string_view sentence) {
  const std::time_t seconds = WallMicros() / 1'000'000;
  Append(log_, fmt::format("{:%Y-%m-%d %H:%M:%S} {}", fmt::gmtime(seconds), sentence));
}

Status RunDirectory::status() const {
  MutexLock lock(mutex_);
  return status_;
}

std::string TrajectoryLine(const Trajectory& t) {
  json turns = json::array();
  for (const Turn& turn : t.turns) {
    if (turn.kind != TurnKind::kAction) continue;
    turns.push_back({{"tool", turn.tool},
                     {"tokens", turn.end - turn.begin},
                     {"queue_us", turn.spans.queue_us},
                     {"prefill_us", turn.spans.prefill_us},
                     {"decode_us", turn.spans.decode_us},
                     {"environment_us", turn.spans.environment_us},
                     {"reward_us", turn.spans.reward_us}});
  }
  const json line = {{"trajectory_id", t.id.trajectory_id},
                     {"group_id", t.id.group_id},
                     {"member", t.id.member},
                     {"attempt", t.id.attempt},
                     {"task_id", t.id.task_id},
                     {"environment", t.environment},
                     {"outcome", OutcomeName(t.outcome)},
                     {"reward", t.reward()},
                     {"rewards", t.rewards},
                     {"tokens", t.tokens.size()},
                     {"loss_tokens", t.loss_tokens()},
                     {"min_version", t.min_version()},
                     {"max_version", t.max_version()},
                     {"started_us", t.started_us},
                     {"ended_us", t.ended_us},
                     {"turns", std::move(turns)}};
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace forebay::control
