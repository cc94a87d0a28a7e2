#include "forebay/control/run_directory.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

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
      starts_{.name = "starts.jsonl"},
      metrics_{.name = "metrics.jsonl"},
      trajectories_{.name = "trajectories.jsonl"},
      evals_{.name = "evals.jsonl"},
      log_{.name = "run.log"} {}

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
  for (LineFile* file :
       {&run->starts_, &run->metrics_, &run->trajectories_, &run->evals_, &run->log_}) {
    const std::string name = path + "/" + file->name;
    file->fd = Fd(::open(name.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
    if (!file->fd.valid()) {
      return FailedPrecondition(
          ErrnoStatus("cannot write in '" + path + "': '" + file->name + "'", errno).message());
    }
  }
  return run;
}

void RunDirectory::Append(LineFile& file, std::string_view line) {
  MutexLock lock(mutex_);
  // What was torn must not be glued to this line.
  const std::string bytes = (file.torn ? "\n" : "") + std::string(line) + '\n';
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(file.fd.get(), bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    written += static_cast<size_t>(n);
  }
  if (written == bytes.size()) {
    file.torn = false;
    return;
  }
  const Status error = ErrnoStatus("a write to '" + path_ + "/" + file.name + "' failed", errno);
  if (written > 0) file.torn = true;
  if (status_.ok()) status_ = ResourceExhausted(error.message() + ": lines are missing there");
}

void RunDirectory::Log(std::string_view sentence) {
  const std::time_t seconds = WallMicros() / 1'000'000;
  Append(log_, fmt::format("{:%Y-%m-%d %H:%M:%S} {}", fmt::gmtime(seconds), sentence));
}

Status RunDirectory::status() const {
  MutexLock lock(mutex_);
  return status_;
}

Status RunDirectory::StillThere() const {
  struct stat ours = {}, there = {};
  const bool same = ::fstat(lock_.get(), &ours) == 0 &&
                    ::stat((path_ + "/lock").c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
                    ours.st_dev == there.st_dev;
  if (same) return OkStatus();
  return NotFound("the run's folder '" + path_ +
                  "' was removed, moved or replaced while the run wrote to it");
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
