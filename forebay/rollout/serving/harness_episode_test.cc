// Goal: a program that only knows a base URL and a key plays an episode, and however it fails, the
// outcome says how.
#include "forebay/rollout/harness_episode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/serving/recording_proxy_testing.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::rollout::serving {
namespace {

using ::testing::HasSubstr;

// A harness as a program: Python's standard library is enough to speak HTTP.
constexpr const char* kHarness = R"(
import json, os, sys, urllib.request
def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request))
task = os.environ["FOREBAY_TASK_ID"]
answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
              {"model": "m", "messages": [{"role": "user", "content": "task " + task}]})
text = answer["choices"][0]["message"]["content"]
)";

constexpr Duration kLong = std::chrono::seconds(240);  // a deadline that is not under test

class HarnessTest : public RecordingProxyTest {
 protected:
  Trajectory Play(const std::string& end, Duration deadline = kLong,
                  std::function<bool()> abort = nullptr, const std::string& begin = kHarness) {
    HarnessOptions options{
        .command = {"python3", "-c", begin + end},
        .variables = {{"EXTRA", "1"}},
        .deadline = deadline,
        .on_failure = [this](const TrajectoryId&, Outcome, const Status& why) { failure_ = why; }};
    options.recording.environment = "harness";
    failure_ = OkStatus();
    std::optional<Trajectory> out;
    const auto play = [&]() -> Task<void> {
      Task<Trajectory> playing =
          RunHarnessEpisode(*bench_.loop, *proxy_, options,
                            {.id = {.trajectory_id = 9, .task_id = 4}, .seed = 1}, abort);
      out = co_await std::move(playing);
    };
    bench_.loop->Spawn(play(), [this] { bench_.loop->Stop(); });
    bench_.loop->Run();
    EXPECT_TRUE(Validate(*out).ok());
    return std::move(*out);
  }
  Status failure_;
};

TEST_F(HarnessTest, AProgramPlaysAnEpisode) {
  Trajectory t = Play("print('noise'); print(json.dumps({'reward': len(text)}))");
  EXPECT_EQ(t.outcome, Outcome::kDone) << failure_.ToString();
  EXPECT_EQ(t.reward(), 6);
  EXPECT_THAT(Text(t), HasSubstr("task 4"));
  EXPECT_EQ(t.loss_tokens(), 7);
  t = Play("post(os.environ['FOREBAY_REWARD_URL'], {'rewards': {'posted': 0.5}})");
  EXPECT_EQ(t.rewards, (std::map<std::string, double>{{"posted", 0.5}}));
  EXPECT_EQ(t.outcome, Outcome::kDone);
}

TEST_F(HarnessTest, ItsFailuresAreTyped) {
  EXPECT_EQ(Play("sys.exit('broken')").outcome, Outcome::kEnvError);
  EXPECT_THAT(failure_.message(), HasSubstr("broken"));
  EXPECT_EQ(Play("").outcome, Outcome::kGraderError);
  EXPECT_EQ(Play("import time; time.sleep(300)", std::chrono::milliseconds(1500)).outcome,
            Outcome::kEnvTimeout);
  EXPECT_EQ(Play("import time; time.sleep(300)", kLong, [] { return true; }).outcome,
            Outcome::kAborted);
  EXPECT_EQ(proxy_->open(), 0);
}

// One paragraph that says what happened, with the exit code and the last words; the code of a part
// of the run that died.
TEST_F(HarnessTest, ItsFailuresAreToldWithItsLastWords) {
  const auto told = [&](const std::string& program) {
    return Play("", kLong, nullptr, program).outcome;
  };
  EXPECT_EQ(told("import sys; print('a', file=sys.stderr); print('no key', file=sys.stderr)"),
            Outcome::kEnvError);
  EXPECT_EQ(failure_.code(), StatusCode::kUnavailable);
  EXPECT_EQ(failure_.message(),
            "the harness exited with code 0 without asking the policy: it must send its calls to "
            "OPENAI_BASE_URL, with OPENAI_API_KEY as the key; the last lines of its standard "
            "error:\na\nno key");
  told("import sys; [print(i, file=sys.stderr) for i in range(10000)]; sys.exit(7)");
  EXPECT_EQ(failure_.code(), StatusCode::kUnavailable);
  EXPECT_THAT(failure_.message(), HasSubstr("exited with code 7; the last lines of its standard "
                                            "error:\n9988\n9989\n"));
  told("import sys; print('x' * 9000, file=sys.stderr); sys.exit(1)");
  EXPECT_LT(failure_.message().size(), 2200U);
  told("print('only this')");
  EXPECT_THAT(failure_.message(), HasSubstr("last to standard output:\nonly this"));
  told("");
  EXPECT_THAT(failure_.message(), HasSubstr("; it wrote nothing"));

  Play("print('reward: 1')");
  EXPECT_EQ(failure_.code(), StatusCode::kUnavailable);
  EXPECT_THAT(failure_.message(), HasSubstr("exited with code 0 and nobody has given a reward"));
  EXPECT_THAT(failure_.message(), HasSubstr("reward: 1"));

  // Another API than ours, or a request that cannot be: it says which.
  const std::string ask = R"(
import json, os, urllib.request, urllib.error
def ask(path, body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)
    except urllib.error.HTTPError:
        pass
)";
  told(ask + "ask('/responses', {})");
  EXPECT_THAT(failure_.message(), HasSubstr("refused: POST /v1/responses got 404"));
  told(ask + "ask('/chat/completions', {'messages': [], 'n': 2})");
  EXPECT_THAT(failure_.message(), HasSubstr("POST /v1/chat/completions got 400, \"'messages'"));
}

}  // namespace
}  // namespace forebay::rollout::serving
