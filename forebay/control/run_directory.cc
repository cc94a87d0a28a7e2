#include "forebay/control/run_directory.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

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
    "config.toml", "metrics.jsonl",   "trajectories.jsonl", "evals.jsonl", "report.json",
    "run.log",     "environment.log", "environment.log.1",  "buffer",      "checkpoints"};

}  // namespace

RunDirectory::RunDirectory(std::string path)
    : path_(std::move(path)),
      metrics_(path_ + "/metrics.jsonl", std::ios::app),
      trajectories_(path_ + "/trajectories.jsonl", std::ios::app),
      evals_(path_ + "/evals.jsonl", std::ios::app),
      log_(path_ + "/run.log", std::ios::app) {}

Result<std::unique_ptr<RunDirectory>> RunDirectory::Open(const std::string& path, OpenMode mode) {
  std::error_code error;
  const bool holds_run = fs::exists(path + "/config.toml", error);
  if (mode == OpenMode::kNew && holds_run) {
    return AlreadyExists("'" + path +
                         "' already holds a run: choose another --run folder, go on with it by "
                         "`forebay train --resume " +
                         path + "`, or replace it with --overwrite");
  }
  if (mode == OpenMode::kResume && !holds_run) {
    return NotFound("'" + path + "' holds no run to resume (it has no config.toml)");
  }
  FB_RETURN_IF_ERROR(MakeFolders(path));
  if (mode == OpenMode::kOverwrite) {
    for (const char* name : kOwnFiles) {
      fs::remove_all(fs::path(path) / name, error);
      if (error) return ErrnoStatus("cannot remove '" + path + "/" + name + "'", error.value());
    }
  }
  std::unique_ptr<RunDirectory> run(new RunDirectory(path));
  if (!run->metrics_ || !run->trajectories_ || !run->evals_ || !run->log_) {
    return FailedPrecondition("cannot write in '" + path + "'");
  }
  return run;
}

void RunDirectory::Append(std::ofstream& file, std::string_view line) {
  MutexLock lock(mutex_);
  file << line << '\n' << std::flush;
  if (!file && status_.ok())
    status_ = ResourceExhausted("a write in '" + path_ + "' failed (disk full?)");
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
