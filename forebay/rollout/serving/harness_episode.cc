// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/rollout/harness_episode.h"

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
#include "forebay/rollout/serving/rewards_json.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {
namespace {

enum SeedUse : uint64_t { kEnvironment = 2 };  // as rollout/episode.cc derives it

std::string_view LastLine(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  return text.substr(text.rfind('\n') + 1);
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
  if (!end->ok) {
    out.outcome = Outcome::kEnvError;
    std::string said = end->errors.empty() ? end->output : end->errors;
    out.reason = Internal("the harness " + end->how + (said.empty() ? "" : ":\n" + said));
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
