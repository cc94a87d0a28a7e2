// The tiny model behind `forebay serve`'s server, asked over HTTP: what a run records is what the
// engine in its own process would have given it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/rollout/external/remote_testing.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {
namespace {

using ::testing::HasSubstr;

class RemoteTest : public ::testing::Test {
 protected:
  HttpEngineOptions Options() const {
    return {.servers = {server_.url()},
            .model = "policy",
            .vocab_size = weights::kTinyVocabSize,
            .context = kContext};
  }
  weights::Snapshot Initial() const { return {.tensors = tiny_.checkpoint}; }

  TinyModel tiny_ = MakeTinyModel(kContext);
  TinyText text_ = MakeTinyText();
  RemoteServer server_{tiny_, text_, "tcp:127.0.0.1:0", /*takes_weights=*/false};
};

TEST_F(RemoteTest, T7_RemoteAndLocalTrajectoriesAreEqualByteForByte) {
  const auto remote = MakeHttpEngine(Options(), Initial());
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  Local local(server_.engine());
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
  const auto here = Generate(server_.engine(), request);
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
  EXPECT_THAT(remote.status().message(), HasSubstr("rollout.engine = \"forebay\""));
}

}  // namespace
}  // namespace forebay::rollout
