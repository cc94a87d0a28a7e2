// Keys of [env] that belong together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/control/config_schema.h"

namespace forebay::control {
namespace {

using ::testing::HasSubstr;

Config With(EnvSection env) {
  Config config;
  config.model.path = "tiny:";
  config.env = std::move(env);
  return config;
}

TEST(ConfigEnvironmentTest, ToolsAndServersThatFit) {
  for (EnvSection env : std::vector<EnvSection>{
           {.kind = "builtin", .builtin = "dataset", .tools = {"calculator", "python", "shell"}},
           {.command = {"x"}, .tools = {"mcp"}, .mcp_command = {"server"}},
           {.command = {"x"}, .tools = {"mcp", "python"}, .mcp_url = "http://127.0.0.1:1/mcp"},
           {.kind = "harness", .command = {"x"}},
           {.kind = "openenv", .url = "http://127.0.0.1:1"}}) {
    EXPECT_EQ(CheckCombinations(With(std::move(env))), OkStatus());
  }
}

TEST(ConfigEnvironmentTest, WhatDoesNotFitIsNamed) {
  const std::vector<std::pair<EnvSection, std::string>> cases = {
      {{.kind = "openenv"}, "env.url is missing"},
      {{.kind = "harness"}, "env.command is missing: for env.kind = \"harness\""},
      {{.kind = "harness", .command = {"x"}, .tools = {"calculator"}}, "brings its own tools"},
      {{.command = {"x"}, .tools = {"calculater"}},
       "'calculater'; did you mean 'calculator'? (there are: calculator"},
      {{.command = {"x"}, .tools = {"python", "python"}}, "'python' twice"},
      {{.command = {"x"}, .tools = {"mcp"}}, "env.mcp_command or by env.mcp_url"},
      {{.command = {"x"}, .tools = {"mcp"}, .mcp_command = {"a"}, .mcp_url = "b"}, "one of them"},
      {{.command = {"x"}, .mcp_command = {"server"}}, "add \"mcp\" to env.tools"}};
  for (const auto& [env, text] : cases) {
    const Status status = CheckCombinations(With(env));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
}

TEST(ConfigEnvironmentTest, AConversationOfAHarnessFitsASlotAndARow) {
  Config config = With({.kind = "harness", .command = {"x"}});
  config.rollout.tokens_max = config.rollout.context / 2;
  const Status status = CheckCombinations(config);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("rollout.tokens_max = 256 and rollout.context = 512"));
}

}  // namespace
}  // namespace forebay::control
