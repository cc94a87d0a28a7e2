// An engine over servers that answer what a test tells them to: load, deaths, weights, garbage.
#include "forebay/rollout/http_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/http_testing.h"
#include "forebay/base/http_server.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

// vLLM as far as the engine knows it.
class Vllm {
 public:
  Vllm()
      : server_(std::make_unique<TestServer>(
            [this](HttpExchange& exchange) { return Handle(exchange); })) {}
  ~Vllm() { Die(); }
  std::string url() const { return url_.empty() ? server_->url() : url_; }
  void Die() {
    if (!server_) return;
    url_ = server_->url();
    server_.reset();
  }

  std::atomic<bool> raw = false;      // tells the same log-probabilities at every temperature
  std::atomic<bool> hangs = false;    // generates until the client goes away
  std::atomic<bool> paused = false;   // as a run that was killed may leave it
  std::atomic<bool> garbage = false;  // generates tokens without log-probabilities
  std::atomic<bool> sick = false;     // /health is answered with 500
  std::atomic<bool> refuses_weights = false;
  std::atomic<int> fails_each = 0;  // of so many requests to generate one is answered with 500
  std::atomic<int> generated = 0, running = 0, most_running = 0, gone = 0;
  std::string model = "policy", key;
  std::string version = "default";  // on the server's loop once it runs
  std::vector<std::string> calls() {
    const MutexLock lock(mutex_);
    return calls_;
  }

 private:
  Json Answer(const Json& ask) const {
    const Json& params = ask["sampling_params"];
    const double temperature = params["temperature"];
    const double logprob = raw || temperature == 0 ? -1.0 : -1.0 / temperature;
    Json content = Json::array();
    const std::vector<int32_t> tokens = {72, weights::kTinyEnd};
    for (const int32_t token : tokens) {
      Json tops = Json::array();
      for (int32_t k = 0; k < params["logprobs"].get<int32_t>(); ++k) {
        tops.push_back({{"token_id", token}, {"logprob", logprob}});
      }
      content.push_back({{"token_id", token}, {"logprob", logprob}, {"top_logprobs", tops}});
    }
    Json choice = {{"token_ids", tokens}, {"finish_reason", "stop"}};
    if (!garbage) choice["logprobs"]["content"] = content;
    choice["weight_versions"] = {{{"version", version}, {"start", 0}, {"end", 2}}};
    return {{"choices", {choice}}};
  }

  Task<void> Handle(HttpExchange& exchange) {
    const HttpRequest& request = exchange.request();
    const std::string path(request.path());
    HttpResponse response{.body = "{}"};
    const Json ask = Json::parse(request.body, nullptr, false);
    {
      const MutexLock lock(mutex_);
      if (path != "/health" && path != "/v1/models") calls_.push_back(path);
    }
    if (!key.empty() && request.bearer() != key) {
      response.status = 401;
    } else if (path == "/health") {
      response.status = sick ? 500 : 200;
    } else if (path == "/v1/models") {
      response.body = Json({{"data", {{{"id", model}, {"max_model_len", 256}}}}}).dump();
    } else if (path == "/inference/v1/generate") {
      most_running = std::max<int>(most_running, ++running);
      exchange.OnDisconnect([this] { ++gone; });
      while ((hangs || paused) && !exchange.disconnected()) {
        auto sleep = server_->thread().loop().SleepUntil(Now() + milliseconds(1));
        co_await sleep;
      }
      exchange.OnDisconnect(nullptr);
      --running;
      ++generated;
      response.body = Answer(ask).dump();
      if (fails_each > 0 && ++asked_ % fails_each == 0) response.status = 500;
    } else if (path == "/collective_rpc") {
      if (refuses_weights) response.status = 500;
      const std::string folder = ask["kwargs"]["weights_path"];
      reloadable_ = std::filesystem::exists(folder + "/model.safetensors") &&
                    std::filesystem::exists(folder + "/config.json");
    } else if (path == "/resume") {
      paused = false;
    } else if (path == "/update_weight_version") {
      if (reloadable_) version = ask["new_version"];
    } else if (path == "/weight_info") {
      response.body = Json({{"weight_version", version}}).dump();
    }
    Task<Status> responding = exchange.Respond(std::move(response));
    const Status ignored = co_await std::move(responding);
    static_cast<void>(ignored);
  }

  bool reloadable_ = false;
  int asked_ = 0;
  Mutex mutex_;
  std::vector<std::string> calls_ FB_GUARDED_BY(mutex_);
  std::string url_;
  std::unique_ptr<TestServer> server_;
};

std::shared_ptr<weights::Snapshot> Weights(int64_t version,
                                           std::vector<std::string> names = {"a", "b"}) {
  auto out = std::make_shared<weights::Snapshot>();
  out->policy_version = version;
  for (const std::string& name : names) {
    std::span<std::byte> bytes;
    weights::HostTensor tensor = weights::HostTensor::Allocate({xla::DType::kF32, {2}}, &bytes);
    std::ranges::fill(bytes, static_cast<std::byte>(version));
    out->tensors.emplace(name, tensor);
  }
  return out;
}

class HttpEngineTest : public ::testing::Test {
 protected:
  HttpEngineTest() {
    options_.model = "policy";
    options_.vocab_size = weights::kTinyVocabSize;
    options_.context = 256;
    options_.health_period = milliseconds(20);
    options_.weights_folder = ::testing::TempDir() + "/forebay_http_engine_" +
                              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    options_.files = weights::TinyModelFiles({});
  }
  Result<std::unique_ptr<Engine>> Make(std::vector<Vllm*> servers) {
    for (const Vllm* server : servers) options_.servers.push_back(server->url());
    return MakeHttpEngine(options_, *Weights(0));
  }
  static std::future<Result<GenerateResult>> Ask(Engine& engine, double temperature = 1) {
    auto done = std::make_shared<std::promise<Result<GenerateResult>>>();
    engine.Generate({.prompt = {1, 2},
                     .temperature = temperature,
                     .stop_tokens = {weights::kTinyEnd},
                     .deadline = Now() + std::chrono::seconds(60)},
                    [done](Result<GenerateResult> r) { done->set_value(std::move(r)); });
    return done->get_future();
  }
  static Status Publish(Engine& engine, std::shared_ptr<const weights::Snapshot> snapshot) {
    auto done = std::make_shared<std::promise<Status>>();
    engine.Publish(std::move(snapshot), [done](Status s) { done->set_value(std::move(s)); });
    return done->get_future().get();
  }
  static void Until(const std::function<bool()>& condition) {
    const TimePoint deadline = Now() + std::chrono::seconds(60);
    while (!condition() && Now() < deadline) std::this_thread::sleep_for(milliseconds(2));
    ASSERT_TRUE(condition());
  }

  HttpEngineOptions options_;
};

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
  options_.start_deadline = milliseconds(300);
  engine = MakeHttpEngine(options_, *Weights(0));
  EXPECT_THAT(engine.status().message(), HasSubstr("no log-probabilities"));
  other.garbage = false;
  options_.context = 1000;
  engine = MakeHttpEngine(options_, *Weights(0));
  EXPECT_THAT(engine.status().message(), HasSubstr("rollout.context"));
  options_.servers = {"ftp://x"};
  EXPECT_EQ(MakeHttpEngine(options_, *Weights(0)).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(HttpEngineTest, ItIsSaidAtOnceWhoIsWaitedForAndThenWhatIsWrong) {
  Mutex mutex;
  std::vector<std::string> said;
  options_.log = [&](const std::string& sentence) {
    const MutexLock lock(mutex);
    said.push_back(sentence);
  };
  options_.servers = {"unix:" + ::testing::TempDir() + "/forebay_nobody.sock:"};
  options_.start_deadline = milliseconds(300);
  const auto engine = MakeHttpEngine(options_, *Weights(0));
  EXPECT_EQ(engine.status().code(), StatusCode::kUnavailable);
  const MutexLock lock(mutex);
  ASSERT_GE(said.size(), 2U);
  EXPECT_THAT(said[0], HasSubstr("waiting for unix:"));
  EXPECT_THAT(said[1], HasSubstr("forebay_nobody.sock: cannot be used: "));
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
  std::promise<Result<GenerateResult>> cancelled, late;
  const uint64_t id = (*engine)->Generate(
      {.prompt = {1}}, [&](Result<GenerateResult> r) { cancelled.set_value(std::move(r)); });
  (*engine)->Generate({.prompt = {1}, .deadline = Now() + milliseconds(100)},
                      [&](Result<GenerateResult> r) { late.set_value(std::move(r)); });
  Until([&] { return server.running == 2 || server.gone == 1; });
  (*engine)->Cancel(id);
  EXPECT_EQ(cancelled.get_future().get().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(late.get_future().get().status().code(), StatusCode::kDeadlineExceeded);
  Until([&] { return server.gone == 2; });
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
