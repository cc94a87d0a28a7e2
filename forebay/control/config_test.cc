// Goal: a configuration is read strictly; every mistake is one clear sentence that names the key
// and the remedy.
#include "forebay/control/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace forebay::control {
namespace {

using testing::HasSubstr;

constexpr const char* kMinimal =
    "[model]\npath = \"m.gguf\"\n[env]\ncommand = [\"python3\", \"env.py\"]\n";

Result<Config> Parse(const std::string& more, const std::vector<std::string>& sets = {}) {
  return ParseConfig(kMinimal + more, "test.toml", "/folder", sets);
}

TEST(ConfigTest, DefaultsAndRelativePaths) {
  const Result<Config> config = Parse("");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->run.steps, 100);
  EXPECT_EQ(config->Resolve(config->model.path), "/folder/m.gguf");
  EXPECT_EQ(config->Resolve("/abs"), "/abs");
  EXPECT_EQ(config->Resolve("../x"), "/x");
  EXPECT_EQ(config->Resolve("tiny:"), "tiny:");
}

TEST(ConfigTest, SetOverridesInOrder) {
  const Result<Config> config = Parse(
      "[learner]\nlearning_rate = 1.0\n",
      {"learner.learning_rate=3e-5", "run.mode=sync", "run.mode=\"sync\"",
       "learner.row_lengths=[256, 512]", "rollout.deterministic=true", "learner.weight_decay=1"});
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->learner.learning_rate, 3e-5);
  EXPECT_EQ(config->run.mode, "sync");
  EXPECT_EQ(config->learner.row_lengths, (std::vector<int64_t>{256, 512}));
  EXPECT_TRUE(config->rollout.deterministic);
  EXPECT_EQ(config->learner.weight_decay, 1.0);  // a whole number where a number is wanted
}

// The loss could not compute the probability of what was sampled (docs/training.md).
TEST(ConfigTest, T2_SamplersThatTheLossDoesNotKnowAreRefused) {
  for (const char* line : {"top_k = 20", "top_p = 0.9", "min_p = 0.1"}) {
    const Status status = Parse(std::string("[rollout]\n") + line + "\n").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(status.message(), HasSubstr("test.toml:6: 'rollout."));
    EXPECT_THAT(status.message(), HasSubstr("cannot be set in a training run"));
    EXPECT_THAT(status.message(), HasSubstr("importance ratio would be wrong"));
    EXPECT_THAT(status.message(), HasSubstr("use rollout.temperature"));
  }
  for (const char* line : {"repetition_penalty = 1.1", "presence_penalty = 0.5",
                           "frequency_penalty = 0.5", "logit_bias = { \"5\" = -1.0 }"}) {
    EXPECT_THAT(Parse(std::string("[rollout]\n") + line + "\n").status().message(),
                HasSubstr("history of each token"))
        << line;
  }
  EXPECT_THAT(Parse("", {"rollout.top_p=1.0"}).status().message(),
              HasSubstr("--set rollout.top_p: 'rollout.top_p' cannot be set"));
  EXPECT_THAT(Parse("[rollout]\ntop_q = 0.9\n").status().message(), HasSubstr("unknown key"));
}

TEST(ConfigTest, BrokenTomlNamesTheLine) {
  EXPECT_THAT(Parse("[run\n").status().message(), HasSubstr("test.toml:5: not valid TOML"));
  EXPECT_EQ(LoadConfig("/nonexistent/x.toml", {}).status().code(), StatusCode::kNotFound);
}

TEST(ConfigTest, W2_CombinationsThatCannotWorkAreRefusedWithTheValues) {
  EXPECT_THAT(Parse("[rollout]\ncontext = 128\ntokens_max = 256\n").status().message(),
              HasSubstr("does not fit rollout.context = 128"));
  EXPECT_THAT(Parse("[learner]\nrow_lengths = [64]\n").status().message(),
              HasSubstr("the longest row must hold the longest trajectory"));
  EXPECT_THAT(Parse("[learner]\nrow_lengths = [1000000000]\n").status().message(),
              HasSubstr("at most 1048576 tokens"));
  EXPECT_THAT(Parse("[learner]\ngroup_size = 1\n").status().message(), HasSubstr("at least 2"));
  EXPECT_THAT(ParseConfig("", "x.toml", "/", {}).status().message(),
              HasSubstr("model.path is missing"));
  EXPECT_THAT(ParseConfig("[model]\npath=\"tiny:\"\n", "x.toml", "/", {}).status().message(),
              HasSubstr("env.command is missing"));
}

TEST(ConfigTest, AMeshIsHeldAgainstDevicesAndRowLengths) {
  EXPECT_THAT(
      Parse("[mesh]\nfsdp = 4\n[device]\nvirtual_devices = 2\n").status().message(),
      AllOf(HasSubstr("1 x 4 x 1 x 1 x 1 needs 4 devices"), HasSubstr("--virtual-devices")));
  const std::string rows =
      "[rollout]\ntokens_max = 64\n[learner]\nrow_lengths = [60, 64]\n[mesh]\n";
  EXPECT_TRUE(Parse(rows + "context = 4\n").ok());
  EXPECT_THAT(Parse(rows + "context = 8\n").status().message(),
              AllOf(HasSubstr("learner.row_lengths has 60"), HasSubstr("mesh.context = 8"),
                    HasSubstr("multiples of 8, for instance 64")));
  // 17 rows of 60 tokens in 4 parts each: 255 tokens for the devices along tensor to share.
  EXPECT_THAT(Parse(rows + "context = 4\ntensor = 2\n").status().message(),
              HasSubstr("mesh.tensor = 2"));
}

TEST(ConfigTest, FormattedConfigsParseToThemselves) {
  Result<Config> config = Parse("[env]\noptions = '{\"a\": \"\\\\\"}'\n", {});
  // A second [env] table is an error in TOML: set it instead.
  EXPECT_FALSE(config.ok());
  config = Parse("", {"env.options='{\"a\": \"x\\\\y\"}'", "learner.learning_rate=0.1",
                      "learner.row_lengths=[512]"});
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const std::string text = FormatConfig(*config);
  const Result<Config> again = ParseConfig(text, "again.toml", "/elsewhere", {});
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(FormatConfig(*again), text);
  EXPECT_EQ(again->folder, "/folder");
  EXPECT_EQ(again->env.options, "{\"a\": \"x\\\\y\"}");
}

TEST(ConfigTest, DifferencesAreNamedWithBothValues) {
  const Result<Config> a = Parse("", {});
  const Result<Config> b =
      Parse("", {"learner.learning_rate=0.5", "learner.row_lengths=[512]", "run.seed=1"});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(DifferingKeys(*a, *a).empty());
  const auto differences = DifferingKeys(*a, *b);
  ASSERT_EQ(differences.size(), 2U);
  EXPECT_EQ(differences[0].key, "learner.learning_rate");
  EXPECT_EQ(differences[0].left, "1e-05");
  EXPECT_EQ(differences[0].right, "0.5");
  EXPECT_EQ(differences[1].key, "learner.row_lengths");
  EXPECT_EQ(differences[1].right, "[512]");
}

TEST(ConfigTest, SetTakesOnlyWhatCanBeReadBack) {
  EXPECT_THAT(Parse("", {"env.name=\xff\xfe"}).status().message(), HasSubstr("not UTF-8"));
  Result<Config> config = Parse("", {"env.name=z\xc3\xbcrich \\\"\t\n"});
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const Result<Config> again = ParseConfig(FormatConfig(*config), "again.toml", "/", {});
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->env.name, config->env.name);
}

TEST(ConfigTest, DescribeListsEveryKey) {
  const std::string text = DescribeConfig();
  for (const char* key :
       {"run.steps", "buffer.max_staleness", "learner.learning_rate = 1e-05", "eval.tasks"}) {
    EXPECT_THAT(text, HasSubstr(key));
  }
}

}  // namespace
}  // namespace forebay::control
