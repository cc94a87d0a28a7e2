// An engine over servers that answer what a test tells them to: load, deaths, weights, garbage.
#include "forebay/rollout/http_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/more_time_testing.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/scripted_servers_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {
namespace {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(HttpEngineTest, TokensAndLogprobsComeBackWithTheirVersion) {
  Vllm server;
  server.key = options_.token = "secret";
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const auto result = Ask(**engine).get();
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_THAT(result->tokens, ElementsAre(72, weights::kTinyEnd));
  EXPECT_THAT(result->logprobs, ElementsAre(-1, -1));
  EXPECT_THAT(result->versions, ElementsAre(VersionRun{.policy_version = 0, .tokens = 2}));
  EXPECT_EQ((*engine)->stats().sampled_tokens, 2);
  EXPECT_EQ((*engine)->weights_digest(), weights::Digest(Weights(0)->tensors));
}

TEST_F(HttpEngineTest, WhatCannotBeUsedIsSaidAtTheStart) {
  Vllm server;
  server.key = "secret";
  auto engine = Make({&server});
  EXPECT_EQ(engine.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(engine.status().message(), HasSubstr("401"));
  Vllm other;
  other.model = "another";
  options_.servers = {other.url()};
  engine = MakeHttpEngine(options_, *Weights(0));
  EXPECT_THAT(engine.status().message(),
              HasSubstr("does not serve the model 'policy' but 'another'"));
  other.model = "policy";
  other.garbage = true;
  EXPECT_TRUE(WithMoreTime(milliseconds(300), [&](Duration within) {
    options_.start_deadline = within;
    engine = MakeHttpEngine(options_, *Weights(0));
    EXPECT_FALSE(engine.ok());
    return engine.status().message().find("no log-probabilities") != std::string::npos;
  }));
  options_.start_deadline = std::chrono::minutes(5);
  other.garbage = false;
  options_.context = 1000;
  engine = MakeHttpEngine(options_, *Weights(0));
  EXPECT_THAT(engine.status().message(), HasSubstr("rollout.context"));
  options_.servers = {"ftp://x"};
  EXPECT_EQ(MakeHttpEngine(options_, *Weights(0)).status().code(), StatusCode::kInvalidArgument);
  options_.servers = {other.url(), server.url(), other.url()};
  EXPECT_THAT(MakeHttpEngine(options_, *Weights(0)).status().message(),
              HasSubstr("'" + other.url() + "' is listed twice"));
}

TEST_F(HttpEngineTest, ItIsSaidAtOnceWhoIsWaitedForAndThenWhatIsWrong) {
  Mutex mutex;
  std::vector<std::string> said;
  options_.log = [&](const std::string& sentence) {
    const MutexLock lock(mutex);
    said.push_back(sentence);
  };
  options_.servers = {"unix:" + ::testing::TempDir() + "/forebay_nobody.sock:"};
  EXPECT_TRUE(WithMoreTime(milliseconds(300), [&](Duration within) {
    said.clear();
    options_.start_deadline = within;
    const auto engine = MakeHttpEngine(options_, *Weights(0));
    const MutexLock lock(mutex);
    EXPECT_THAT(said.at(0), HasSubstr("waiting for unix:"));
    if (said.size() < 2) return false;  // it had no time to find out
    EXPECT_EQ(engine.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(said[1], HasSubstr("forebay_nobody.sock: cannot be used: "));
    return true;
  }));
}

TEST_F(HttpEngineTest, T2_LogprobsOfAnotherDistributionAreRefused) {
  Vllm server;
  server.raw = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_TRUE(Ask(**engine, 1).get().ok());
  const auto result = Ask(**engine, 0.5).get();
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr("--logprobs-mode processed_logprobs"));
}

TEST_F(HttpEngineTest, RequestsGoWhereTheFewestAreAndTheRestWaits) {
  Vllm one, two;
  options_.requests_per_server_max = 2;
  const auto engine = Make({&one, &two});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  one.hangs = two.hangs = true;
  std::vector<std::future<Result<GenerateResult>>> results;
  for (int i = 0; i < 6; ++i) results.push_back(Ask(**engine));
  Until([&] { return one.running == 2 && two.running == 2; });
  EXPECT_EQ((*engine)->stats().waiting, 2);
  one.hangs = two.hangs = false;
  for (auto& result : results) EXPECT_TRUE(result.get().ok());
  EXPECT_LE(one.most_running, 2);
  EXPECT_LE(two.most_running, 2);
}

TEST_F(HttpEngineTest, CancelAndDeadlineCloseTheConnection) {
  Vllm server;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.hangs = true;
  EXPECT_TRUE(WithMoreTime(milliseconds(100), [&](Duration within) {
    std::promise<Result<GenerateResult>> late;
    (*engine)->Generate({.prompt = {1}, .deadline = Now() + within},
                        [&](Result<GenerateResult> r) { late.set_value(std::move(r)); });
    EXPECT_EQ(late.get_future().get().status().code(), StatusCode::kDeadlineExceeded);
    return server.most_running > 0;  // the request came so far
  }));
  Until([&] { return server.gone > 0 && server.running == 0; });
  const int gone = server.gone;
  std::promise<Result<GenerateResult>> cancelled;
  const uint64_t id = (*engine)->Generate(
      {.prompt = {1}}, [&](Result<GenerateResult> r) { cancelled.set_value(std::move(r)); });
  Until([&] { return server.running == 1; });
  (*engine)->Cancel(id);
  EXPECT_EQ(cancelled.get_future().get().status().code(), StatusCode::kCancelled);
  Until([&] { return server.gone > gone; });
  (*engine)->Cancel(id);
}

TEST_F(HttpEngineTest, L1_ADeadServersLoadMovesAndTheLastOneFailsEverythingAtOnce) {
  Vllm one, two;
  const auto engine = Make({&one, &two});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  one.hangs = two.hangs = true;
  auto first = Ask(**engine);
  auto second = Ask(**engine);
  Until([&] { return one.running == 1 && two.running == 1; });
  one.Die();
  two.hangs = false;
  // One of the two was on it.
  const auto results = {first.get(), second.get()};
  EXPECT_EQ(std::ranges::count_if(results, [](const auto& r) { return r.ok(); }), 1);
  for (const auto& r : results) {
    if (r.ok()) continue;
    EXPECT_EQ(r.status().code(), StatusCode::kInternal);  // of one request: a server is left
  }
  for (int i = 0; i < 4; ++i) {
    const auto moved = Ask(**engine).get();
    EXPECT_TRUE(moved.ok()) << moved.status().ToString();
  }
  two.Die();
  Until([&] { return Ask(**engine).get().status().code() == StatusCode::kUnavailable; });
  const auto dead = Ask(**engine).get();
  EXPECT_THAT(dead.status().message(), HasSubstr("none of the 2 rollout servers"));
}

TEST_F(HttpEngineTest, AServerThatHangsIsLeftAndTakenBack) {
  Vllm server;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.hangs = true;
  auto stuck = Ask(**engine);
  Until([&] { return server.running == 1; });
  server.sick = true;
  EXPECT_EQ(stuck.get().status().code(), StatusCode::kInternal);
  server.hangs = server.sick = false;
  Until([&] { return Ask(**engine).get().ok(); });
}

TEST_F(HttpEngineTest, L1_AServerThatFailsSomeRequestsIsNotDead) {
  Vllm server;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.fails_each = 3;
  int failed = 0;
  for (int i = 0; i < 200; ++i) {
    const auto result = Ask(**engine).get();
    if (result.ok()) continue;
    ++failed;
    EXPECT_EQ(result.status().code(), StatusCode::kInternal) << result.status().ToString();
    EXPECT_THAT(result.status().message(), HasSubstr("500"));
  }
  EXPECT_GE(failed, 50);
  EXPECT_LE(failed, 70);
  // Nothing but failures is another thing, and so is a server that comes to itself again.
  server.fails_each = 1;
  Until([&] { return Ask(**engine).get().status().code() == StatusCode::kUnavailable; });
  server.fails_each = 0;
  Until([&] { return Ask(**engine).get().ok(); });
}

TEST_F(HttpEngineTest, GarbageIsAnErrorOfItsRequestAlone) {
  Vllm server;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.garbage = true;
  EXPECT_EQ(Ask(**engine).get().status().code(), StatusCode::kDataLoss);
  server.garbage = false;
  EXPECT_TRUE(Ask(**engine).get().ok());
}

TEST_F(HttpEngineTest, NewWeightsAreReloadedByEveryServerInItsOrder) {
  Vllm one, two;
  options_.reload = true;
  const auto engine = Make({&one, &two});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_EQ(one.version, "0");  // the run's own, from the first request on
  ASSERT_TRUE(Publish(**engine, Weights(1)).ok());
  EXPECT_EQ((*engine)->policy_version(), 1);
  EXPECT_EQ((*engine)->weights_digest(), weights::Digest(Weights(1)->tensors));
  for (int i = 0; i < 4; ++i) {
    const auto result = Ask(**engine).get();
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->versions.front().policy_version, 1);
  }
  std::vector<std::string> calls = two.calls();
  const auto pause = std::ranges::find(calls, "/pause");
  ASSERT_NE(pause, calls.end());
  calls.erase(calls.begin(), pause);
  calls.resize(6);
  EXPECT_THAT(calls, ElementsAre("/pause", "/collective_rpc", "/reset_prefix_cache",
                                 "/update_weight_version", "/resume", "/weight_info"));
  (*engine)->Shutdown();
  EXPECT_FALSE(std::filesystem::exists(options_.weights_folder));
}

TEST_F(HttpEngineTest, WhatOthersKeepInTheFolderStays) {
  Vllm server;
  options_.reload = true;
  std::filesystem::create_directories(options_.weights_folder);
  const std::string foreign = options_.weights_folder + "/model.safetensors";
  ASSERT_TRUE(WriteFileAtomic(foreign, "of somebody else").ok());
  {
    const auto engine = Make({&server});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    ASSERT_TRUE(Publish(**engine, Weights(1)).ok());
  }
  EXPECT_EQ(ReadFile(foreign, 100).value(), "of somebody else");
  int64_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options_.weights_folder)) {
    left += entry.exists() ? 1 : 0;
  }
  EXPECT_EQ(left, 1);
  std::filesystem::remove_all(options_.weights_folder);
}

TEST_F(HttpEngineTest, AServersDeadlineBeginsWithItsTurn) {
  options_.reload = true;
  EXPECT_TRUE(WithMoreTime(std::chrono::seconds(1), [&](Duration takes) {
    Vllm one, two, three;
    options_.servers.clear();
    options_.reload_deadline = 5 * takes / 2;
    const auto engine = Make({&one, &two, &three});
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    // Each takes most of its deadline; all of them together more than it.
    one.reload_takes = two.reload_takes = three.reload_takes =
        std::chrono::duration_cast<milliseconds>(takes);
    const Status published = Publish(**engine, Weights(1));
    (*engine)->Shutdown();
    return published.ok() && one.version == "1" && two.version == "1" && three.version == "1";
  }));
}

TEST_F(HttpEngineTest, L1_AServerThatFreezesDoesNotHoldUpNewWeightsOfTheOthers) {
  options_.reload = true;
  Mutex mutex;
  std::string log;
  options_.log = [&](const std::string& sentence) {
    const MutexLock lock(mutex);
    log += sentence + "\n";
  };
  for (const bool loading : {true, false}) {
    EXPECT_TRUE(WithMoreTime(milliseconds(200), [&](Duration within) {
      Vllm one, two;
      options_.servers.clear();
      options_.health_deadline = within;
      const auto engine = Make({&one, &two});
      EXPECT_TRUE(engine.ok()) << engine.status().ToString();
      if (!engine.ok()) return true;
      // While it loads them, or while its request is waited for.
      one.hangs = two.hangs = !loading;
      std::vector<std::future<Result<GenerateResult>>> asked;
      for (int i = 0; i < 2; ++i) asked.push_back(Ask(**engine));
      if (!loading) Until([&] { return one.running == 1 && two.running == 1; });
      two.freezes = loading;
      two.frozen = !loading;
      one.hangs = two.hangs = false;
      const Status published = Publish(**engine, Weights(1));
      for (auto& each : asked) {
        const auto code = each.get().status().code();
        EXPECT_TRUE(code == StatusCode::kOk || code == StatusCode::kInternal);
      }
      const bool settled = published.ok() && one.version == "1" && two.version != "1";
      two.freezes = two.frozen = false;
      if (!settled) return false;
      {
        const MutexLock lock(mutex);
        EXPECT_THAT(log, HasSubstr(two.url() + " cannot be used"));
        // Else it was too slow before it froze.
        if (loading && log.find(two.url() + " stopped answering while it was given weights") ==
                           std::string::npos) {
          return false;
        }
      }
      Until([&] { return two.version == "1"; });  // taken back
      (*engine)->Shutdown();
      return true;
    }));
  }
}

TEST_F(HttpEngineTest, AServerThatAKilledRunLeftPausedIsRoused) {
  Vllm server;
  server.paused = true;
  options_.reload = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_TRUE(Ask(**engine).get().ok());
}

TEST_F(HttpEngineTest, ARunningRequestKeepsItsWeights) {
  Vllm server;
  options_.reload = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.hangs = true;
  auto before = Ask(**engine);
  Until([&] { return server.running == 1; });
  std::promise<Status> taken;
  (*engine)->Publish(Weights(1), [&](Status s) { taken.set_value(std::move(s)); });
  auto after = Ask(**engine);
  server.hangs = false;
  EXPECT_TRUE(taken.get_future().get().ok());
  EXPECT_EQ(before.get()->versions.front().policy_version, 0);
  const auto result = after.get();
  ASSERT_TRUE(result.ok()) << result.status().ToString();
}

TEST_F(HttpEngineTest, W1_WeightsThatDoNotCoverTheModelAreRefused) {
  Vllm server;
  options_.reload = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const Status missing = Publish(**engine, Weights(1, {"a"}));
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(missing.message(), HasSubstr("'b' is missing"));
  EXPECT_THAT(Publish(**engine, Weights(1, {"a", "b", "c"})).message(),
              HasSubstr("'c' is not of the model"));
  EXPECT_EQ((*engine)->policy_version(), 0);
  EXPECT_TRUE(Ask(**engine).get().ok());
}

TEST_F(HttpEngineTest, W1_AServerThatDidNotTakeTheWeightsGetsNoRequests) {
  Vllm one, two;
  options_.reload = true;
  const auto engine = Make({&one, &two});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  two.refuses_weights = true;
  ASSERT_TRUE(Publish(**engine, Weights(1)).ok());  // one has them
  const int before = two.generated;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Ask(**engine).get()->versions.front().policy_version, 1);
  one.refuses_weights = true;
  const Status none = Publish(**engine, Weights(2));
  EXPECT_EQ(none.code(), StatusCode::kUnavailable);
  EXPECT_THAT(none.message(), HasSubstr("no rollout server took the new weights"));
  EXPECT_EQ((*engine)->policy_version(), 1);
  EXPECT_GE(two.generated, before);  // only what asks who it is
  one.refuses_weights = two.refuses_weights = false;
  Until([&] {
    const auto result = Ask(**engine).get();
    return result.ok() && result->versions.front().policy_version == 2;
  });
}

TEST_F(HttpEngineTest, FixedWeightsEndARunBeforeItsTokensAreTooOld) {
  Vllm server;
  options_.versions_ahead_max = 1;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_TRUE(Publish(**engine, Weights(1)).ok());
  EXPECT_EQ((*engine)->policy_version(), 0);  // what samples
  EXPECT_EQ(Ask(**engine).get()->versions.front().policy_version, 0);
  const Status late = Publish(**engine, Weights(2));
  EXPECT_EQ(late.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(late.message(), HasSubstr("buffer.max_staleness"));
}

TEST_F(HttpEngineTest, ShutdownFailsWhatRunsAndNothingIsLost) {
  Vllm server;
  options_.requests_per_server_max = 1;
  auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.hangs = true;
  auto running = Ask(**engine);
  auto waiting = Ask(**engine);
  Until([&] { return server.running == 1; });
  (*engine)->Shutdown();
  EXPECT_EQ(running.get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(waiting.get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Ask(**engine).get().status().code(), StatusCode::kUnavailable);
  server.hangs = false;
}

TEST_F(HttpEngineTest, WeightsThatAShutdownComesBeforeAreNotTaken) {
  Vllm server;
  options_.reload = true;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  server.hangs = true;  // the reload waits for this request
  auto running = Ask(**engine);
  Until([&] { return server.running == 1; });
  std::promise<Status> first, second;
  (*engine)->Publish(Weights(1), [&](Status s) { first.set_value(std::move(s)); });
  (*engine)->Publish(Weights(2), [&](Status s) { second.set_value(std::move(s)); });
  (*engine)->Shutdown();
  // The first may have had its place taken by then; a shutdown is no such thing.
  const StatusCode code = first.get_future().get().code();
  EXPECT_THAT(code, AnyOf(StatusCode::kCancelled, StatusCode::kUnavailable));
  EXPECT_EQ(second.get_future().get().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Publish(**engine, Weights(3)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(running.get().status().code(), StatusCode::kUnavailable);
  server.hangs = false;
}

TEST_F(HttpEngineTest, WrongRequestsAreRefused) {
  Vllm server;
  const auto engine = Make({&server});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  for (GenerateRequest request :
       {GenerateRequest{}, GenerateRequest{.prompt = {-1}}, GenerateRequest{.prompt = {300}},
        GenerateRequest{.prompt = std::vector<int32_t>(256, 1)},
        GenerateRequest{.prompt = {1}, .new_tokens_max = 0},
        GenerateRequest{.prompt = {1}, .temperature = -1}}) {
    std::promise<Result<GenerateResult>> done;
    (*engine)->Generate(request, [&](Result<GenerateResult> r) { done.set_value(std::move(r)); });
    EXPECT_EQ(done.get_future().get().status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace forebay::rollout
