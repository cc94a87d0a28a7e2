// Goal: a learner that chooses its own row shapes comes to better ones while it trains.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/learner_testing.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/shape_log.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/xla/client.h"

namespace forebay::learner {
namespace {

constexpr int32_t kGroupSize = 4;

TEST(LearnerShapes, FollowTheBatchesAndNoStepWaitsForACompilation) {
  const auto client = MakeClient();
  const ParityModel parity = LoadParityModel(FOREBAY_SOURCE_DIR);
  const std::string folder = MakeTestFolder();
  LearnerOptions options;
  options.schedule.learning_rate = 1e-3;
  options.tokens_max = 64;
  options.logprob_chunk = 64;
  options.cost.attention = AttentionCost::kSegments;
  options.tokens_per_program = 1024;
  options.shapes_max = 3;
  options.replan_every_steps = 4;
  options.shape_log = folder + "/shapes.json";
  auto created =
      Learner::Create(options, *client, *parity.model, {.train = {.params = parity.tensors}});
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  auto learner = std::move(*created);
  const auto first = learner->buckets();
  EXPECT_EQ(first, (std::vector<BucketShape>{{1, 384}, {1, 704}, {1, 1024}}));
  // 4 sequences of 22 tokens: 88 of 384 columns, until there is a better shape.
  int64_t switched_at = -1;
  for (int64_t step = 0; step < 5000 && switched_at < 0; ++step) {
    buffer::Batch batch{.sequence = step + 1, .learner_version = step};
    for (int32_t member = 0; member < kGroupSize; ++member) {
      auto t = RandomTrajectory(
          {.group = 1, .member = member, .prompt = 2, .action = 20, .version = step});
      t.rewards["r"] = member;
      batch.trajectories.push_back(std::make_shared<const Trajectory>(std::move(t)));
    }
    const auto m = learner->Step(batch);
    ASSERT_TRUE(m.ok()) << m.status().ToString();
    EXPECT_EQ(m->compile_ahead_error, "");
    if (learner->buckets() == first) continue;
    switched_at = step;
    EXPECT_EQ(m->padded_tokens, 128);
    EXPECT_EQ(m->programs_ahead, 1);  // the longest shape was there
    EXPECT_EQ(m->programs, 5 + 1);    // nothing else was compiled after the start
  }
  ASSERT_GT(switched_at, 0);
  EXPECT_EQ(learner->buckets(), (std::vector<BucketShape>{{1, 128}, {1, 1024}}));
  const auto history = ReadShapeLog(options.shape_log);
  ASSERT_TRUE(history.ok());
  EXPECT_EQ(*history, (ShapeHistory{{0, first}, {switched_at, learner->buckets()}}));
  learner.reset();
  EXPECT_EQ(client->live_buffers(), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace forebay::learner
