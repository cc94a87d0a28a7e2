// Episodes on an OpenEnv server, and servers that misbehave.
#include "forebay/env/openenv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/more_time_testing.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/json_work_testing.h"
#include "forebay/env/openenv/messages.h"
#include "forebay/env/openenv_testing.h"
#include "forebay/env/subprocess/process.h"
#include "forebay/env/subprocess_testing.h"
#include "forebay/env/tools_testing.h"

namespace forebay::env {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OpenEnvTest : public ::testing::Test {
 public:
  void TearDown() override {
    environment_.reset();
    if (pool_) {
      RunToEnd(*loop_, [](OpenEnvTest* t) -> Task<void> {
        Task<void> ending = t->pool_->Shutdown(t->Soon(seconds(5)));
        co_await std::move(ending);
      }(this));
    }
    pool_.reset();
    server_.reset();
    EXPECT_EQ(Children(), 0);
  }

  void Serve(int sessions_max = 8) {
    const std::string port_file = folder_.path() + "/port";
    auto server = ChildProcess::Start({.command = {"python3", WriteOpenEnvServer(folder_),
                                                   port_file, std::to_string(sessions_max)}});
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    for (int i = 0; i < 60'000 && !std::filesystem::exists(port_file); ++i) usleep(1000);
    std::string port;
    std::ifstream(port_file) >> port;
    url_ = "http://127.0.0.1:" + port;
  }

  void Open(OpenEnvOptions options = {}, int sessions_max = 8) {
    if (!server_) Serve(sessions_max);
    options.url = url_;
    auto pool = MakeOpenEnvPool(*loop_, std::move(options));
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    pool_ = std::move(*pool);
    environment_ = Episode();
  }

  std::unique_ptr<Environment> Episode(Duration deadline = seconds(60)) {
    auto place = Await(*loop_, pool_->Acquire(Soon(deadline)));
    EXPECT_TRUE(place.ok()) << place.status().ToString();
    return place.ok() ? std::move(*place) : nullptr;
  }
  Result<std::vector<Message>> Reset(Environment& environment, ResetRequest request = {},
                                     Duration deadline = seconds(60)) {
    return Await(*loop_, environment.Reset(std::move(request), Soon(deadline)));
  }
  Result<StepResult> Step(std::string action, Duration deadline = seconds(60)) {
    return Await(*loop_, environment_->Step(std::move(action), Soon(deadline)));
  }
  TimePoint Soon(Duration d = seconds(60)) const { return loop_->Now() + d; }

  TempFolder folder_;
  std::unique_ptr<Loop> loop_ = MakeLoop();
  std::unique_ptr<ChildProcess> server_;
  std::string url_;
  std::unique_ptr<EnvironmentPool> pool_;
  std::unique_ptr<Environment> environment_;
};

TEST_F(OpenEnvTest, AnEpisodeIsPlayed) {
  Open({.system = "Be brief."});
  const auto first = Reset(*environment_);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  ASSERT_THAT(*first, SizeIs(2));
  EXPECT_EQ((*first)[0], (Message{"system", "Be brief."}));
  EXPECT_THAT((*first)[1].content, HasSubstr("seed"));
  auto step = Step("hello \xff");
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_THAT(step->messages, ElementsAre(Message{"user", "saw hello \xef\xbf\xbd"}));
  EXPECT_EQ(step->rewards.at("reward"), 0.5);
  EXPECT_FALSE(step->done);
  step = Step("right");
  EXPECT_EQ(step->rewards.at("reward"), 1);
  EXPECT_TRUE(step->done);
}

TEST_F(OpenEnvTest, L8_TheLoopGoesOnWhileALongAnswerOrActionIsReadAndWritten) {
  constexpr size_t kBytes = 30'000'000;
  HeldWorkers reads, writes;
  for (HeldWorkers* held : {&reads, &writes}) {
    Open({.message_bytes_max = size_t{64} << 20, .workers = held->pool()});
    ASSERT_TRUE(Reset(*environment_).ok());
    const bool reading = held == &reads;
    // The small server takes a while for each byte that it is sent.
    std::string action = reading ? "long " + std::to_string(kBytes) : std::string(200'000, 'y');
    const std::string seen = reading ? std::string(kBytes, 'x') : "saw " + action;
    const Result<StepResult> step =
        AwaitHeld(*loop_, *held, environment_->Step(std::move(action), Soon()));
    ASSERT_TRUE(step.ok()) << step.status().ToString();
    EXPECT_TRUE(step->messages.at(0).content == seen);
    environment_.reset();
  }
}

TEST_F(OpenEnvTest, ObservationsBecomeText) {
  Open();
  ASSERT_TRUE(Reset(*environment_).ok());
  EXPECT_EQ(Step("two")->messages[0].content, R"({"a":1,"b":"x"})");
  EXPECT_EQ(Step("two")->rewards.at("reward"), 1);  // true
  EXPECT_EQ(Step("null")->messages[0].content, "x");
  EXPECT_THAT(Step("null")->rewards, IsEmpty());
}

TEST_F(OpenEnvTest, SamplesOfATaskPlayTheSameEpisode) {
  Open({.reset = R"({"seed": "$seed", "own": "$episode_seed", "list": ["$task", {"in": "$split"}],
                     "episode_id": "$episode", "other": "$x"})"});
  const auto told = [this](int64_t task, uint64_t seed, const std::string& split) {
    const auto first = Reset(*Episode(), {.task_id = task, .split = split, .seed = seed});
    EXPECT_TRUE(first.ok()) << first.status().ToString();
    return nlohmann::json::parse((*first)[0].content);
  };
  const auto a = told(7, 1, "train"), b = told(7, ~uint64_t{0}, "train");
  const auto c = told(8, 1, "train"), d = told(7, 1, "eval");
  EXPECT_EQ(a["seed"], b["seed"]);
  EXPECT_NE(a["seed"], c["seed"]);
  EXPECT_NE(a["seed"], d["seed"]);
  EXPECT_NE(a["own"], b["own"]);
  EXPECT_LT(b["own"].get<int64_t>(), int64_t{1} << 31);
  EXPECT_EQ(a["list"].dump(), R"([7,{"in":"train"}])");
  EXPECT_EQ(a["episode_id"], "train-7-1");
  EXPECT_EQ(a["other"], "$x");
}

TEST_F(OpenEnvTest, TheModelMayHaveToWriteTheActionItself) {
  Open({.action = ""});
  ASSERT_TRUE(Reset(*environment_).ok());
  EXPECT_EQ(Step(R"( {"x": 1} )")->messages[0].content, R"({"x": 1})");
  EXPECT_EQ(Step("```json\n{\"x\": 2}\n```")->messages[0].content, R"({"x": 2})");
  for (const std::string wrong :
       {"", "hello", "[1]", "{\"x\": 1} and more", "```json\n```", "``````"}) {
    const auto step = Step(wrong);
    EXPECT_THAT(step->messages[0].content, HasSubstr("one JSON object")) << wrong;
    EXPECT_FALSE(step->done);
  }
  EXPECT_THAT(Step("{\"x\": " + std::string(100'000, '['))->messages[0].content,
              HasSubstr("one JSON object"));
}

TEST_F(OpenEnvTest, AnInvalidActionIsToldToTheModel) {
  Open();
  ASSERT_TRUE(Reset(*environment_).ok());
  const auto step = Step("invalid");
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_EQ(step->messages[0].content, R"(error: Invalid message: [{"loc":["message"]}])");
  EXPECT_TRUE(Step("right")->done);
}

TEST_F(OpenEnvTest, B2_FaultsOfTheServerAreTyped) {
  const std::vector<std::pair<std::string, StatusCode>> cases = {
      {"raise", StatusCode::kInternal},  {"garbage", StatusCode::kDataLoss},
      {"odd", StatusCode::kDataLoss},    {"rich", StatusCode::kDataLoss},
      {"cut", StatusCode::kUnavailable}, {"flood", StatusCode::kResourceExhausted}};
  for (const auto& [action, code] : cases) {
    Open();
    ASSERT_TRUE(Reset(*environment_).ok());
    const auto step = Step(action);
    EXPECT_EQ(step.status().code(), code) << action << ": " << step.status().ToString();
  }
  Open();
  ASSERT_TRUE(Reset(*environment_).ok());
  EXPECT_THAT(Step("raise").status().message(), HasSubstr("it broke"));
  EXPECT_EQ(Step("hang", milliseconds(50)).status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(OpenEnvTest, AFieldThatIsNotThereIsTheServersFault) {
  Open({.observation = "text"});
  ASSERT_TRUE(Reset(*environment_).ok());
  EXPECT_EQ(Step("x")->messages[0].content, "saw x");
  const auto none = Step("two");
  EXPECT_EQ(none.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(none.status().message(), HasSubstr("without 'text'"));
  Open({.reset = R"({"bad": true})"});
  const auto refused = Reset(*environment_);
  EXPECT_EQ(refused.status().code(), StatusCode::kInternal);
  EXPECT_THAT(refused.status().message(), HasSubstr("refuses the reset"));
}

TEST_F(OpenEnvTest, SessionsAreOursToLimitAndTheServers) {
  Open({.sessions_max = 1});
  ASSERT_TRUE(Reset(*environment_).ok());
  EXPECT_EQ(Await(*loop_, pool_->Acquire(Soon(milliseconds(20)))).status().code(),
            StatusCode::kDeadlineExceeded);
  environment_.reset();
  environment_ = Episode();  // once the first has said goodbye
  ASSERT_TRUE(Reset(*environment_).ok());
  EXPECT_EQ(Step("closes")->messages[0].content, "1");
}

TEST_F(OpenEnvTest, AFullServerIsAskedAgain) {
  Open({}, /*sessions_max=*/1);
  ASSERT_TRUE(Reset(*environment_).ok());
  EXPECT_TRUE(WithMoreTime(milliseconds(300), [&](Duration within) {
    const auto full = Reset(*Episode(), {}, within);
    EXPECT_EQ(full.status().code(), StatusCode::kDeadlineExceeded);
    return full.status().message().find("sessions_max") != std::string::npos;
  }));
  auto other = Episode();
  loop_->RunAt(Soon(milliseconds(300)), [this] { environment_.reset(); });
  EXPECT_TRUE(Reset(*other).ok());
}

TEST_F(OpenEnvTest, NobodyThereAndNotLetIn) {
  Serve();
  const std::string url = url_;
  url_ = "http://127.0.0.1:1";
  Open();
  EXPECT_EQ(Reset(*environment_).status().code(), StatusCode::kUnavailable);
  url_ = url;
  Open({.bearer = "wrong"});
  const auto refused = Reset(*environment_);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.status().message(), HasSubstr("403"));
  Open({.bearer = "sesame"});
  EXPECT_TRUE(Reset(*environment_).ok());
  EXPECT_EQ(Await(*loop_, Episode()->Step("x", Soon())).status().code(), StatusCode::kInternal);
}

TEST_F(OpenEnvTest, W3_NoDescriptorIsLeft) {
  Open();
  ASSERT_TRUE(Reset(*environment_).ok());
  const int before = OpenDescriptors();
  for (int i = 0; i < 5; ++i) {
    environment_ = Episode();
    ASSERT_TRUE(Reset(*environment_).ok());
    EXPECT_EQ(Step("hang", milliseconds(10)).status().code(), StatusCode::kDeadlineExceeded);
  }
  environment_ = Episode();
  ASSERT_TRUE(Reset(*environment_).ok());
  // What hangs is not waited for for ever.
  RunToEnd(*loop_, [](OpenEnvTest* t, int wanted) -> Task<void> {
    for (int i = 0; i < 6000 && OpenDescriptors() > wanted; ++i) {
      co_await t->loop_->SleepUntil(t->Soon(milliseconds(10)));
    }
  }(this, before));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(OpenEnvOptionsTest, WrongOptionsAreNamed) {
  auto loop = MakeLoop();
  const std::vector<std::pair<OpenEnvOptions, std::string>> cases = {
      {{}, "url"},
      {{.url = "localhost:8000"}, "url"},
      {{.url = "http://x", .action = "[]"}, "'action'"},
      {{.url = "http://x", .reset = "{"}, "'reset'"},
      {{.url = "http://x", .sessions_max = 0}, "sessions_max"},
      {{.url = "http://x", .message_bytes_max = 1}, "message_bytes_max"}};
  for (const auto& [options, name] : cases) {
    const auto pool = MakeOpenEnvPool(*loop, options);
    EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(pool.status().message(), HasSubstr(name));
  }
}

TEST(OpenEnvMessagesTest, WhatIsNoAnswerIsRefused) {
  for (const std::string text :
       {"", "1", "[]", "{}", R"({"type": "observation"})", R"({"type": "observation", "data": []})",
        R"({"type": "state", "data": {"observation": {}}})",
        R"({"type": 7, "data": {"observation": {}}})"}) {
    EXPECT_EQ(openenv::ParseAnswer(text, "").status().code(), StatusCode::kDataLoss) << text;
  }
  const std::string deep = R"({"type": "observation", "data": {"observation": {"x": )" +
                           std::string(100'000, '[') + std::string(100'000, ']') + "}}}";
  EXPECT_EQ(openenv::ParseAnswer(deep, "").status().code(), StatusCode::kDataLoss);
  const auto error = openenv::ParseAnswer(R"({"type": "error", "data": {}})", "");
  EXPECT_EQ(error.status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace forebay::env
