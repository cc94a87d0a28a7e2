// Actors: coroutines that run episodes on a Loop and stream their trajectories into the buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {

struct EpisodeOptions {
  std::string environment;  // its configured name
  std::string split = "train";
  double temperature = 1.0;
  int32_t turns_max = 4;
  int32_t new_tokens_per_turn_max = 64;
  int32_t tokens_max = 512;  // of the whole trajectory
  Duration reset_deadline = std::chrono::seconds(30);
  Duration step_deadline = std::chrono::seconds(60);
  Duration generate_deadline = std::chrono::seconds(120);
  std::vector<int32_t> stop_tokens;  // the model's end of turn
  std::string bos_token, eos_token;  // what the chat template calls so
  std::string tools_json;            // a JSON array for the chat template, or ""
  // Templates, tokenizing and the check of a finished trajectory run there, so that thousands of
  // episodes do not hold up each other's timers. Null: on the loop. Must outlive the episodes.
  WorkerPool* workers = nullptr;
  // Told why an episode ended in an infrastructure outcome; may be null. Called on the loop.
  std::function<void(const TrajectoryId&, Outcome, const Status&)> on_failure;
};

// Whether RunEpisode can work with this tokenizer and template: a conversation that goes on renders
// as the same text with more behind it. kInvalidArgument says what is wrong. For the start of a
// program: RunEpisode would end every episode of several turns with kEnvError.
Status CheckEpisodeSetup(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat,
                         const EpisodeOptions& options);

// Runs one episode to its end (what is passed by reference must live that long): always returns a
// trajectory (Validate holds), whatever fails; the outcome says what. `abort` (may be null) is
// asked between turns; when true the outcome is kAborted. Messages become tokens through the chat
// template once; later turns append only the tokens of the new messages, so what was sampled is
// never re-tokenized.
Task<Trajectory> RunEpisode(Loop& loop, Engine& engine, env::EnvironmentPool& pool,
                            const tokenizer::Tokenizer& tokenizer,
                            const tokenizer::ChatTemplate& chat, const EpisodeOptions& options,
                            Assignment assignment, std::function<bool()> abort);

// Plays one episode to its end and always returns a valid trajectory, whatever fails. `abort` (may
// be null) is asked now and then; when true the outcome is kAborted. On the loop. The player must
// outlive the tasks it has made.
using EpisodePlayer = std::function<Task<Trajectory>(Assignment, std::function<bool()> abort)>;

// RunEpisode with these as a player; what is pointed to must outlive it.
struct PlayerDeps {
  Loop* loop;
  Engine* engine;
  env::EnvironmentPool* environments;
  const tokenizer::Tokenizer* tokenizer;
  const tokenizer::ChatTemplate* chat;
};
EpisodePlayer MakeEpisodePlayer(const PlayerDeps& deps, const EpisodeOptions& options);

// Where actors get work and leave results (the coordinator, wired in apps/). Called on the loop.
class ActorClient {
 public:
  virtual ~ActorClient() = default;
  // Waits until an episode is admitted. kCancelled: stop.
  virtual Task<Result<Assignment>> Next() = 0;
  // Ends the assignment; returns when the buffer has acknowledged (or refused) it.
  virtual Task<Status> Finish(Trajectory trajectory) = 0;
};

struct ActorStats {
  int64_t episodes = 0;  // finished
  int64_t running = 0;
  std::vector<int64_t> outcomes;  // by Outcome
  int64_t append_failures = 0;
};

// A resizable pool of actors on one loop. All calls on the loop.
class ActorPool {
 public:
  struct Deps {
    Loop* loop;
    ActorClient* client;
    EpisodePlayer play;  // how an actor plays what it was assigned
  };
  static std::unique_ptr<ActorPool> Create(Deps deps);
  virtual ~ActorPool() = default;
  // Starts actors, or lets the surplus end after its current episode.
  virtual void Resize(int64_t actors) = 0;
  // Aborts episodes at their next turn, starts none. Returns when all have ended, or at the
  // deadline with how many are left.
  virtual Task<int64_t> Drain(TimePoint deadline) = 0;
  virtual ActorStats stats() const = 0;
};

}  // namespace forebay::rollout
