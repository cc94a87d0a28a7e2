// ActorPool: thousands of episodes that sleep, on one loop; resizing and draining lose nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {
namespace {

using std::chrono::seconds;

// Hands out `limit` assignments, then cancels.
class CountingClient final : public ActorClient {
 public:
  CountingClient(Loop& loop, int64_t limit) : loop_(loop), limit_(limit) {}

  Task<Result<Assignment>> Next() override {
    if (fail_next) {
      fail_next = false;
      co_return Unavailable("the coordinator is busy");
    }
    if (parked) {
      Completion<bool> wait(loop_);
      waiting.push_back(wait);
      auto released = wait.Wait();
      co_await released;
      co_return Cancelled("stop");
    }
    if (next_ >= limit_) co_return Cancelled("stop");
    Assignment assignment;
    assignment.id.trajectory_id = next_++;
    co_return assignment;
  }
  Task<Status> Finish(Trajectory trajectory) override {
    auto sleep = loop_.SleepUntil(loop_.Now() + seconds(1));
    co_await sleep;
    finished.push_back(std::move(trajectory));
    co_return finish_status;
  }

  int64_t dispatched() const { return next_; }
  std::vector<Trajectory> finished;
  std::deque<Completion<bool>> waiting;
  bool parked = false, fail_next = false;
  Status finish_status;

 private:
  Loop& loop_;
  const int64_t limit_;
  int64_t next_ = 0;
};

class Rig {
 public:
  explicit Rig(int64_t episodes)
      : loop(MakeVirtualLoop()),
        engine(*loop, std::chrono::milliseconds(100),
               [this](const GenerateRequest&) -> Result<GenerateResult> {
                 return Said(*text.tokenizer, "4");
               }),
        environments(*loop, &script),
        client(*loop, episodes) {
    script.takes = seconds(60);  // a slow tool
    script.reset = [](const env::ResetRequest&) -> Result<std::vector<env::Message>> {
      return std::vector<env::Message>{{"user", "2+2?"}};
    };
    script.step = [](const std::string&) -> Result<env::StepResult> {
      return env::StepResult{.done = true};
    };
    pool = ActorPool::Create({.loop = loop.get(),
                              .client = &client,
                              .play = MakeEpisodePlayer({.loop = loop.get(),
                                                         .engine = &engine,
                                                         .environments = &environments,
                                                         .tokenizer = text.tokenizer.get(),
                                                         .chat = text.chat.get()},
                                                        {.environment = "scripted",
                                                         .stop_tokens = {weights::kTinyEnd}})});
  }

  // Drains at `when`; the result comes when the loop has run.
  void DrainAt(Duration when, Duration patience, std::optional<int64_t>* left) {
    loop->Spawn(Drain(when, patience, left));
  }

  TinyText text = MakeTinyText();
  std::unique_ptr<Loop> loop;
  ScriptedEngine engine;
  EnvironmentScript script;
  ScriptedPool environments;
  CountingClient client;
  std::unique_ptr<ActorPool> pool;

 private:
  Task<void> Drain(Duration when, Duration patience, std::optional<int64_t>* left) {
    auto sleep = loop->SleepUntil(loop->Now() + when);
    co_await sleep;
    Task<int64_t> draining = pool->Drain(loop->Now() + patience);
    const int64_t count = co_await std::move(draining);
    left->emplace(count);
  }
};

TEST(ActorPoolTest, TwoThousandEpisodesSleepTogether) {
  Rig rig(4000);
  rig.pool->Resize(2000);
  const TimePoint start = rig.loop->Now();
  rig.loop->Run();
  EXPECT_EQ(rig.client.finished.size(), 4000U);
  std::set<int64_t> ids;
  for (const Trajectory& t : rig.client.finished) ids.insert(t.id.trajectory_id);
  EXPECT_EQ(ids.size(), 4000U) << "each once";
  EXPECT_EQ(rig.pool->stats().episodes, 4000);
  EXPECT_EQ(rig.pool->stats().running, 0);
  EXPECT_EQ(rig.pool->stats().outcomes[static_cast<size_t>(Outcome::kDone)], 4000);
  // Two rounds of two slow calls, not two thousand.
  EXPECT_LT(rig.loop->Now() - start, seconds(300));
}

TEST(ActorPoolTest, ResizeStartsActorsAndLetsTheSurplusEnd) {
  Rig rig(1000000);
  rig.pool->Resize(10);
  std::vector<int64_t> running;
  const TimePoint start = rig.loop->Now();
  const auto look = [&] { running.push_back(rig.pool->stats().running); };
  rig.loop->RunAt(start + seconds(50), look);
  rig.loop->RunAt(start + seconds(51), [&] { rig.pool->Resize(3); });
  rig.loop->RunAt(start + seconds(52), look);
  rig.loop->RunAt(start + seconds(200), look);
  rig.loop->RunAt(start + seconds(201), [&] { rig.pool->Resize(6); });
  rig.loop->RunAt(start + seconds(202), look);
  rig.loop->RunAt(start + seconds(203), [&] { rig.loop->Stop(); });
  rig.loop->Run();
  EXPECT_THAT(running, ::testing::ElementsAre(10, 10, 3, 6));
  std::optional<int64_t> left;
  rig.DrainAt(seconds(0), seconds(1000), &left);
  rig.loop->Run();
  EXPECT_EQ(left, 0);
}

TEST(ActorPoolTest, DrainAbortsAtTheNextTurnAndLosesNothing) {
  Rig rig(1000000);
  rig.pool->Resize(20);
  std::optional<int64_t> left;
  rig.DrainAt(seconds(30), seconds(1000), &left);  // all are in Reset then
  rig.loop->Run();
  EXPECT_EQ(left, 0);
  EXPECT_EQ(static_cast<int64_t>(rig.client.finished.size()), rig.client.dispatched());
  EXPECT_EQ(rig.client.dispatched(), 20) << "none is started";
  EXPECT_EQ(rig.pool->stats().outcomes[static_cast<size_t>(Outcome::kAborted)], 20);
  EXPECT_TRUE(rig.engine.requests.empty());
}

TEST(ActorPoolTest, L7_DrainReturnsAtItsDeadlineWithHowManyAreLeft) {
  Rig rig(1000000);
  rig.pool->Resize(5);
  std::optional<int64_t> left;
  rig.DrainAt(seconds(30), seconds(10), &left);
  rig.loop->RunAt(rig.loop->Now() + seconds(45), [&] { EXPECT_EQ(left, 5); });
  rig.loop->Run();
  EXPECT_EQ(rig.pool->stats().running, 0) << "they end later";
}

TEST(ActorPoolTest, ActorsThatWaitForWorkHoldUpNoDrainAndOutliveThePool) {
  Rig rig(1000000);
  rig.client.parked = true;
  rig.pool->Resize(4);
  std::optional<int64_t> left;
  rig.DrainAt(seconds(1), seconds(10), &left);
  rig.loop->Run();
  EXPECT_EQ(left, 0);
  ASSERT_EQ(rig.client.waiting.size(), 4U);
  rig.pool.reset();
  for (const Completion<bool>& waiting : rig.client.waiting) waiting.Set(true);
  rig.loop->Run();
}

TEST(ActorPoolTest, RefusedTrajectoriesAreCountedAndABusyCoordinatorIsAskedAgain) {
  Rig rig(3);
  rig.client.fail_next = true;
  rig.client.finish_status = NotFound("late");
  rig.pool->Resize(1);
  rig.loop->Run();
  EXPECT_EQ(rig.pool->stats().append_failures, 3);
  EXPECT_EQ(rig.pool->stats().episodes, 3);
}

TEST(ActorPoolTest, EpisodesMayBePlayedByOthers) {
  const std::unique_ptr<Loop> loop = MakeVirtualLoop();
  CountingClient client(*loop, 5);
  int64_t aborts = 0;
  const auto play = [&](Assignment assignment, std::function<bool()> abort) -> Task<Trajectory> {
    Trajectory out{.id = assignment.id};
    auto sleep = loop->SleepUntil(loop->Now() + seconds(60));
    co_await sleep;
    if (abort()) {
      ++aborts;
      out.outcome = Outcome::kAborted;
    }
    co_return out;
  };
  const std::unique_ptr<ActorPool> pool =
      ActorPool::Create({.loop = loop.get(), .client = &client, .play = play});
  pool->Resize(2);
  std::optional<int64_t> left;
  // The first two are played to their end, the next two are told to stop.
  const auto drain = [&]() -> Task<void> {
    auto sleep = loop->SleepUntil(loop->Now() + seconds(90));
    co_await sleep;
    Task<int64_t> draining = pool->Drain(loop->Now() + seconds(600));
    left = co_await std::move(draining);
  };
  loop->Spawn(drain());
  loop->Run();
  EXPECT_EQ(left, 0);
  EXPECT_EQ(client.finished.size(), 4U);
  EXPECT_EQ(aborts, 2);
  EXPECT_EQ(pool->stats().outcomes[static_cast<size_t>(Outcome::kAborted)], 2);
}

}  // namespace
}  // namespace forebay::rollout
