// Goal: the slow environment has the latencies, turns and rewards it promises, from its seed, on
// virtual time.
#include "forebay/env/builtin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess_testing.h"

namespace forebay::env {
namespace {

using std::chrono::hours;
using ::testing::HasSubstr;

struct Episode {
  int turns = 0;
  double reward = 0;
  std::string prompt;
  std::vector<double> latencies_s;
  friend bool operator==(const Episode&, const Episode&) = default;
};

Task<void> Play(Loop* loop, EnvironmentPool* pool, ResetRequest request, std::string action,
                Episode* out) {
  auto place = co_await pool->Acquire(loop->Now() + hours(24));
  EXPECT_TRUE(place.ok()) << place.status().ToString();
  if (!place.ok()) co_return;
  auto first = co_await (*place)->Reset(request, loop->Now() + hours(24));
  EXPECT_TRUE(first.ok());
  out->prompt = first->at(0).content;
  for (bool done = false; !done;) {
    const TimePoint begin = loop->Now();
    auto step = co_await (*place)->Step(action, loop->Now() + hours(24));
    EXPECT_TRUE(step.ok()) << step.status().ToString();
    if (!step.ok()) co_return;
    out->latencies_s.push_back(Seconds(loop->Now() - begin));
    for (const auto& [name, value] : step->rewards) out->reward += value;
    ++out->turns;
    done = step->done;
    EXPECT_EQ(step->messages.empty(), done);
  }
}

std::unique_ptr<EnvironmentPool> Slow(Loop& loop, const nlohmann::json& options) {
  auto pool = MakeBuiltin("slow", options, loop);
  EXPECT_TRUE(pool.ok()) << pool.status().ToString();
  return std::move(*pool);
}

std::vector<Episode> PlayMany(int64_t count, const nlohmann::json& options,
                              const std::string& action) {
  auto loop = MakeVirtualLoop();
  auto pool = Slow(*loop, options);
  std::vector<Episode> episodes(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    ResetRequest request{.task_id = i, .split = "train", .seed = static_cast<uint64_t>(i)};
    loop->Spawn(Play(loop.get(), pool.get(), request, action, &episodes[static_cast<size_t>(i)]));
  }
  loop->Run();
  return episodes;
}

TEST(SlowEnv, LatenciesHaveTheirPercentilesAndTurnsTheirRange) {
  const auto episodes = PlayMany(
      3000, {{"turns_min", 2}, {"turns_max", 4}, {"latency_p50_s", 3.0}, {"latency_p99_s", 30}},
      "a");
  std::vector<double> latencies;
  std::vector<int> turns(5);
  for (const Episode& episode : episodes) {
    ASSERT_GE(episode.turns, 2);
    ASSERT_LE(episode.turns, 4);
    ++turns[static_cast<size_t>(episode.turns)];
    latencies.insert(latencies.end(), episode.latencies_s.begin(), episode.latencies_s.end());
  }
  for (int n = 2; n <= 4; ++n) EXPECT_NEAR(turns[static_cast<size_t>(n)], 1000, 120);
  std::sort(latencies.begin(), latencies.end());
  EXPECT_NEAR(latencies[latencies.size() / 2], 3.0, 0.2);
  EXPECT_NEAR(latencies[latencies.size() * 99 / 100], 30.0, 5.0);
  EXPECT_LE(latencies.back(), 120.0);
}

TEST(SlowEnv, TheSameSeedGivesTheSameEpisode) {
  const nlohmann::json options = {{"turns_max", 5}};
  EXPECT_EQ(PlayMany(50, options, "abc"), PlayMany(50, options, "abc"));
}

TEST(SlowEnv, TheRewardIsTheFractionOfTheLetter) {
  const nlohmann::json options = {{"letters", 2}, {"latency_p50_s", 0}, {"latency_p99_s", 0}};
  const auto episodes = PlayMany(2, options, "aAbx");
  EXPECT_EQ(episodes[0].prompt, "Write only the letter a.");
  EXPECT_NEAR(episodes[0].reward, 0.5, 1e-12);
  EXPECT_EQ(episodes[1].prompt, "Write only the letter b.");
  EXPECT_NEAR(episodes[1].reward, 0.25, 1e-12);
  EXPECT_EQ(PlayMany(1, options, "")[0].reward, 0.0);
  EXPECT_NEAR(PlayMany(1, options, "aaaa")[0].reward, 1.0, 1e-12);
}

TEST(SlowEnv, AStepBeyondItsDeadlineIsTyped) {
  auto loop = MakeVirtualLoop();
  auto pool = Slow(*loop, {{"latency_p50_s", 10}, {"latency_p99_s", 10}});
  RunToEnd(*loop, [](Loop* l, EnvironmentPool* p) -> Task<void> {
    auto place = co_await p->Acquire(l->Now() + hours(1));
    const ResetRequest request;
    auto first = co_await (*place)->Reset(request, l->Now() + hours(1));
    EXPECT_TRUE(first.ok());
    const TimePoint deadline = l->Now() + std::chrono::seconds(4);
    auto step = co_await (*place)->Step("a", deadline);
    EXPECT_EQ(step.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(l->Now(), deadline);
  }(loop.get(), pool.get()));
}

TEST(SlowEnv, PlacesAreLimitedGivenBackAndEndWithShutdown) {
  auto loop = MakeVirtualLoop();
  auto pool = Slow(*loop, {{"episodes_max", 1}});
  RunToEnd(*loop, [](Loop* l, EnvironmentPool* p) -> Task<void> {
    auto first = co_await p->Acquire(l->Now() + hours(1));
    EXPECT_TRUE(first.ok());
    auto none = co_await p->Acquire(l->Now() + hours(1));
    EXPECT_EQ(none.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(none.status().message(), HasSubstr("episodes_max"));
    first->reset();
    auto again = co_await p->Acquire(l->Now() + hours(1));
    EXPECT_TRUE(again.ok());
    co_await p->Shutdown(l->Now() + hours(1));
    auto stopped = co_await p->Acquire(l->Now() + hours(1));
    EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
  }(loop.get(), pool.get()));
}

TEST(SlowEnv, EpisodesMayBeDroppedAtAnyTime) {
  auto loop = MakeVirtualLoop();
  auto pool = Slow(*loop, {{"episodes_max", 1}});
  const auto play = [](Loop* l, EnvironmentPool* p, bool* stepped) -> Droppable {
    auto place = co_await p->Acquire(l->Now() + hours(1));
    const ResetRequest request;
    auto first = co_await (*place)->Reset(request, l->Now() + hours(1));
    *stepped = true;
    auto step = co_await (*place)->Step("a", l->Now() + hours(1));
    ADD_FAILURE() << "it was dropped";
  };
  bool stepped[2] = {};
  Droppable in_step = play(loop.get(), pool.get(), &stepped[0]);
  while (!stepped[0]) {
    loop->RunAt(loop->Now() + std::chrono::milliseconds(1), [&loop] { loop->Stop(); });
    loop->Run();
  }
  const Droppable in_acquire = play(loop.get(), pool.get(), &stepped[1]);
  in_step.handle.destroy();  // its place goes to the other, which has not taken it yet
  in_acquire.handle.destroy();
  int ended = 0;
  Episode episode;
  loop->Spawn(Play(loop.get(), pool.get(), {}, "a", &episode), [&ended] { ++ended; });
  loop->Run();
  EXPECT_EQ(ended, 1);
  EXPECT_GT(episode.turns, 0);
  EXPECT_FALSE(stepped[1]);
}

TEST(Builtin, WrongNamesAndOptionsSayWhatIsRight) {
  auto loop = MakeVirtualLoop();
  EXPECT_EQ(MakeBuiltin("fast", {}, *loop).status().code(), StatusCode::kNotFound);
  const std::vector<std::pair<nlohmann::json, std::string>> cases = {
      {{{"turns", 3}}, "turns_max"},
      {{{"turns_max", "3"}}, "whole number"},
      {{{"turns_max", 2.5}}, "whole number"},
      {{{"turns_min", 0}}, "turns_min"},
      {{{"turns_min", 3}, {"turns_max", 2}}, "turns_min"},
      {{{"latency_p50_s", true}}, "a number"},
      {{{"latency_p50_s", 7}}, "latency_p99_s"},
      {{{"latency_p50_s", -1}}, "latency_p50_s"},
      {{{"reset_p50_s", -1}}, "reset_p50_s"},
      {{{"letters", 27}}, "letters"},
      {{{"episodes_max", 0}}, "episodes_max"},
      {nlohmann::json::array({1}), "table"},
  };
  for (const auto& [options, text] : cases) {
    const auto pool = MakeBuiltin("slow", options, *loop);
    ASSERT_FALSE(pool.ok()) << options.dump();
    EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(pool.status().message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace forebay::env
