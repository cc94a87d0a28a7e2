// Goal: what no run can use is refused when the configuration is read, by its full key, with what
// would be right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/control/config_programs.h"

namespace forebay::control {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Result<Config> Read(const std::vector<std::string>& sets) {
  return ParseConfig("[model]\npath = \"tiny:\"\n[env]\ncommand = [\"python3\", \"env.py\"]\n",
                     "test.toml", "/folder", sets);
}

TEST(ConfigValuesTest, WhatNoRunCanUseIsRefusedByItsFullKey) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"env.command=[\"\"]"}, "env.command begins with an empty word"},
      {{"env.command=[\"a\", \"b\\u0000\"]"}, "env.command: its word 2 holds a zero byte"},
      {{"env.options=5"}, "env.options = '5' must be a JSON object"},
      {{"env.options={\"a\":"}, "env.options = '{\"a\":' must be a JSON object"},
      {{"env.tools=[\"mcp\"]", "env.mcp_command=[\"\"]"}, "env.mcp_command begins with an empty"},
      {{"env.tools=[\"mcp\"]", "env.mcp_url=http://x:0/"}, "env.mcp_url has \"http://x:0/\""},
      {{"env.kind=openenv", "env.url=ftp://x"}, "env.url has \"ftp://x\", which is no URL"},
      {{"env.kind=openenv", "env.url=\"a\\u0000b\""}, "env.url has \"a?b\", which is no URL"},
      {{"env.kind=openenv", "env.url=http://[::1"}, "give one like http://127.0.0.1:8000"},
      {{"rollout.engine=vllm", "rollout.servers=[\"http://a:1\", \"x\"]", "run.steps=1"},
       "rollout.servers has \"x\", which is no URL"},
      {{"rollout.context_buckets=[-1]"}, "rollout.context_buckets = [-1] must be positive and asc"},
      {{"rollout.context_buckets=[1, 2, 2]"}, "for instance [256, 512]"},
      {{"rollout.context_buckets=[128]"},
       "rollout.context_buckets ends at 128, but rollout.context = 512"},
      {{"rollout.prefill_chunks=[0]"}, "rollout.prefill_chunks = [0] must be positive"},
      {{"rollout.prefill_chunks=[1024]"}, "rollout.prefill_chunks begins with 1024"}};
  for (const auto& [sets, text] : cases) {
    const Status status = Read(sets).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
}

TEST(ConfigValuesTest, WhatRunsCanUseIsTaken) {
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"rollout.context_buckets=[64, 512]", "rollout.prefill_chunks=[16, 1024]"},
           {"env.kind=openenv", "env.url=ws://127.0.0.1:8000"},
           {"env.kind=openenv", "env.url=https://example.org"},
           {"env.tools=[\"mcp\"]", "env.mcp_url=unix:/run/mcp.sock:/mcp"},
           {"rollout.engine=vllm", "rollout.servers=[\"unix:/run/v.sock:\", \"http://[::1]:1/\"]"},
           {"env.options={\"a\": 1}", "env.command=[\"/none\", \"\"]"}}) {
    EXPECT_EQ(Read(sets).status(), OkStatus());
  }
}

class ConfigProgramsTest : public testing::Test {
 protected:
  ConfigProgramsTest() : folder_(fs::path(testing::TempDir()) / "forebay_config_programs") {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "bin");
    std::ofstream(folder_ / "run.sh") << "#!/bin/sh\n";
    std::ofstream(folder_ / "data.txt") << "x\n";
    fs::permissions(folder_ / "run.sh", fs::perms::owner_all);
  }
  ~ConfigProgramsTest() override { fs::remove_all(folder_); }

  Status Check(EnvSection env) const {
    Config config;
    config.folder = folder_.string();
    config.env = std::move(env);
    return CheckPrograms(config);
  }
  fs::path folder_;
};

TEST_F(ConfigProgramsTest, WhatCanBeRunIsFoundAsItWouldBeStarted) {
  for (const std::string& name :
       {std::string("sh"), std::string("/bin/sh"), std::string("./run.sh"),
        std::string("bin/../run.sh"), (folder_ / "run.sh").string()}) {
    EXPECT_EQ(Check({.command = {name, "x"}}), OkStatus()) << name;
  }
  // Nothing that no process would be started for.
  EXPECT_EQ(Check({.kind = "builtin", .command = {"/none"}}), OkStatus());
  EXPECT_EQ(Check({.command = {"sh"}, .mcp_command = {"/none"}}), OkStatus());
}

TEST_F(ConfigProgramsTest, WhatCannotBeRunIsNamedWithTheReason) {
  const std::vector<std::pair<EnvSection, std::string>> cases = {
      {{.command = {"/nonexist"}},
       "env.command begins with '/nonexist', which cannot be run: there "
       "is no such file. Its first word must be a program"},
      {{.kind = "harness", .command = {"/nonexist"}}, "env.command begins with '/nonexist'"},
      {{.command = {"./none"}}, "there is no such file (" + folder_.string()},
      {{.command = {"./bin"}}, "it is a folder"},
      {{.command = {"./data.txt"}}, "it is not executable (chmod +x"},
      {{.command = {"./run.sh/x"}}, "there is no such file"},
      {{.command = {"forebay-no-such-program"}}, "no such program on the PATH: install it"},
      {{.command = {"run.sh"}}, "give './run.sh' for the one in " + folder_.string()},
      {{.command = {"sh"}, .tools = {"mcp"}, .mcp_command = {"/none"}},
       "env.mcp_command begins with '/none'"}};
  for (const auto& [env, text] : cases) {
    const Status status = Check(env);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace forebay::control
