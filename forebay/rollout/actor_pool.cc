#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/actors.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout {
namespace {

constexpr auto kNextRetryAfter =
    std::chrono::seconds(1);  // when Next fails without being cancelled

// Shared with the actors, so that one that is still parked in Next may outlive the pool.
struct PoolState {
  explicit PoolState(ActorPool::Deps deps_in) : deps(std::move(deps_in)) {
    stats.outcomes.resize(kOutcomes, 0);
  }

  const ActorPool::Deps deps;
  int64_t target = 0;  // actors wanted
  int64_t live = 0;    // actors running
  bool stopping = false;
  bool closed = false;  // the pool is gone, and perhaps what deps points to
  ActorStats stats;
  std::vector<Completion<bool>> drains;  // waiting for stats.running == 0

  bool surplus() const { return stopping || live > target; }
};

void EpisodeEnded(PoolState* state) {
  --state->stats.running;
  if (!state->stopping || state->stats.running > 0) return;
  for (const Completion<bool>& drain : state->drains) drain.Set(true);
  state->drains.clear();
}

Task<void> RunActor(std::shared_ptr<PoolState> state) {
  while (!state->surplus()) {
    Task<Result<Assignment>> next = state->deps.client->Next();
    Result<Assignment> assignment = co_await std::move(next);
    if (state->closed) break;
    if (!assignment.ok()) {
      if (assignment.status().code() == StatusCode::kCancelled) break;
      auto sleep = state->deps.loop->SleepUntil(state->deps.loop->Now() + kNextRetryAfter);
      co_await sleep;
      continue;
    }
    ++state->stats.running;
    // An assignment that arrives while stopping still gets its (aborted) trajectory: nothing is
    // lost silently.
    Task<Trajectory> episode =
        state->deps.play(*assignment, [s = state.get()] { return s->stopping; });
    Trajectory trajectory = co_await std::move(episode);
    ++state->stats.episodes;
    ++state->stats.outcomes[static_cast<size_t>(trajectory.outcome)];
    if (!state->closed) {
      Task<Status> finish = state->deps.client->Finish(std::move(trajectory));
      const Status finished = co_await std::move(finish);
      if (!finished.ok()) ++state->stats.append_failures;
    }
    EpisodeEnded(state.get());
  }
  --state->live;
}

class Pool final : public ActorPool {
 public:
  explicit Pool(Deps deps) : state_(std::make_shared<PoolState>(std::move(deps))) {}
  ~Pool() override {
    state_->stopping = true;
    state_->closed = true;
  }

  void Resize(int64_t actors) override {
    state_->target = actors;
    while (!state_->stopping && state_->live < state_->target) {
      ++state_->live;
      state_->deps.loop->Spawn(RunActor(state_));
    }
  }

  Task<int64_t> Drain(TimePoint deadline) override { return RunDrain(state_, deadline); }

  ActorStats stats() const override { return state_->stats; }

 private:
  static Task<int64_t> RunDrain(std::shared_ptr<PoolState> state, TimePoint deadline) {
    state->stopping = true;
    if (state->stats.running == 0) co_return 0;
    Loop* loop = state->deps.loop;
    const Completion<bool> drained(*loop);
    state->drains.push_back(drained);
    const uint64_t timer = loop->RunAt(deadline, [drained] { drained.Set(false); });
    auto wait = drained.Wait();
    co_await wait;
    loop->Cancel(timer);
    co_return state->stats.running;
  }

  const std::shared_ptr<PoolState> state_;
};

}  // namespace

EpisodePlayer MakeEpisodePlayer(const PlayerDeps& deps, const EpisodeOptions& options) {
  return [deps, options](Assignment assignment, std::function<bool()> abort) {
    return RunEpisode(*deps.loop, *deps.engine, *deps.environments, *deps.tokenizer, *deps.chat,
                      options, assignment, std::move(abort));
  };
}

std::unique_ptr<ActorPool> ActorPool::Create(Deps deps) {
  return std::make_unique<Pool>(std::move(deps));
}

}  // namespace forebay::rollout
