// Goal: what a configuration says of the mesh is what the learner's programs are traced with.
#include <gtest/gtest.h>

#include <string>

#include "apps/room_options.h"
#include "forebay/control/config.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/learner_options.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/parallel.h"

namespace forebay::apps {
namespace {

learner::GradientProgramOptions Options(const std::string& mesh) {
  const auto config = control::ParseConfig(
      "[model]\npath = \"tiny:\"\n[env]\ncommand = [\"x\"]\n[learner]\nlayer_layout = "
      "\"stacked\"\n[mesh]\nfsdp = 2\n" +
          mesh,
      "test.toml", "/", {});
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return learner::GradientOptions(MakeLearnerOptions(*config, ""));
}

TEST(MeshOptions, AreTheConfigurations) {
  using models::ContextAttention, models::ExpertTraffic;
  const auto automatic = Options("");
  EXPECT_EQ(automatic.mesh.size(), 2);
  EXPECT_EQ(automatic.parallel.context_attention, ContextAttention::kAuto);
  EXPECT_EQ(automatic.parallel.expert_traffic, ExpertTraffic::kAuto);
  EXPECT_TRUE(automatic.into_sum);  // stacked layers
  const auto ring =
      Options("context = 2\nexpert = 2\nattention = \"ring\"\nexperts = \"all_to_all\"\n");
  EXPECT_EQ(ring.parallel.context_attention, ContextAttention::kRing);
  EXPECT_EQ(ring.parallel.expert_traffic, ExpertTraffic::kAllToAll);
  const auto gather =
      Options("context = 2\nexpert = 2\nattention = \"gather\"\nexperts = \"gather\"\n");
  EXPECT_EQ(gather.parallel.context_attention, ContextAttention::kGather);
  EXPECT_EQ(gather.parallel.expert_traffic, ExpertTraffic::kGather);
}

}  // namespace
}  // namespace forebay::apps
