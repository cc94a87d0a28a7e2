// On demand, against a server that stands already (bench/peers/setup_engines.sh says how).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

// Servers compute in their own order.
constexpr double kSameLogprob = 1e-2;

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

  Status Publish(std::shared_ptr<const weights::Snapshot> snapshot) {
    std::promise<Status> taken;
    engine_->Publish(std::move(snapshot),
                     [&](Status status) { taken.set_value(std::move(status)); });
    Status status = taken.get_future().get();
    if (!status.ok()) ADD_FAILURE() << status.ToString();
    return status;
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

// The alternatives are of the distribution sampled: what the filters leave sums to one.
TEST_F(LiveServer, LogprobsAreOfWhatTheFiltersLeave) {
  const auto result = Ask({.prompt = {5, 6, 7, 8},
                           .new_tokens_max = 6,
                           .temperature = 0.7,
                           .seed = 4,
                           .top_k = 3,
                           .top_logprobs = 3});
  if (result.status().code() == StatusCode::kInvalidArgument) GTEST_SKIP() << "it has no filters";
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  for (size_t i = 0; i < result->tokens.size(); ++i) {
    double sum = 0;
    bool found = false;
    for (const TokenLogprob& each : result->top_logprobs[i]) {
      sum += std::exp(each.logprob);
      found |= each.token == result->tokens[i] &&
               std::abs(each.logprob - result->logprobs[i]) < kSameLogprob;
    }
    EXPECT_NEAR(sum, 1, kSameLogprob) << "token " << i;
    EXPECT_TRUE(found) << "token " << i;
  }
}

TEST_F(LiveServer, EndsBehindAStopToken) {
  const GenerateRequest request{.prompt = {5, 6, 7, 8}, .new_tokens_max = 12, .temperature = 0};
  const auto whole = Ask(request);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  ASSERT_GT(whole->tokens.size(), 3U);
  GenerateRequest stopped = request;
  stopped.stop_tokens = {whole->tokens[2]};
  const auto part = Ask(stopped);
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  const auto end = std::ranges::find(whole->tokens, whole->tokens[2]) + 1;
  EXPECT_EQ(part->tokens, std::vector<int32_t>(whole->tokens.begin(), end));
  EXPECT_EQ(part->finish_reason, FinishReason::kStop);
  EXPECT_EQ(part->stop_token, whole->tokens[2]);
}

TEST_F(LiveServer, ABiasDecides) {
  const auto result = Ask({.prompt = {5, 6, 7, 8}, .new_tokens_max = 4, .logit_bias = {{9, 100}}});
  if (result.status().code() == StatusCode::kInvalidArgument) GTEST_SKIP() << "it has no bias";
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->tokens, std::vector<int32_t>(4, 9));
  for (const float logprob : result->logprobs) EXPECT_NEAR(logprob, 0, kSameLogprob);
}

TEST_F(LiveServer, ManyAtOnceAndACancelledOne) {
  constexpr int kRequests = 24;
  std::vector<std::promise<Result<GenerateResult>>> done(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    const uint64_t id = engine_->Generate(
        {.prompt = {5, 6, 7, 8 + i},
         .new_tokens_max = i == 0 ? 200 : 8,
         .seed = static_cast<uint64_t>(i),
         .deadline = Now() + std::chrono::minutes(5)},
        [&done, i](Result<GenerateResult> r) { done[i].set_value(std::move(r)); });
    if (i == 0) engine_->Cancel(id);
  }
  for (int i = 0; i < kRequests; ++i) {
    const auto result = done[i].get_future().get();
    if (i == 0) {
      EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
    } else {
      ASSERT_TRUE(result.ok()) << result.status().ToString();
    }
  }
}

// A final norm of zeros makes every logit zero, so each token has the log-probability -ln(vocab):
// the server samples with the new weights, not from what it had cached, and then with the old ones.
TEST_F(LiveServer, TakesNewWeights) {
  if (!options_.reload) GTEST_SKIP() << "FOREBAY_LIVE_FOLDER is not set";
  const GenerateRequest request{.prompt = {5, 6, 7, 8}, .new_tokens_max = 8, .temperature = 0};
  const auto before = Ask(request);
  ASSERT_TRUE(before.ok()) << before.status().ToString();

  auto flat = std::make_shared<weights::Snapshot>(initial_);
  flat->policy_version = 1;
  weights::HostTensor& norm = flat->tensors.at("model.norm.weight");
  std::span<std::byte> bytes;
  norm = weights::HostTensor::Allocate(norm.shape(), &bytes);
  std::ranges::fill(bytes, std::byte{0});
  ASSERT_TRUE(Publish(flat).ok());
  GenerateRequest sampled = request;
  sampled.temperature = 1;
  const auto result = Ask(sampled);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->versions.front().policy_version, 1);
  const auto vocab =
      static_cast<double>(initial_.tensors.at("model.embed_tokens.weight").shape().dims[0]);
  for (const float logprob : result->logprobs) EXPECT_NEAR(logprob, -std::log(vocab), kSameLogprob);

  auto back = std::make_shared<weights::Snapshot>(initial_);
  back->policy_version = 2;
  ASSERT_TRUE(Publish(back).ok());
  const auto after = Ask(request);
  ASSERT_TRUE(after.ok()) << after.status().ToString();
  EXPECT_EQ(after->versions.front().policy_version, 2);
  EXPECT_EQ(after->tokens, before->tokens);
}

}  // namespace
}  // namespace forebay::rollout
