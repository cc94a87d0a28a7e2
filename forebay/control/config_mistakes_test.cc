// Goal: whoever mistypes a section, a key or a value, in the file or by --set, reads where, what
// came, what was wanted, and what was probably meant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::control {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The error of a configuration that is right but for `more`, which begins in line 5.
std::string Mistake(const std::string& more, const std::vector<std::string>& sets = {}) {
  const Status status =
      ParseConfig("[model]\npath = \"m.gguf\"\n[env]\ncommand = [\"python3\", \"env.py\"]\n" + more,
                  "test.toml", "/folder", sets)
          .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << more;
  return std::string(status.message());
}

std::string SetMistake(const std::string& set) { return Mistake("", {set}); }

TEST(ConfigMistakesTest, UnknownKeysSuggestTheOneThatWasMeant) {
  EXPECT_THAT(Mistake("[learner]\nlerning_rate = 1.0\n"),
              HasSubstr("test.toml:6: unknown key 'learner.lerning_rate'; did you mean "
                        "'learner.learning_rate'?"));
  EXPECT_THAT(SetMistake("run.stps=3"),
              HasSubstr("--set run.stps: unknown key 'run.stps'; did you mean 'run.steps'?"));
  // In another section, without a section, in other words, in another order, in capitals.
  EXPECT_THAT(Mistake("[rollout]\ngroup_size = 4\n"), HasSubstr("mean 'learner.group_size'?"));
  EXPECT_THAT(SetMistake("learning_rate=3"), HasSubstr("mean 'learner.learning_rate'?"));
  EXPECT_THAT(SetMistake("learner.lr=3"), HasSubstr("mean 'learner.learning_rate'?"));
  EXPECT_THAT(SetMistake("rollout.max_turns=3"), HasSubstr("mean 'rollout.turns_max'?"));
  EXPECT_THAT(SetMistake("run.Steps=3"), HasSubstr("mean 'run.steps'?"));
  // Two sections have the name: the one that is near wins.
  EXPECT_THAT(SetMistake("evl.tasks=3"), HasSubstr("mean 'eval.tasks'?"));
  EXPECT_THAT(SetMistake("rolout.temperature=1"), HasSubstr("mean 'rollout.temperature'?"));
  EXPECT_THAT(SetMistake("eval.temprature=1"), HasSubstr("mean 'eval.temperature'?"));
}

TEST(ConfigMistakesTest, NothingNearIsNoSuggestion) {
  EXPECT_THAT(SetMistake("run.zzzzzzzz=3"),
              AllOf(Not(HasSubstr("mean")), HasSubstr("`forebay config` lists all")));
  EXPECT_THAT(SetMistake("run." + std::string(100000, 'x') + "=3"), Not(HasSubstr("mean")));
  EXPECT_THAT(SetMistake("run.=3"), HasSubstr("unknown key 'run.'"));
}

TEST(ConfigMistakesTest, UnknownSectionsSuggestTheNearest) {
  EXPECT_THAT(Mistake("[lerner]\ngroup_size = 4\n"),
              AllOf(HasSubstr("test.toml:5: unknown section 'lerner'; did you mean 'learner'?"),
                    HasSubstr("run, model, device, mesh, env")));
  EXPECT_THAT(Mistake("[Learner]\ngroup_size = 4\n"), HasSubstr("did you mean 'learner'?"));
  EXPECT_THAT(Mistake("[zzzzzzzz]\n"), Not(HasSubstr("mean")));
  EXPECT_THAT(Mistake("[run.stepz]\nx = 1\n"), HasSubstr("mean 'run.steps'?"));
  EXPECT_THAT(SetMistake("run=3"), HasSubstr("'run' is a section and takes no value"));
}

TEST(ConfigMistakesTest, ChoicesSuggestTheNearest) {
  EXPECT_THAT(
      Mistake("[run]\nmode = \"snyc\"\n"),
      HasSubstr("test.toml:6: 'run.mode' = \"snyc\" is not one of: decoupled, sync; did you mean "
                "'sync'?"));
  EXPECT_THAT(SetMistake("learner.advantage=GRPO"), HasSubstr("did you mean 'grpo'?"));
  EXPECT_THAT(SetMistake("learner.optimizer=adam"), HasSubstr("did you mean 'adamw'?"));
  EXPECT_THAT(Mistake("[run]\nmode = \"fast\"\n"),
              AllOf(HasSubstr("not one of: decoupled, sync"), Not(HasSubstr("mean"))));
  EXPECT_THAT(SetMistake("env.tools=[\"pyton\"]"),
              AllOf(HasSubstr("env.tools has 'pyton'; did you mean 'python'?"),
                    HasSubstr("calculator, python, shell, mcp")));
}

TEST(ConfigMistakesTest, WrongTypesSayWhatWasWantedAndWhatCame) {
  EXPECT_THAT(Mistake("[run]\nsteps = \"ten\"\n"),
              HasSubstr("test.toml:6: 'run.steps' must be a whole number, but it is a string "
                        "(\"ten\") (optimizer steps to train)"));
  EXPECT_THAT(Mistake("[run]\nsteps = 1.5\n"), HasSubstr("but it is a number (1.5)"));
  EXPECT_THAT(Mistake("[run]\nmode = 3\n"),
              HasSubstr("must be a string, but it is a whole number (3)"));
  EXPECT_THAT(Mistake("[learner]\nremat = 1\n"),
              HasSubstr("must be true or false, but it is a whole number (1)"));
  EXPECT_THAT(Mistake("[run]\nsteps = 2026-01-01\n"), HasSubstr("but it is a date or a time"));
  EXPECT_THAT(Mistake("[run.steps]\nx = 1\n"), HasSubstr("but it is a table"));
  EXPECT_THAT(
      Mistake("[learner]\nrow_lengths = [1, \"2\"]\n"),
      HasSubstr("must be a list of whole numbers, for instance [256, 512], but it is a list with a "
                "string (\"2\")"));
  EXPECT_THAT(
      Mistake("[rollout]\nstop_tokens = \"x\"\n"),
      HasSubstr("must be a list of strings, for instance [\"a\", \"b\"], but it is a string"));
  EXPECT_THAT(Mistake("[env.options]\nx = 1\n"),
              HasSubstr("a string, but it is a table (JSON object"));
}

TEST(ConfigMistakesTest, SetSaysTheSame) {
  EXPECT_THAT(
      SetMistake("learner.learning_rate=abc"),
      HasSubstr("--set learner.learning_rate: 'learner.learning_rate' must be a number, but "
                "it is abc, which is no value of TOML (peak learning rate)"));
  EXPECT_THAT(SetMistake("learner.learning_rate=\"1\""), HasSubstr("a string (\"1\")"));
  EXPECT_THAT(SetMistake("rollout.deterministic=True"),
              HasSubstr("must be true or false, but it is True,"));
  EXPECT_THAT(
      SetMistake("env.command=python3"),
      HasSubstr("must be a list of strings, for instance [\"a\", \"b\"], but it is python3,"));
  EXPECT_THAT(SetMistake("run.steps="), HasSubstr("must be a whole number, but it is empty"));
  EXPECT_THAT(SetMistake("run.steps=[1"), HasSubstr("but it is [1, which is no value of TOML"));
  EXPECT_THAT(SetMistake("run.steps=1\nw = 2"),
              HasSubstr("no value of TOML"));  // and no second key
  EXPECT_THAT(SetMistake("run.mode=\"sync"), HasSubstr("must be a string"));
  EXPECT_THAT(SetMistake("run.steps"), HasSubstr("section.key=value"));
  EXPECT_THAT(SetMistake("run.steps=" + std::string(100000, 'x')),
              Not(HasSubstr(std::string(100, 'x'))));
}

TEST(ConfigMistakesTest, Ranges) {
  EXPECT_THAT(Mistake("[run]\nsteps = -1\n"), HasSubstr("'run.steps' = -1 is out of range"));
  EXPECT_THAT(Mistake("[learner]\nlearning_rate = nan\n"), HasSubstr("out of range"));
}

}  // namespace
}  // namespace forebay::control
