// Goal: a thousand episodes whose environments crash, hang, flood or answer garbage one time in
// five end with exactly the outcomes that were dealt; each failed sample alone is played again
// until its group is whole; nothing of it trains; no process, zombie or descriptor is left.
//
// Real processes, loop, coordinator, buffer and actors; only the engine is scripted.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/coordinator.h"
#include "forebay/env/subprocess.h"
#include "forebay/env/subprocess_testing.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/tiny_model.h"

namespace forebay {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kGroups = 100;
constexpr int32_t kGroupSize = 8;
constexpr int64_t kActors = 24;
constexpr uint64_t kEnvironmentSeed = 2;  // episode.cc derives the environment's seed so

// By the environment's seed modulo 20: 0 crashes (its child outlives it), 1 hangs, 2 floods, 3 is
// garbage, all in the first step; the rest are well.
constexpr const char* kChaos = R"(
say({"forebay_env": 1, "name": "chaos"})
while True:
    r = hear()
    if r["op"] == "reset":
        fault = r["seed"] % 20
        say({"id": r["id"], "messages": [{"role": "user", "content": "go"}]})
    elif r["op"] == "step":
        if fault == 0:
            subprocess.Popen(["sleep", "86399"])
            os._exit(1)
        elif fault == 1:
            while True: time.sleep(3600)
        elif fault == 2:
            raw("x" * (1 << 20))
            time.sleep(3600)
        elif fault == 3:
            raw("Traceback (most recent call last):\n")
        else:
            say({"id": r["id"], "rewards": {"well": 1.0}, "done": True})
    else:
        say({"closed": r["episode"]})
)";

Outcome Dealt(uint64_t seed) {
  const uint64_t fault = DeriveSeed(seed, kEnvironmentSeed) % 20;
  if (fault == 1) return Outcome::kEnvTimeout;
  return fault <= 3 ? Outcome::kEnvError : Outcome::kDone;
}

using Outcomes = std::array<int64_t, kOutcomes>;

// Hands out what the coordinator admits; ends the run when every group is whole.
class Client final : public rollout::ActorClient {
 public:
  Client(Loop& loop, control::Coordinator& coordinator, buffer::Buffer& buffer)
      : loop_(loop), coordinator_(coordinator), buffer_(buffer) {}

  Task<Result<Assignment>> Next() override {
    while (true) {
      if (buffer_.ledger().pending == kGroups * kGroupSize) co_return Cancelled("all are there");
      auto next = coordinator_.TryNext();
      if (!next.ok()) co_return next.status();
      if (next->has_value()) {
        ++dealt[static_cast<size_t>(Dealt((*next)->seed))];
        co_return **next;
      }
      auto sleep = loop_.SleepUntil(loop_.Now() + milliseconds(20));
      co_await sleep;
    }
  }
  Task<Status> Finish(Trajectory trajectory) override {
    ++ended[static_cast<size_t>(trajectory.outcome)];
    Completion<Status> done(loop_);
    buffer_.Append(std::move(trajectory), loop_.Now() + seconds(60),
                   [done](Status status) { done.Set(std::move(status)); });
    auto wait = done.Wait();
    Status status = co_await wait;
    co_return status;
  }

  Outcomes dealt{}, ended{};

 private:
  Loop& loop_;
  control::Coordinator& coordinator_;
  buffer::Buffer& buffer_;
};

// How many processes of this machine were started as `sleep 86399`.
int Grandchildren() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string command{std::istreambuf_iterator<char>(file), {}};
    count += command == std::string(
                            "sleep\0"
                            "86399\0",
                            12)
                 ? 1
                 : 0;
  }
  return count;
}

Task<void> WhenIdle(Loop* loop, rollout::ActorPool* pool, env::EnvironmentPool* environments,
                    const Client* client, buffer::Buffer* buffer) {
  const TimePoint deadline = loop->Now() + seconds(500);
  while (buffer->ledger().pending < kGroups * kGroupSize && loop->Now() < deadline) {
    auto sleep = loop->SleepUntil(loop->Now() + milliseconds(50));
    co_await sleep;
  }
  Task<int64_t> draining = pool->Drain(loop->Now() + seconds(60));
  const int64_t left = co_await std::move(draining);
  EXPECT_EQ(left, 0);
  Task<void> ending = environments->Shutdown(loop->Now() + seconds(5));
  co_await std::move(ending);
  EXPECT_GT(client->ended[0], 0);
}

TEST(ChaosTest, B2_B3_L2_AThousandEpisodesOneInFiveFaultyEndExactly) {
  const int descriptors = env::OpenDescriptors();
  const int grandchildren = Grandchildren();
  {
    const std::unique_ptr<Loop> loop = MakeLoop();
    WorkerPool workers(2);
    const env::TempFolder folder;
    env::SubprocessOptions options = env::RawOptions(folder, kChaos);
    options.processes = kActors;
    options.episodes_per_process = 1;  // a fault costs its own episode only: counts are exact
    options.line_bytes_max = 64 << 10;
    options.hung_episodes_max = 1;
    options.close_grace = seconds(5);  // also on a slow machine only what hangs is late
    options.recycle_deadline = milliseconds(100);
    auto environments = env::SubprocessPool::Create(*loop, options);
    ASSERT_TRUE(environments.ok()) << environments.status().ToString();

    control::Coordinator* told = nullptr;
    buffer::BufferListener listener;
    listener.on_rejected = [&](const TrajectoryId& id, buffer::RejectReason reason) {
      loop->Post([&told, id, reason] { told->OnRejected(id, reason); });
    };
    const auto buffer =
        buffer::Buffer::Open({.durability = buffer::Durability::kMemory, .group_size = kGroupSize},
                             0, listener, nullptr);
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    // Staleness 0 and no new version: exactly one batch is admitted.
    control::Coordinator coordinator({.seed = 11,
                                      .groups_per_step = kGroups,
                                      .group_size = kGroupSize,
                                      .max_staleness = 0,
                                      .attempts_max = 1000},
                                     buffer->get());
    told = &coordinator;
    const rollout::TinyText text = rollout::MakeTinyText();
    rollout::ScriptedEngine engine(
        *loop, milliseconds(2),
        [&](const rollout::GenerateRequest&) -> Result<rollout::GenerateResult> {
          return rollout::Said(*text.tokenizer, "on it");
        });
    Client client(*loop, coordinator, **buffer);
    rollout::EpisodeOptions episode{
        .environment = "chaos", .step_deadline = seconds(10), .stop_tokens = {weights::kTinyEnd}};
    episode.workers = &workers;
    const auto pool = rollout::ActorPool::Create(
        {.loop = loop.get(),
         .client = &client,
         .play = rollout::MakeEpisodePlayer({.loop = loop.get(),
                                             .engine = &engine,
                                             .environments = environments->get(),
                                             .tokenizer = text.tokenizer.get(),
                                             .chat = text.chat.get()},
                                            episode)});
    loop->Post([&] { pool->Resize(kActors); });
    loop->Spawn(WhenIdle(loop.get(), pool.get(), environments->get(), &client, buffer->get()),
                [&] { loop->Stop(); });
    loop->Run();

    EXPECT_EQ(client.ended, client.dealt);
    const int64_t well = kGroups * kGroupSize;
    EXPECT_EQ(client.ended[static_cast<size_t>(Outcome::kDone)], well);
    int64_t episodes = 0;
    for (const int64_t count : client.ended) episodes += count;
    EXPECT_GT(episodes, 940);  // a fifth of about a thousand failed
    const buffer::Ledger ledger = (*buffer)->ledger();
    EXPECT_TRUE(ledger.balanced());
    EXPECT_EQ(ledger.dispatched, episodes);
    EXPECT_EQ(ledger.pending, well);
    EXPECT_EQ(ledger.rejected[static_cast<size_t>(buffer::RejectReason::kOutcome)],
              episodes - well);
    EXPECT_EQ(ledger.in_flight, 0);
    EXPECT_EQ((*buffer)->stats().ready_groups, kGroups);
    EXPECT_TRUE(coordinator.stats().quarantined_tasks.empty());
    const env::SubprocessStats stats = (*environments)->stats();
    EXPECT_EQ(stats.running, 0);
    // The last ones may have been ended by the shutdown instead.
    EXPECT_LE(stats.crashed + stats.recycled, episodes - well);
    EXPECT_GT(stats.crashed + stats.recycled, episodes - well - kActors);
  }
  EXPECT_EQ(env::Children(), 0);
  EXPECT_EQ(Grandchildren(), grandchildren);
  EXPECT_EQ(env::OpenDescriptors(), descriptors);
}

}  // namespace
}  // namespace forebay
