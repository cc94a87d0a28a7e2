// RunHarnessEpisode: a program that was written against OpenAI's API plays an episode.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/recording_proxy.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {

struct HarnessOptions {
  std::vector<std::string> command;              // started once for each episode
  std::string folder;                            // it runs there; "" is ours
  std::map<std::string, std::string> variables;  // more of its environment
  std::string split = "train";
  Duration deadline = std::chrono::minutes(10);  // of an episode
  RecordingOptions recording;
  WorkerPool* workers = nullptr;  // for what the command has written; null: on the loop
  // Told why an episode ended in an infrastructure outcome; may be null. Called on the loop.
  std::function<void(const TrajectoryId&, Outcome, const Status&)> on_failure;
};

// Starts the command with OPENAI_BASE_URL and OPENAI_API_KEY (and OPENAI_API_BASE, for older
// clients), FOREBAY_TASK_ID, FOREBAY_SPLIT, FOREBAY_SEED, FOREBAY_OPTIONS as `variables` has it,
// and FOREBAY_REWARD_URL in its environment, and waits for its end. Its reward is what it posted,
// or what the last line of its standard output says: {"reward": 1.0} or {"rewards": {...}}.
//
// Always returns a valid trajectory: an exit code other than 0 is kEnvError, the deadline
// kEnvTimeout, `abort` (may be null; asked a few times a second) kAborted; RecordingProxy::Close
// has the rest. No process of the harness is left.
Task<Trajectory> RunHarnessEpisode(Loop& loop, RecordingProxy& proxy, HarnessOptions options,
                                   Assignment assignment, std::function<bool()> abort);

}  // namespace forebay::rollout
