// The tiny model behind `forebay serve`'s server, asked over HTTP: what a run records is what the
// engine in its own process would have given it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kContext = 128;

// The engine in this process, asked with the seed that a server derives from a request's for its
// first choice.
class Local final : public Engine {
 public:
  explicit Local(Engine& engine) : engine_(engine) {}
  uint64_t Generate(GenerateRequest request,
                    std::function<void(Result<GenerateResult>)> done) override {
    request.seed = DeriveSeed(request.seed & INT64_MAX, 0);
    return engine_.Generate(std::move(request), std::move(done));
  }
  void Cancel(uint64_t id) override { engine_.Cancel(id); }
  void Publish(std::shared_ptr<const weights::Snapshot>, std::function<void(Status)>) override {}
  int64_t policy_version() const override { return engine_.policy_version(); }
  int64_t context_max() const override { return engine_.context_max(); }
  EngineStats stats() const override { return engine_.stats(); }
  void Shutdown() override {}

 private:
  Engine& engine_;
};

class RemoteTest : public ::testing::Test {
 protected:
  RemoteTest() : tiny_(MakeTinyModel(kContext)), text_(MakeTinyText()) {
    XlaEngineOptions options = SmallOptions();
    options.context = kContext;
    options.deterministic = true;
    engine_ = MakeEngine(tiny_, options);
    model_ = {.name = "policy",
              .engine = engine_.get(),
              .tokenizer = text_.tokenizer.get(),
              .stop_tokens = {weights::kTinyEnd}};
    loop_ = MakeLoop();
    auto server = OpenAiServer::Start(*loop_, model_, {.listen = {"tcp:127.0.0.1:0"}});
    server_ = std::move(server.value());
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~RemoteTest() override {
    loop_->Post([this] { loop_->Spawn(server_->Stop(Now()), [this] { loop_->Stop(); }); });
    thread_.join();
  }
  HttpEngineOptions Options() const {
    return {.servers = {server_->addresses().front()},
            .model = "policy",
            .vocab_size = weights::kTinyVocabSize,
            .context = kContext};
  }
  weights::Snapshot Initial() const { return {.tensors = tiny_.checkpoint}; }

  TinyModel tiny_;
  TinyText text_;
  std::unique_ptr<Engine> engine_;
  ServedModel model_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<OpenAiServer> server_;
  std::thread thread_;
};

Trajectory Play(Engine& engine, const TinyText& text, double temperature, uint64_t seed) {
  const std::unique_ptr<Loop> loop = MakeLoop();
  EnvironmentScript script;
  script.takes = std::chrono::milliseconds(1);
  script.reset = [](const env::ResetRequest&) -> Result<std::vector<env::Message>> {
    return std::vector<env::Message>{{.role = "user", .content = "Hi"}};
  };
  script.step = [](const std::string& action) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{.role = "user", .content = "More"}},
                           .rewards = {{"length", static_cast<double>(action.size())}}};
  };
  ScriptedPool pool(*loop, &script);
  EpisodeOptions options{.environment = "scripted",
                         .temperature = temperature,
                         .turns_max = 3,
                         .new_tokens_per_turn_max = 12,
                         .tokens_max = kContext,
                         .stop_tokens = {"<|im_end|>"}};
  Trajectory out;
  const auto play = [&]() -> Task<void> {
    Task<Trajectory> running = RunEpisode(*loop, engine, pool, *text.tokenizer, *text.chat, options,
                                          {.id = {.task_id = 7}, .seed = seed}, nullptr);
    out = co_await std::move(running);
  };
  loop->Spawn(play(), [&] { loop->Stop(); });
  loop->Run();
  out.started_us = out.ended_us = 0;  // wall time
  for (Turn& turn : out.turns) turn.spans = {};
  return out;
}

TEST_F(RemoteTest, T7_RemoteAndLocalTrajectoriesAreEqualByteForByte) {
  const auto remote = MakeHttpEngine(Options(), Initial());
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  Local local(*engine_);
  int64_t sampled = 0;
  for (const double temperature : {0.0, 1.0, 0.7}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const Trajectory here = Play(local, text_, temperature, seed);
      const Trajectory there = Play(**remote, text_, temperature, seed);
      EXPECT_EQ(Encode(here), Encode(there)) << "temperature " << temperature << " seed " << seed;
      EXPECT_TRUE(Validate(there).ok());
      sampled += there.loss_tokens();
    }
  }
  EXPECT_GT(sampled, 50);
}

TEST_F(RemoteTest, T2_TheServersLogprobsAreThoseOfTheDistributionSampled) {
  const auto remote = MakeHttpEngine(Options(), Initial());
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  GenerateRequest request{
      .prompt = {72, 105}, .new_tokens_max = 8, .temperature = 0.5, .seed = 4, .top_k = 7};
  request.top_logprobs = 7;
  const auto there = Generate(**remote, request);
  ASSERT_TRUE(there.ok()) << there.status().ToString();
  request.seed = DeriveSeed(4, 0);
  const auto here = Generate(*engine_, request);
  ASSERT_TRUE(here.ok());
  EXPECT_EQ(there->tokens, here->tokens);
  EXPECT_EQ(there->logprobs, here->logprobs);
  EXPECT_EQ(there->top_logprobs, here->top_logprobs);
  EXPECT_EQ(there->versions, here->versions);
}

TEST_F(RemoteTest, W1_AServerWithOtherWeightsIsRefused) {
  weights::Snapshot other = Initial();
  other.tensors.begin()->second = other.tensors.rbegin()->second;
  const auto remote = MakeHttpEngine(Options(), other);
  EXPECT_EQ(remote.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(remote.status().message(), HasSubstr("serves other weights"));
}

TEST_F(RemoteTest, W1_AServerThatCannotTakeWeightsIsRefused) {
  HttpEngineOptions options = Options();
  options.reload = true;
  options.weights_folder = ::testing::TempDir() + "/forebay_remote_weights";
  options.files = weights::TinyModelFiles({.context_tokens = kContext});
  const auto remote = MakeHttpEngine(options, Initial());
  EXPECT_EQ(remote.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(remote.status().message(), HasSubstr("VLLM_SERVER_DEV_MODE=1"));
}

}  // namespace
}  // namespace forebay::rollout
