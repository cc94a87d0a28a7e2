// Goal: rows are read as they stand, split without overlap and graded as configured; whatever is
// wrong with a file or an option is said with its place.
#include "forebay/env/builtin/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/builtin.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess_testing.h"

namespace forebay::env {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

struct Played {
  std::vector<Message> prompt;
  std::vector<StepResult> steps;
  Status status;
};

Task<void> Play(Loop* loop, EnvironmentPool* pool, ResetRequest request,
                std::vector<std::string> actions, Played* out) {
  const TimePoint deadline = loop->Now() + std::chrono::seconds(1);
  auto place = co_await pool->Acquire(deadline);
  EXPECT_TRUE(place.ok());
  auto prompt = co_await (*place)->Reset(request, deadline);
  EXPECT_TRUE(prompt.ok());
  out->prompt = *prompt;
  for (const std::string& action : actions) {
    auto step = co_await (*place)->Step(action, deadline);
    out->status = step.status();
    if (!step.ok()) co_return;
    out->steps.push_back(std::move(*step));
  }
}

class DatasetTest : public ::testing::Test {
 protected:
  void Open(const std::string& rows, Json options) {
    folder_.Write("rows.jsonl", rows);
    options.emplace("path", "rows.jsonl");
    if (!options.contains("rewards")) options["rewards"] = {{{"kind", "exact"}}};
    auto pool = MakeBuiltin("dataset", options, *loop_, folder_.path());
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    pool_ = std::move(*pool);
  }
  Played Play(int64_t task, const std::string& split, std::vector<std::string> actions) {
    Played played;
    const ResetRequest request{.task_id = task, .split = split, .seed = 1};
    RunToEnd(*loop_, env::Play(loop_.get(), pool_.get(), request, std::move(actions), &played));
    return played;
  }
  void ExpectError(const std::string& rows, Json options, StatusCode code,
                   const std::string& text) {
    folder_.Write("rows.jsonl", rows);
    const auto pool = MakeBuiltin("dataset", options, *loop_, folder_.path());
    EXPECT_EQ(pool.status().code(), code) << options.dump();
    EXPECT_THAT(pool.status().message(), HasSubstr(text));
  }

  TempFolder folder_;
  std::unique_ptr<Loop> loop_ = MakeVirtualLoop();
  std::unique_ptr<EnvironmentPool> pool_;
};

TEST_F(DatasetTest, RowsAreAskedAndGradedByComponents) {
  Open(R"({"question": "2+3?", "result": "so #### 5"}

{"question": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "result": 7}
)",
       {{"prompt_key", "question"},
        {"answer_key", "result"},
        {"template", "Q: {prompt}\nA:"},
        {"eval_fraction", 0},
        {"rewards",
         {{{"kind", "numeric"}, {"name", "correct"}},
          {{"kind", "format"}, {"form", "bare_number"}, {"weight", 0.25}}}}});
  Played played = Play(0, "train", {"5"});
  EXPECT_THAT(played.prompt, ElementsAre(Message{"user", "Q: 2+3?\nA:"}));
  EXPECT_TRUE(played.steps[0].done);
  EXPECT_THAT(played.steps[0].messages, IsEmpty());
  EXPECT_THAT(played.steps[0].rewards, ElementsAre(Pair("correct", 1.0), Pair("format", 0.25)));
  played = Play(1, "eval", {"it is 7"});
  EXPECT_THAT(played.prompt, ElementsAre(Message{"system", "s"}, Message{"user", "u"}));
  EXPECT_THAT(played.steps[0].rewards, ElementsAre(Pair("correct", 1.0), Pair("format", 0.0)));
  EXPECT_EQ(Play(2, "train", {}).prompt, Play(0, "train", {}).prompt);  // the first row again
}

TEST_F(DatasetTest, DemonstrationsStandBehindTheSystemMessage) {
  const Json shown = {{{"role", "user"}, {"content", "1+1"}},
                      {{"role", "assistant"}, {"content", "2"}}};
  const std::string rows =
      "{\"prompt\": \"p\", \"answer\": 1}\n"
      R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "answer": 1})";
  Open(rows, {{"eval_fraction", 0}, {"template", "Q: {prompt}"}, {"demonstrations", shown}});
  const Message asked{"user", "1+1"}, answered{"assistant", "2"};
  EXPECT_THAT(Play(0, "train", {}).prompt, ElementsAre(asked, answered, Message{"user", "Q: p"}));
  EXPECT_THAT(Play(1, "train", {}).prompt,
              ElementsAre(Message{"system", "s"}, asked, answered, Message{"user", "u"}));
}

TEST_F(DatasetTest, AWrongAnswerMayBeTriedAgainForLess) {
  Open(R"({"prompt": "Capital of France?", "answer": ["Paris", "Lutetia"]})",
       {{"eval_fraction", 0}, {"system", "Be brief."}, {"tries", 3}, {"retry", "No."}});
  const Played played = Play(0, "train", {"Rome", "paris."});
  EXPECT_EQ(played.prompt[0], (Message{"system", "Be brief."}));
  EXPECT_FALSE(played.steps[0].done);
  EXPECT_THAT(played.steps[0].rewards, IsEmpty());
  EXPECT_THAT(played.steps[0].messages, ElementsAre(Message{"user", "No."}));
  EXPECT_TRUE(played.steps[1].done);
  EXPECT_THAT(played.steps[1].rewards, ElementsAre(Pair("exact", 0.5)));
  const Played wrong = Play(0, "train", {"a", "b", "c"});
  EXPECT_TRUE(wrong.steps[2].done);
  EXPECT_THAT(wrong.steps[2].rewards, ElementsAre(Pair("exact", 0.0)));
}

TEST_F(DatasetTest, TheSplitsShareNoPrompt) {
  std::string rows;
  for (int i = 0; i < 200; ++i) {
    rows += Json{{"prompt", "p" + std::to_string(i % 100)}, {"answer", i}}.dump() + "\n";
  }
  Open(rows, {{"eval_fraction", 0.2}});
  std::set<std::string> train, eval;
  for (int64_t task = 0; task < 200; ++task) {
    train.insert(Play(task, "train", {}).prompt[0].content);
    eval.insert(Play(task, "eval", {}).prompt[0].content);
  }
  EXPECT_EQ(eval.size(), 20U);
  EXPECT_EQ(train.size(), 80U);
  for (const std::string& prompt : eval) EXPECT_EQ(train.count(prompt), 0U);
}

TEST_F(DatasetTest, EvaluationMayHaveAFileOfItsOwn) {
  folder_.Write("held_out.jsonl", R"({"prompt": "e", "answer": "x"})");
  Open(R"({"prompt": "t", "answer": "x"})", {{"eval_path", folder_.path() + "/held_out.jsonl"}});
  EXPECT_EQ(Play(5, "train", {}).prompt[0].content, "t");
  EXPECT_EQ(Play(5, "eval", {}).prompt[0].content, "e");
}

TEST_F(DatasetTest, B2_AnAnswerThatCannotBeJudgedIsAGraderError) {
  Open(R"({"prompt": "p"})",
       {{"eval_fraction", 0}, {"rewards", {{{"kind", "regex"}, {"pattern", "(a+)+$"}}}}});
  const Played played = Play(0, "train", {std::string(500, 'a') + "b"});
  EXPECT_EQ(played.status.code(), StatusCode::kFailedPrecondition);
}

TEST_F(DatasetTest, WrongFilesNameTheLine) {
  const Json options = {{"path", "rows.jsonl"}, {"rewards", {{{"kind", "numeric"}}}}};
  const std::string good = "{\"prompt\": \"p\", \"answer\": 1}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "has no rows"},
      {" \n\n", "has no rows"},
      {good + "\n{", "rows.jsonl, line 3: a line must hold one JSON object"},
      {good + "[]", "line 2: a line must hold one JSON object"},
      {good + "\xff", "line 2"},
      {"{\"answer\": 1}", "line 1: the object has no \"prompt\"; the option prompt_key"},
      {"{\"prompt\": \"p\"}", "line 1: the object has no \"answer\"; the option answer_key"},
      {"{\"prompt\": 1, \"answer\": 1}", "a prompt is a text or a list"},
      {"{\"prompt\": [], \"answer\": 1}", "a prompt is a text or a list"},
      {"{\"prompt\": [{\"role\": \"user\"}], \"answer\": 1}", "a message is an object"},
      {"{\"prompt\": \"p\", \"answer\": {}}", "an answer is a text, a number or a list"},
      {"{\"prompt\": \"p\", \"answer\": \"one\"}", "the answer 'one' has no number"},
      {good, "rows.jsonl has one prompt only"},
  };
  for (const auto& [rows, text] : cases) {
    ExpectError(rows, options, StatusCode::kInvalidArgument, text);
  }
  ExpectError("", {{"path", "none.jsonl"}, {"rewards", {{{"kind", "exact"}}}}},
              StatusCode::kNotFound, "none.jsonl");
}

TEST_F(DatasetTest, WrongOptionsAreNamed) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {Json::array(), "must be a table"},
      {Json(), "needs the option path"},
      {{{"path", "rows.jsonl"}}, "needs the option rewards"},
      {{{"path", 3}}, "path of environment 'dataset' must be a text"},
      {{{"paht", "x"}}, "has no option 'paht'; it has: path, eval_path"},
      {{{"eval_fraction", 1}}, "from 0 to below 1"},
      {{{"eval_fraction", "a"}}, "from 0 to below 1"},
      {{{"tries", 0}}, "from 1 to 100"},
      {{{"tries", 1.5}}, "from 1 to 100"},
      {{{"template", "no place"}}, "{prompt}"},
      {{{"demonstrations", "x"}}, "demonstrations of environment 'dataset' must be a list"},
      {{{"demonstrations", {{{"role", "user"}}}}}, "\"role\" and \"content\""},
      {{{"rewards", {{"kind", "exact"}}}}, "rewards of environment 'dataset' must be a list"},
      {{{"rewards", {{{"kind", "nearly"}}}}}, "not 'nearly'"},
  };
  for (const auto& [options, text] : cases) {
    ExpectError("{\"prompt\": \"p\", \"answer\": 1}", options, StatusCode::kInvalidArgument, text);
  }
}

}  // namespace
}  // namespace forebay::env
