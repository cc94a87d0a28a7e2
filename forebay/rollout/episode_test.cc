// RunEpisode: every token in its column, every end with its outcome.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One episode on a virtual loop, with everything that can be scripted.
class Stage {
 public:
  Stage() {
    options.environment = "scripted";
    options.stop_tokens = {weights::kTinyEnd};
    options.on_failure = [this](const TrajectoryId&, Outcome, const Status& status) {
      failures.push_back(status);
    };
    script.reset = [](const env::ResetRequest&) -> Result<std::vector<env::Message>> {
      return std::vector<env::Message>{{"system", "S"}, {"user", "2+2?"}};
    };
    script.step = [](const std::string&) -> Result<env::StepResult> {
      return env::StepResult{.rewards = {{"answer", 1.0}}, .done = true};
    };
    answer = [this](const GenerateRequest&) -> Result<GenerateResult> { return Say("4"); };
  }

  GenerateResult Say(const std::string& words, FinishReason reason = FinishReason::kStop,
                     int64_t policy_version = 0) const {
    return Said(*text.tokenizer, words, reason, policy_version);
  }

  Trajectory Run() {
    const auto loop = MakeVirtualLoop();
    ScriptedEngine engine(*loop, std::chrono::milliseconds(10),
                          [this](const GenerateRequest& request) { return answer(request); });
    engine.context = context;
    ScriptedPool pool(*loop, &script);
    std::optional<Trajectory> out;
    loop->Spawn(Play(*loop, engine, pool, &out));
    loop->Run();
    EXPECT_TRUE(out.has_value()) << "the episode ended";
    EXPECT_EQ(script.alive, 0) << "its environment is released";
    requests = engine.requests;
    if (!out) return {};
    EXPECT_EQ(Validate(*out), OkStatus());
    EXPECT_EQ(out->id, assignment.id);
    EXPECT_EQ(out->environment, "scripted");
    return *out;
  }

  std::string Text(const Trajectory& t, const Turn& turn) const {
    const std::vector<int32_t> ids(t.tokens.begin() + turn.begin, t.tokens.begin() + turn.end);
    return text.tokenizer->Decode(ids, /*skip_special=*/false).value();
  }

  TinyText text = MakeTinyText();
  EpisodeOptions options;
  EnvironmentScript script;
  ScriptedEngine::Answer answer;
  int64_t context = 4096;
  Assignment assignment{.id = {.trajectory_id = 7, .group_id = 3, .member = 1, .task_id = 42},
                        .seed = 99};
  std::function<bool()> abort;
  std::vector<GenerateRequest> requests;
  std::vector<Status> failures;

 private:
  Task<void> Play(Loop& loop, Engine& engine, env::EnvironmentPool& pool,
                  std::optional<Trajectory>* out) {
    Task<Trajectory> episode =
        RunEpisode(loop, engine, pool, *text.tokenizer, *text.chat, options, assignment, abort);
    Trajectory trajectory = co_await std::move(episode);
    out->emplace(std::move(trajectory));
  }
};

TEST(EpisodeTest, OneTurn) {
  Stage stage;
  const Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kDone);
  EXPECT_THAT(t.rewards, ElementsAre(std::make_pair("answer", 1.0)));
  ASSERT_EQ(t.turns.size(), 2U);
  EXPECT_EQ(
      stage.Text(t, t.turns[0]),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(stage.Text(t, t.turns[1]), "4<|im_end|>");
  EXPECT_EQ(t.loss_tokens(), 2);
  EXPECT_THAT(t.versions, ElementsAre(VersionRun{.policy_version = 0, .tokens = 2}));
  EXPECT_EQ(t.turns[1].kind, TurnKind::kAction);
  EXPECT_EQ(t.turns[1].spans.decode_us, 3);
  EXPECT_EQ(t.turns[1].spans.environment_us, 1'000'000);
  EXPECT_THAT(stage.script.actions, ElementsAre("4"));
  EXPECT_EQ(stage.script.resets[0].task_id, 42);
  EXPECT_EQ(stage.script.resets[0].split, "train");
  EXPECT_EQ(stage.requests[0].priority, 3);
  EXPECT_THAT(stage.requests[0].stop_tokens, ElementsAre(weights::kTinyEnd));
  EXPECT_THAT(stage.failures, IsEmpty());
}

TEST(EpisodeTest, T1_T5_ManyTurnsKeepEveryTokenAsItWasSampled) {
  Stage stage;
  int turn = 0;
  stage.answer = [&](const GenerateRequest&) -> Result<GenerateResult> {
    ++turn;
    // The second turn is cut by its budget: the template's end of turn is then an observation.
    return turn == 2 ? stage.Say("look", FinishReason::kLength, 5)
                     : stage.Say("say " + std::to_string(turn), FinishReason::kStop, 4 + turn / 3);
  };
  stage.script.step = [&](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{"tool", "seen"}, {"user", "go on"}},
                           .rewards = {{"step", 0.5}},
                           .done = turn == 3,
                           .tool = "eye",
                           .reward_us = 400'000};
  };
  const Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kDone);
  EXPECT_EQ(t.rewards.at("step"), 1.5);
  ASSERT_EQ(t.turns.size(), 6U);
  std::string all;
  for (const Turn& part : t.turns) all += stage.Text(t, part);
  EXPECT_EQ(all,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
            "<|im_start|>assistant\nsay 1<|im_end|>\n"
            "<|im_start|>tool\nseen<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"
            "<|im_start|>assistant\nlook<|im_end|>\n"
            "<|im_start|>tool\nseen<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"
            "<|im_start|>assistant\nsay 3<|im_end|>")
      << "the end of turn stands once, whoever wrote it";
  EXPECT_EQ(stage.Text(t, t.turns[1]), "say 1<|im_end|>");
  EXPECT_EQ(stage.Text(t, t.turns[3]), "look");
  EXPECT_TRUE(stage.Text(t, t.turns[4]).starts_with("<|im_end|>\n<|im_start|>tool"));
  EXPECT_EQ(t.loss_tokens(), 6 + 4 + 6);
  EXPECT_THAT(t.versions, ElementsAre(VersionRun{.policy_version = 4, .tokens = 6},
                                      VersionRun{.policy_version = 5, .tokens = 10}));
  for (const Turn& part : t.turns) {
    for (int32_t i = part.begin; i < part.end; ++i) {
      const bool sampled = part.kind == TurnKind::kAction;
      EXPECT_EQ(t.loss_mask[static_cast<size_t>(i)], sampled ? 1 : 0);
      EXPECT_EQ(t.rollout_logprobs[static_cast<size_t>(i)],
                sampled ? -0.25F * static_cast<float>(i - part.begin + 1) : 0.0F);
    }
  }
  EXPECT_EQ(t.turns[1].tool, "eye");
  EXPECT_EQ(t.turns[1].spans.reward_us, 400'000);
  EXPECT_EQ(t.turns[1].spans.environment_us, 600'000);
  // Each prompt is exactly the tokens before it.
  ASSERT_EQ(stage.requests.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const auto& prompt = stage.requests[i].prompt;
    EXPECT_EQ(prompt.size(), static_cast<size_t>(t.turns[2 * i].end));
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), t.tokens.begin()));
    EXPECT_EQ(stage.requests[i].seed, stage.requests[0].seed);
  }
  EXPECT_THAT(stage.script.actions, ElementsAre("say 1", "look", "say 3"));
}

TEST(EpisodeTest, TheTemplateIsToldOfTheEnvironmentsTools) {
  Stage stage;
  stage.text.chat = tokenizer::ChatTemplate::Parse(
                        "{% if tools %}{{ tools[0].function.name }};{% endif %}"
                        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
                        .value();
  stage.script.tools_json = R"([{"type": "function", "function": {"name": "look"}}])";
  const Trajectory t = stage.Run();
  EXPECT_EQ(stage.Text(t, t.turns[0]), "look;system:S;user:2+2?;");
  // What the run configures comes first.
  stage.options.tools_json = R"([{"type": "function", "function": {"name": "mine"}}])";
  const Trajectory other = stage.Run();
  EXPECT_EQ(stage.Text(other, other.turns[0]), "mine;system:S;user:2+2?;");
}

TEST(EpisodeTest, TheTurnBudgetEnds) {
  Stage stage;
  stage.options.turns_max = 2;
  stage.script.step = [](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{"user", "more"}}, .rewards = {{"r", 1}}};
  };
  const Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTurns);
  EXPECT_EQ(t.turns.size(), 4U);
  EXPECT_EQ(t.reward(), 2);
}

TEST(EpisodeTest, TheTokenBudgetEnds) {
  Stage stage;
  const auto prompt = static_cast<int32_t>(stage.Run().turns[0].end);
  stage.answer = [&](const GenerateRequest& request) -> Result<GenerateResult> {
    return stage.Say(std::string(static_cast<size_t>(request.new_tokens_max), 'x'),
                     FinishReason::kLength);
  };
  stage.options.tokens_max = prompt + 10;
  Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTokens);
  EXPECT_EQ(t.loss_tokens(), 10);
  EXPECT_EQ(stage.script.actions.size(), 1U)
      << "from the run before: nothing was cut and then graded";

  // The prompt alone fills it: B4, no synthetic token.
  stage.options.tokens_max = prompt;
  t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTokens);
  EXPECT_EQ(t.loss_tokens(), 0);
  EXPECT_EQ(t.min_version(), -1);

  // An observation that does not fit ends the episode before it is appended.
  stage.answer = [&](const GenerateRequest&) -> Result<GenerateResult> { return stage.Say("4"); };
  stage.script.step = [](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{"user", std::string(100, 'y')}}, .rewards = {{"r", 1}}};
  };
  stage.options.tokens_max = prompt + 50;
  t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTokens);
  EXPECT_EQ(t.turns.size(), 2U);
  EXPECT_EQ(t.reward(), 1);

  // Nor is one tokenized that cannot fit: that would hold up the loop (64 MiB here).
  stage.script.step = [](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{"user", std::string(64 << 20, 'y')}},
                           .rewards = {{"r", 1}}};
  };
  t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTokens);
  EXPECT_EQ(t.turns.size(), 2U);
  EXPECT_EQ(t.reward(), 1);
}

TEST(EpisodeTest, TheEnginesContextEnds) {
  Stage stage;
  stage.answer = [&](const GenerateRequest&) -> Result<GenerateResult> {
    return stage.Say("4", FinishReason::kContext);
  };
  EXPECT_EQ(stage.Run().outcome, Outcome::kTruncatedTokens);
  stage.context = 20;
  stage.answer = [](const GenerateRequest&) -> Result<GenerateResult> {
    return InvalidArgument("the prompt leaves no room");
  };
  const Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTokens);
  EXPECT_EQ(t.loss_tokens(), 0) << "B4";
}

TEST(EpisodeTest, B2_FaultsOfTheInfrastructureAreOutcomesThatNeverTrain) {
  struct Case {
    Status status;
    Outcome expected;
  };
  const std::vector<Case> environment = {
      {DeadlineExceeded("hang"), Outcome::kEnvTimeout},
      {Unavailable("crash"), Outcome::kEnvError},
      {DataLoss("garbage"), Outcome::kEnvError},
      {Internal("exception"), Outcome::kEnvError},
      {FailedPrecondition("grader"), Outcome::kGraderError},
  };
  for (const Case& c : environment) {
    for (const char* where : {"acquire", "reset", "step"}) {
      Stage stage;
      const std::string place = where;
      if (place == "acquire") stage.script.acquire = c.status;
      if (place == "reset") stage.script.reset = [&](const env::ResetRequest&) { return c.status; };
      if (place == "step") stage.script.step = [&](const std::string&) { return c.status; };
      const Trajectory t = stage.Run();
      EXPECT_EQ(t.outcome, c.expected) << place << " " << c.status.ToString();
      EXPECT_FALSE(Trains(t.outcome));
      EXPECT_EQ(t.loss_tokens(), place == "step" ? 2 : 0);
      EXPECT_THAT(stage.failures, ElementsAre(c.status));
    }
  }
  for (const Status& status : {Unavailable("gone"), DeadlineExceeded("late"), Internal("nan"),
                               InvalidArgument("an id out of the vocabulary")}) {
    Stage stage;
    stage.answer = [&](const GenerateRequest&) { return status; };
    const Trajectory t = stage.Run();
    EXPECT_EQ(t.outcome, Outcome::kEngineError);
    EXPECT_EQ(t.loss_tokens(), 0) << "B4: no synthetic token";
    EXPECT_THAT(stage.failures, ElementsAre(status));
  }
}

TEST(EpisodeTest, AFullEngineIsAskedAgainUntilTheDeadline) {
  Stage stage;
  int asked = 0;
  stage.answer = [&](const GenerateRequest&) -> Result<GenerateResult> {
    if (++asked < 5) return ResourceExhausted("too many wait");
    return stage.Say("4");
  };
  EXPECT_EQ(stage.Run().outcome, Outcome::kDone);
  EXPECT_EQ(asked, 5);
  stage.answer = [](const GenerateRequest&) -> Result<GenerateResult> {
    return ResourceExhausted("too many wait");
  };
  EXPECT_EQ(stage.Run().outcome, Outcome::kEngineError);
}

TEST(EpisodeTest, AbortsBetweenTurns) {
  Stage stage;
  stage.abort = [] { return true; };
  Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kAborted);
  EXPECT_THAT(stage.script.resets, IsEmpty());

  stage.script.step = [](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{"user", "more"}}};
  };
  stage.abort = [&] { return !stage.script.actions.empty(); };
  t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kAborted);
  EXPECT_EQ(stage.requests.size(), 1U);
  EXPECT_EQ(t.loss_tokens(), 2);
}

TEST(EpisodeTest, ARewardThatIsNoNumberIsAFaultOfTheEnvironment) {
  Stage stage;
  stage.script.step = [](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.rewards = {{"r", std::numeric_limits<double>::quiet_NaN()}},
                           .done = true};
  };
  const Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kEnvError);
  ASSERT_EQ(stage.failures.size(), 1U);
  EXPECT_THAT(stage.failures[0].message(), HasSubstr("not finite"));
}

TEST(EpisodeTest, SetupThatCannotWorkIsReported) {
  Stage stage;
  EXPECT_EQ(CheckEpisodeSetup(*stage.text.tokenizer, *stage.text.chat, stage.options), OkStatus());
  // A template that counts the messages first: what was rendered is no prefix of what comes.
  stage.text.chat = tokenizer::ChatTemplate::Parse(
                        "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}")
                        .value();
  const Status status = CheckEpisodeSetup(*stage.text.tokenizer, *stage.text.chat, stage.options);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("chat template"));
  stage.script.step = [](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{"user", "more"}}};
  };
  stage.failures.clear();
  const Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kEnvError);
  ASSERT_EQ(stage.failures.size(), 1U);
  EXPECT_THAT(stage.failures[0].message(), HasSubstr("chat template"));
  stage.options.turns_max = 1;
  EXPECT_EQ(CheckEpisodeSetup(*stage.text.tokenizer, *stage.text.chat, stage.options), OkStatus());
}

// Templates that strip what the assistant thought once a user speaks again: the sampled tokens
// stay.
TEST(EpisodeTest, ATemplateThatCutsThoughtsChangesNoToken) {
  Stage stage;
  stage.text.chat =
      tokenizer::ChatTemplate::Parse(
          "{% for m in messages %}<|im_start|>{{ m.role }}\n"
          "{{ m.content.split('</think>')[-1].strip() }}<|im_end|>\n"
          "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
          .value();
  stage.answer = [&](const GenerateRequest&) -> Result<GenerateResult> {
    return stage.Say("<think> hm </think> 4 ");
  };
  stage.script.step = [&](const std::string&) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{"user", "sure?"}},
                           .done = stage.script.actions.size() == 2};
  };
  const Trajectory t = stage.Run();
  EXPECT_EQ(t.outcome, Outcome::kDone);
  ASSERT_EQ(t.turns.size(), 4U);
  EXPECT_EQ(stage.Text(t, t.turns[1]), "<think> hm </think> 4 <|im_end|>");
  EXPECT_EQ(stage.Text(t, t.turns[2]),
            "\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace forebay::rollout
