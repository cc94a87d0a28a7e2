// Goal: how devices share a step can be chosen, and a choice that there is not is refused with
// those that there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::control {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Result<Config> Parse(const std::string& mesh) {
  return ParseConfig(
      "[model]\npath = \"m.gguf\"\n[env]\ncommand = [\"python3\", \"env.py\"]\n[mesh]\n" + mesh,
      "test.toml", "/folder", {});
}

TEST(ConfigMeshTest, HowDevicesShareAStepIsFoundOutUnlessItIsSaid) {
  const Result<Config> config = Parse("");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->mesh.attention, "auto");
  EXPECT_EQ(config->mesh.experts, "auto");
  const Result<Config> said =
      Parse("context = 2\nexpert = 2\nattention = \"ring\"\nexperts = \"all_to_all\"\n");
  ASSERT_TRUE(said.ok()) << said.status().ToString();
  EXPECT_EQ(said->mesh.attention, "ring");
  EXPECT_EQ(said->mesh.experts, "all_to_all");
  EXPECT_TRUE(
      Parse("context = 2\nexpert = 2\nattention = \"gather\"\nexperts = \"gather\"\n").ok());
}

TEST(ConfigMeshTest, W2_AChoiceThatNoAxisNeedsIsRefusedNotIgnored) {
  for (const std::string choice : {"ring", "gather"}) {
    EXPECT_THAT(Parse("data = 2\nattention = \"" + choice + "\"\n").status().message(),
                AllOf(HasSubstr("mesh.attention = \"" + choice + "\" has no effect"),
                      HasSubstr("mesh.context = 1"), HasSubstr("or leave mesh.attention out")));
  }
  for (const std::string choice : {"all_to_all", "gather"}) {
    EXPECT_THAT(Parse("context = 2\nexperts = \"" + choice + "\"\n").status().message(),
                AllOf(HasSubstr("mesh.experts = \"" + choice + "\" has no effect"),
                      HasSubstr("mesh.expert = 1"), HasSubstr("or leave mesh.experts out")));
  }
  EXPECT_TRUE(Parse("attention = \"auto\"\nexperts = \"auto\"\n").ok());
}

TEST(ConfigMeshTest, W2_OtherChoicesAreRefusedWithTheOnesThereAre) {
  EXPECT_THAT(Parse("attention = \"rings\"\n").status().message(),
              AllOf(HasSubstr("mesh.attention"), HasSubstr("rings"), HasSubstr("auto"),
                    HasSubstr("ring"), HasSubstr("gather")));
  EXPECT_THAT(Parse("experts = \"ring\"\n").status().message(),
              AllOf(HasSubstr("mesh.experts"), HasSubstr("all_to_all"), HasSubstr("gather")));
  EXPECT_THAT(Parse("experts = 2\n").status().message(), HasSubstr("mesh.experts"));
}

}  // namespace
}  // namespace forebay::control
