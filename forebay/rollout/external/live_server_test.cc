// On demand, against a server that stands already (bench/peers/setup_engines.sh says how).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class LiveServer : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string url = Variable("FOREBAY_LIVE_SERVER");
    if (url.empty()) GTEST_SKIP() << "FOREBAY_LIVE_SERVER is not set";
    const std::string kind = Variable("FOREBAY_LIVE_ENGINE");
    options_.protocol = kind == "sglang"     ? HttpEngineProtocol::kSglang
                        : kind == "llamacpp" ? HttpEngineProtocol::kLlamaCpp
                                             : HttpEngineProtocol::kVllm;
    options_.servers = {url};
    options_.model = Variable("FOREBAY_LIVE_MODEL");
    options_.context = 256;
    options_.vocab_size = std::atoll(Variable("FOREBAY_LIVE_VOCAB").c_str());
    const std::string folder = Variable("FOREBAY_LIVE_FOLDER");
    if (!folder.empty()) {
      auto files = weights::LoadModelFiles(folder);
      ASSERT_TRUE(files.ok()) << files.status().ToString();
      initial_.tensors = std::exchange(files->tensors, {});
      options_.files = std::move(*files);
      options_.reload = true;
      options_.weights_folder = ::testing::TempDir() + "/forebay_live_weights";
    }
    if (options_.vocab_size == 0) options_.vocab_size = 1 << 20;
    auto engine = MakeHttpEngine(options_, initial_);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
  }
  Result<GenerateResult> Ask(GenerateRequest request) {
    std::promise<Result<GenerateResult>> done;
    request.deadline = Now() + std::chrono::minutes(2);
    engine_->Generate(std::move(request),
                      [&](Result<GenerateResult> r) { done.set_value(std::move(r)); });
    return done.get_future().get();
  }

  HttpEngineOptions options_;
  weights::Snapshot initial_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(LiveServer, GreedyAnswersRepeatWithTheirLogprobs) {
  const GenerateRequest request{.prompt = {5, 6, 7, 8}, .new_tokens_max = 12, .temperature = 0};
  const auto first = Ask(request);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const auto second = Ask(request);
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_EQ(first->tokens, second->tokens);
}

TEST_F(LiveServer, SampledAnswersHaveALogprobForEachToken) {
  for (const double temperature : {1.0, 0.7}) {
    const auto result = Ask({.prompt = {5, 6, 7, 8},
                             .new_tokens_max = 12,
                             .temperature = temperature,
                             .seed = 3,
                             .top_logprobs = 3});
    if (temperature != 1 && result.status().code() == StatusCode::kInvalidArgument) continue;
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->tokens.size(), result->logprobs.size());
    EXPECT_EQ(result->top_logprobs.size(), result->tokens.size());
  }
}

TEST_F(LiveServer, TakesNewWeights) {
  if (!options_.reload) GTEST_SKIP() << "FOREBAY_LIVE_FOLDER is not set";
  auto next = std::make_shared<weights::Snapshot>(initial_);
  next->policy_version = 1;
  std::promise<Status> taken;
  engine_->Publish(next, [&](Status status) { taken.set_value(std::move(status)); });
  const Status status = taken.get_future().get();
  EXPECT_TRUE(status.ok()) << status.ToString();
  const auto result = Ask({.prompt = {5, 6}, .new_tokens_max = 4});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->versions.front().policy_version, 1);
}

}  // namespace
}  // namespace forebay::rollout
