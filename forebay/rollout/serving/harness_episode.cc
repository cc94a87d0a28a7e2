// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/harness_episode.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/program.h"
#include "forebay/rollout/recording_proxy.h"
#include "forebay/rollout/serving/recorded_episode.h"
#include "forebay/rollout/serving/rewards_json.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {
namespace {

enum SeedUse : uint64_t { kEnvironment = 2 };  // as rollout/episode.cc derives it

constexpr size_t kLastLinesMax = 12;  // of an error; the log of a run has many
constexpr size_t kLastBytesMax = 2000;

std::string_view LastLine(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  return text.substr(text.rfind('\n') + 1);
}

std::string LastLines(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  size_t begin = text.size();
  for (size_t lines = 0; lines < kLastLinesMax && begin > 0; ++lines) {
    begin = text.rfind('\n', begin - 1);
    if (begin == std::string_view::npos) begin = 0;
  }
  begin = std::max(begin, text.size() - std::min(text.size(), kLastBytesMax));
  if (begin > 0 && text[begin] == '\n') ++begin;
  return std::string(text.substr(begin));
}

HarnessEnd EndOf(const Result<env::ProgramEnd>& end) {
  HarnessEnd out;
  if (!end.ok()) {
    out.reason = end.status();
    out.outcome = Outcome::kEnvError;
    if (end.status().code() == StatusCode::kDeadlineExceeded) out.outcome = Outcome::kEnvTimeout;
    if (end.status().code() == StatusCode::kCancelled) out.outcome = Outcome::kAborted;
    return out;
  }
  out.how = end->how;
  out.last_errors = LastLines(end->errors);
  out.last_output_line = std::string(LastLine(end->output).substr(0, kLastBytesMax));
  if (!end->ok) {
    out.outcome = Outcome::kEnvError;
    out.reason = Unavailable("the harness " + end->how + serving::LastWords(out));
    return out;
  }
  std::map<std::string, double> rewards;
  // on a worker: other last lines are no rewards, and no errors either: it may have posted one.
  if (serving::ReadRewards(LastLine(end->output), &rewards).empty()) out.rewards = rewards;
  return out;
}

}  // namespace

Task<Trajectory> RunHarnessEpisode(Loop& loop, RecordingProxy& proxy, HarnessOptions options,
                                   Assignment assignment, std::function<bool()> abort) {
  const EpisodeAccess access = proxy.Open(assignment, options.recording);
  env::ProgramOptions program{
      .command = options.command, .folder = options.folder, .environment = options.variables};
  std::map<std::string, std::string>& variables = program.environment;
  variables["OPENAI_BASE_URL"] = variables["OPENAI_API_BASE"] = access.base_url;
  variables["OPENAI_API_KEY"] = access.api_key;
  variables["FOREBAY_REWARD_URL"] = access.reward_url;
  // Clients that follow HTTP_PROXY would look for us there.
  for (const char* name : {"NO_PROXY", "no_proxy"}) {
    const char* inherited = std::getenv(name);
    const std::string local = "127.0.0.1,localhost";
    variables.emplace(name, inherited == nullptr ? local : local + "," + inherited);
  }
  variables["FOREBAY_TASK_ID"] = std::to_string(assignment.id.task_id);
  variables["FOREBAY_SPLIT"] = options.split;
  // Non-negative in every language.
  variables["FOREBAY_SEED"] = std::to_string(DeriveSeed(assignment.seed, kEnvironment) >> 1U);
  Task<Result<env::ProgramEnd>> running =
      env::RunProgram(loop, std::move(program), loop.Now() + options.deadline, std::move(abort));
  const Result<env::ProgramEnd> end = co_await std::move(running);
  Task<HarnessEnd> reading = Offload(&loop, options.workers, [&end] { return EndOf(end); });
  HarnessEnd harness = co_await std::move(reading);
  Status reason;
  Task<Trajectory> closing = proxy.Close(access.api_key, std::move(harness), &reason);
  Trajectory trajectory = co_await std::move(closing);
  if (!Trains(trajectory.outcome) && options.on_failure) {
    options.on_failure(trajectory.id, trajectory.outcome, reason);
  }
  co_return trajectory;
}

}  // namespace forebay::rollout
