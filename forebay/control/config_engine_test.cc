// [rollout] engine and servers: what fits together and what is told otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::control {
namespace {

using ::testing::HasSubstr;

Result<Config> Parse(const std::string& rollout, const std::string& run = "") {
  return ParseConfig(
      "[run]\n" + run +
          "[model]\npath = \"tiny:\"\n[env]\nkind = \"builtin\"\nbuiltin = \"arithmetic\"\n"
          "[rollout]\n" +
          rollout,
      "test.toml", "/folder", {});
}

TEST(ConfigEngineTest, ServersAndTheirKindGoTogether) {
  EXPECT_TRUE(Parse("").ok());
  EXPECT_TRUE(Parse("engine = \"vllm\"\nservers = [\"http://127.0.0.1:8000\"]\n").ok());
  EXPECT_TRUE(Parse("engine = \"forebay\"\nservers = [\"unix:/tmp/s.sock:\"]\n").ok());
  EXPECT_THAT(Parse("engine = \"sglang\"\n").status().message(),
              HasSubstr("rollout.servers is missing"));
  EXPECT_THAT(Parse("servers = [\"http://127.0.0.1:8000\"]\n").status().message(),
              HasSubstr("rollout.engine"));
  EXPECT_THAT(Parse("engine = \"openai\"\n").status().message(), HasSubstr("vllm"));
}

TEST(ConfigEngineTest, AServerIsNamedOnce) {
  const Status twice =
      Parse("engine = \"forebay\"\nservers = [\"http://a:1\", \"http://b:1\", \"http://a:1/\"]\n")
          .status();
  EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(twice.message(), HasSubstr("entries 1 and 3: \"http://a:1\" and \"http://a:1/\""));
  EXPECT_TRUE(Parse("engine = \"forebay\"\nservers = [\"http://a:1\", \"http://a:10\"]\n").ok());
}

TEST(ConfigEngineTest, ServersThatKeepTheirWeightsEndWithTheStaleness) {
  const std::string servers = "servers = [\"http://127.0.0.1:8080\"]\nengine = \"llamacpp\"\n";
  EXPECT_THAT(Parse(servers, "steps = 2\n").status().message(),
              HasSubstr("rollout.reload = false"));
  EXPECT_TRUE(Parse(servers + "reload = false\n[buffer]\nmax_staleness = 2\n", "steps = 2\n").ok());
  const Status late =
      Parse(servers + "reload = false\n[buffer]\nmax_staleness = 2\n", "steps = 3\n").status();
  EXPECT_EQ(late.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(late.message(), HasSubstr("after 2 steps"));
}

}  // namespace
}  // namespace forebay::control
