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

class HarnessTest : public RecordingProxyTest {
 protected:
  Trajectory Play(const std::string& end, Duration deadline = std::chrono::seconds(60),
                  std::function<bool()> abort = nullptr) {
    HarnessOptions options{
        .command = {"python3", "-c", kHarness + end},
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
  EXPECT_EQ(
      Play("import time; time.sleep(300)", std::chrono::seconds(60), [] { return true; }).outcome,
      Outcome::kAborted);
  EXPECT_EQ(proxy_->open(), 0);
}

}  // namespace
}  // namespace forebay::rollout::serving
