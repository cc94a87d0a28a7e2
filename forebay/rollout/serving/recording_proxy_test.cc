// Goal: what a harness does over HTTP becomes a trajectory token for token: what the engine saw and
// sampled, one branch as long as history is only added to, another one where it is rewritten, and
// never a token that nobody sampled.
#include "forebay/rollout/recording_proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/rollout/serving/recording_proxy_testing.h"
#include "forebay/rollout/serving/serving_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout::serving {
namespace {

using ::testing::HasSubstr;

TEST_F(RecordingProxyTest, AConversationIsOneBranch) {
  bench_.engine->say = [n = 0](const GenerateRequest&) mutable {
    return "answer " + std::to_string(++n);
  };
  Open({.temperature = 0.7});
  std::vector<Json> messages = {Message("user", "one")};
  messages.push_back(Ask(messages, {{"temperature", 0}, {"top_p", 0.5}}));
  messages.push_back(Message("user", "two"));
  messages.push_back(Ask(messages));
  EXPECT_EQ(messages.back()["content"], "answer 2");
  EXPECT_EQ(PostReward(0.5).status, 200);
  const Trajectory t = Close();
  EXPECT_EQ(t.outcome, Outcome::kDone);
  EXPECT_EQ(t.reward(), 0.5);
  EXPECT_EQ(t.id.trajectory_id, 7);
  EXPECT_EQ(t.environment, "harness");
  EXPECT_EQ(t.temperature, 0.7);
  // Exactly what the engine saw, and what it said.
  ASSERT_EQ(bench_.engine->requests.size(), 2U);
  EXPECT_EQ(bench_.engine->requests[0].temperature, 0.7);  // not the harness's
  EXPECT_EQ(bench_.engine->requests[0].top_p, 1);
  EXPECT_EQ(bench_.engine->requests[0].priority, 2);
  std::vector<int32_t> seen = bench_.engine->requests[1].prompt;
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), t.tokens.begin()));
  EXPECT_EQ(Branches(t).size(), 1U);
  EXPECT_EQ(Text(t),
            "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nanswer 1<|im_end|>\n"
            "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nanswer 2<|im_end|>");
  EXPECT_EQ(Sampled(t), "answer 1<|im_end|>|answer 2<|im_end|>|");
  EXPECT_EQ(t.versions, (std::vector<VersionRun>{{3, 18}}));
  EXPECT_EQ(proxy_->open(), 0);
}

// The engine says something that its own text does not tokenize to.
TEST_F(RecordingProxyTest, T1_SampledTokensStayAsTheyWereSampledAndAMismatchForks) {
  // One token a byte: only a special token can be written in two ways, as itself and as its
  // letters.
  const std::vector<int32_t> letters = {
      '<', '|', 'i', 'm', '_', 's', 't', 'a', 'r', 't', '|', '>', weights::kTinyEnd};
  bench_.engine->say_tokens = [&](const GenerateRequest&) { return letters; };
  Open();
  std::vector<Json> messages = {Message("user", "go")};
  messages.push_back(Ask(messages));
  EXPECT_EQ(messages.back()["content"], "<|im_start|>");
  EXPECT_NE(bench_.tokenizer->Encode("<|im_start|>").value().size(), 12U);  // would change
  messages.push_back(Message("user", "more"));
  Ask(messages);
  PostReward(1);
  Trajectory t = Close();
  ASSERT_EQ(Branches(t).size(), 1U);
  const std::vector<int32_t>& second = bench_.engine->requests[1].prompt;
  const size_t first = bench_.engine->requests[0].prompt.size();
  EXPECT_EQ(std::vector<int32_t>(second.begin() + static_cast<int64_t>(first),
                                 second.begin() + static_cast<int64_t>(first) + 13),
            letters);

  // The same conversation with the answer changed by one letter: another branch, all of it given.
  bench_.engine->requests.clear();
  Open();
  messages = {Message("user", "go")};
  messages.push_back(Ask(messages));
  messages.back()["content"] = "<|im_start|>!";
  messages.push_back(Message("user", "more"));
  Ask(messages);
  PostReward(1);
  t = Close();
  ASSERT_EQ(Branches(t).size(), 2U);
  const auto [begin, end] = Branches(t)[1];
  const std::vector<int32_t>& seen = bench_.engine->requests[1].prompt;
  EXPECT_EQ(std::vector<int32_t>(t.tokens.begin() + static_cast<int64_t>(begin),
                                 t.tokens.begin() + static_cast<int64_t>(begin + seen.size())),
            seen);
  for (size_t i = begin; i < begin + seen.size(); ++i) EXPECT_EQ(t.loss_mask[i], 0);
  EXPECT_EQ(t.loss_tokens(), 26);
}

TEST_F(RecordingProxyTest, ABranchRepeatsWhatItSharesWithoutTrainingOnItTwice) {
  bench_.engine->say = [n = 0](const GenerateRequest&) mutable {
    return "a" + std::to_string(++n);
  };
  Open();
  std::vector<Json> messages = {Message("user", "x")};
  messages.push_back(Ask(messages));
  std::vector<Json> other = messages;
  messages.push_back(Message("user", "left"));
  Ask(messages);
  other.push_back(Message("user", "right"));
  Ask(other);
  PostReward(1);
  const Trajectory t = Close();
  const auto branches = Branches(t);
  ASSERT_EQ(branches.size(), 2U);
  EXPECT_EQ(Sampled(t), "a1<|im_end|>|a2<|im_end|>|a3<|im_end|>|");
  EXPECT_EQ(t.loss_tokens(), 9);
  EXPECT_THAT(Text(t, branches[0].begin, branches[0].end), HasSubstr("left"));
  const std::string right = Text(t, branches[1].begin, branches[1].end);
  EXPECT_THAT(right, HasSubstr("a1<|im_end|>\n<|im_start|>user\nright"));
  // What each call was sampled after stands right before it in its branch.
  const std::vector<int32_t>& seen = bench_.engine->requests[2].prompt;
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(),
                         t.tokens.begin() + static_cast<int64_t>(branches[1].begin)));
}

TEST_F(RecordingProxyTest, SeveralChoicesAreBranchesAndOneOfThemGoesOn) {
  bench_.engine->say = [n = 0](const GenerateRequest&) mutable {
    return "c" + std::to_string(++n);
  };
  Open();
  const HttpResponse response =
      bench_.Post(kChat, {{"messages", {Message("user", "x")}}, {"n", 3}});
  const Json body = Parsed(response);
  ASSERT_EQ(body["choices"].size(), 3U);
  Ask({Message("user", "x"), body["choices"][1]["message"], Message("user", "y")});
  PostReward(1);
  const Trajectory t = Close();
  EXPECT_EQ(Branches(t).size(), 3U);
  EXPECT_EQ(t.loss_tokens(), 12);
  EXPECT_THAT(Text(t), HasSubstr("c2<|im_end|>\n<|im_start|>user\ny<|im_end|>\n"
                                 "<|im_start|>assistant\nc4<|im_end|>"));
}

TEST_F(RecordingProxyTest, ToolCallsAreQuotedInManyWays) {
  const std::string call = R"(<tool_call>{"arguments": {"b": 1, "a": 2}, "name": "f"}</tool_call>)";
  bench_.engine->say = [&](const GenerateRequest&) {
    return bench_.engine->requests.size() == 1 ? call : std::string("done");
  };
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  Open();
  std::vector<Json> messages = {Message("user", "x")};
  Json answer = Ask(messages, {{"tools", tools}});
  ASSERT_EQ(answer["tool_calls"].size(), 1U);
  EXPECT_TRUE(answer["content"].is_null());
  // As a client dumps it: other order of keys, more fields, no content.
  Json quoted = {{"refusal", nullptr}, {"role", "assistant"}, {"content", ""}};
  quoted["tool_calls"] = {{{"type", "function"},
                           {"id", answer["tool_calls"][0]["id"]},
                           {"function", {{"arguments", R"({"a":2,"b":1})"}, {"name", "f"}}}}};
  messages.push_back(quoted);
  messages.push_back(
      {{"role", "tool"}, {"tool_call_id", answer["tool_calls"][0]["id"]}, {"content", "42"}});
  Ask(messages, {{"tools", tools}});
  PostReward(1);
  const Trajectory t = Close();
  EXPECT_EQ(Branches(t).size(), 1U);
  EXPECT_EQ(Sampled(t), call + "<|im_end|>|done<|im_end|>|");
}

TEST_F(RecordingProxyTest, TextsAndTokensGoOnWhereTheyBeginWithWhatWasRecorded) {
  bench_.engine->say = [](const GenerateRequest&) { return "said STOP"; };
  Open();
  const auto complete = [&](const Json& prompt) {
    const HttpResponse response =
        bench_.Post("/v1/completions", {{"prompt", prompt}, {"stop", "STOP"}, {"max_tokens", 100}});
    EXPECT_EQ(response.status, 200) << response.body;
  };
  complete("Q: x\nA: ");
  complete("Q: x\nA: said STOP\nQ: y\nA: ");  // with the stop string: goes on
  complete("Q: x\nA: said \nQ: z\nA: ");      // without: what was sampled is not what follows
  PostReward(1);
  Trajectory t = Close();
  ASSERT_EQ(Branches(t).size(), 2U);
  EXPECT_EQ(Text(t, Branches(t)[0].begin, Branches(t)[0].end),
            "Q: x\nA: said STOP\nQ: y\nA: said STOP");
  EXPECT_EQ(t.loss_tokens(), 27);

  bench_.engine->say = [](const GenerateRequest&) { return "ok"; };
  Open();
  const auto generate = [&](const std::vector<int32_t>& ids) {
    const HttpResponse response = bench_.Post("/inference/v1/generate", {{"token_ids", ids}});
    EXPECT_EQ(response.status, 200) << response.body;
  };
  generate({1, 2});
  generate({1, 2, 'o', 'k', weights::kTinyEnd, 9});
  generate({1, 2, 'o', 'k', 9});
  PostReward(1);
  t = Close();
  ASSERT_EQ(Branches(t).size(), 2U);
  EXPECT_EQ(t.tokens, (std::vector<int32_t>{1, 2, 'o', 'k', 258, 9, 'o', 'k', 258,  //
                                            1, 2, 'o', 'k', 9, 'o', 'k', 258}));
  EXPECT_EQ(t.loss_mask, (std::vector<uint8_t>{0, 0, 1, 1, 1, 0, 1, 1, 1,  //
                                               0, 0, 0, 0, 0, 1, 1, 1}));
}

// Upstream, behaviour logprobs and environment turns were dropped on this path.
TEST_F(RecordingProxyTest, T7_ARecordedEpisodeEqualsTheOneThatAnActorPlays) {
  const auto say = [](const GenerateRequest& request) {
    return request.prompt.size() < 40 ? "first" : "second";
  };
  // The actor's: an environment that says the same as the harness.
  std::unique_ptr<Loop> loop = MakeVirtualLoop();
  SayingEngine engine(*loop, *bench_.tokenizer);
  engine.say = say;
  EnvironmentScript script;
  script.reset = [](const env::ResetRequest&) {
    return std::vector<env::Message>{{.role = "user", .content = "one"}};
  };
  script.step = [](const std::string& action) {
    env::StepResult step;
    if (action == "first") step.messages = {{.role = "user", .content = "two"}};
    step.done = action != "first";
    if (step.done) step.rewards["reward"] = 0.25;
    return step;
  };
  ScriptedPool pool(*loop, &script);
  const Assignment assignment{.id = {.trajectory_id = 7, .group_id = 2, .member = 1}, .seed = 5};
  std::optional<Trajectory> actor;
  const auto play = [&]() -> Task<void> {
    EpisodeOptions options{.environment = "harness", .stop_tokens = {weights::kTinyEnd}};
    Task<Trajectory> playing = RunEpisode(*loop, engine, pool, *bench_.tokenizer, *bench_.chat,
                                          options, assignment, nullptr);
    actor = co_await std::move(playing);
  };
  loop->Spawn(play());
  loop->Run();
  ASSERT_TRUE(actor.has_value());
  ASSERT_EQ(actor->outcome, Outcome::kDone);

  bench_.engine->say = say;
  Open();
  std::vector<Json> messages = {Message("user", "one")};
  messages.push_back(Ask(messages));
  messages.push_back(Message("user", "two"));
  Ask(messages);
  PostReward(0.25);
  Trajectory recorded = Close();
  // Apart from clocks: who waited how long for what.
  for (Trajectory* t : {&*actor, &recorded}) {
    t->started_us = t->ended_us = 0;
    for (Turn& turn : t->turns) turn.spans = {};
  }
  EXPECT_EQ(Encode(recorded), Encode(*actor));
  EXPECT_NE(recorded.rollout_logprobs.back(), 0);
}

TEST_F(RecordingProxyTest, B4_AnEpisodeWithoutATraceIsAFailureWithoutTokens) {
  Open();
  PostReward(1);
  Trajectory t = Close();
  EXPECT_EQ(t.outcome, Outcome::kEnvError);
  EXPECT_TRUE(t.tokens.empty());
  EXPECT_THAT(reason_.message(), HasSubstr("OPENAI_BASE_URL"));
  // It asked, and what it asked was refused.
  Open();
  EXPECT_EQ(bench_.Post(kChat, Json::object()).status, 400);
  PostReward(1);
  t = Close();
  EXPECT_EQ(t.outcome, Outcome::kEnvError);
  EXPECT_TRUE(t.tokens.empty());
  // It asked, and the engine failed: not the harness's fault, and no token either.
  Open();
  bench_.engine->fails = Unavailable("the device is gone");
  EXPECT_EQ(bench_.Post(kChat, {{"messages", {Message("user", "x")}}}).status, 503);
  PostReward(1);
  t = Close();
  EXPECT_EQ(t.outcome, Outcome::kEngineError);
  EXPECT_TRUE(t.tokens.empty());
  EXPECT_FALSE(Trains(t.outcome));
}

TEST_F(RecordingProxyTest, B2_AnEpisodeWithoutARewardIsNotARewardOfZero) {
  Open();
  Ask({Message("user", "x")});
  Trajectory t = Close();
  EXPECT_EQ(t.outcome, Outcome::kGraderError);
  EXPECT_FALSE(Trains(t.outcome));
  EXPECT_THAT(reason_.message(), HasSubstr("reward"));
  Open();
  Ask({Message("user", "x")});
  t = Close({.outcome = Outcome::kEnvTimeout, .reason = DeadlineExceeded("late")});
  EXPECT_EQ(t.outcome, Outcome::kEnvTimeout);
  EXPECT_EQ(reason_.message(), "late");
  // A grader's.
  Open();
  Ask({Message("user", "x")});
  t = Close({.rewards = {{"grade", 0}}});
  EXPECT_EQ(t.outcome, Outcome::kDone);
  EXPECT_EQ(t.rewards, (std::map<std::string, double>{{"grade", 0}}));
}

TEST_F(RecordingProxyTest, RewardsAreCheckedAndBelongToTheirEpisode) {
  Open();
  const auto post = [&](const std::string& target, const std::string& body) {
    return bench_.Send("POST", target, body).status;
  };
  for (const char* body : {"", "{}", "1", "{\"reward\": \"1\"}", "{\"reward\": 1e30}",
                           "{\"rewards\": {}}", "{\"rewards\": [1]}", "{\"rewards\": {\"\": 1}}",
                           "{\"reward\": null}", "{\"reward\": true}", "{\"reward\": 1e999}"}) {
    EXPECT_EQ(post("/v1/episodes/7/reward", body), 400) << body;
  }
  EXPECT_EQ(post("/v1/episodes/8/reward", "{\"reward\": 1}"), 403);
  EXPECT_EQ(post("/v1/episodes/7/other", "{\"reward\": 1}"), 404);
  EXPECT_EQ(post("/v1/episodes/self/reward", "{\"rewards\": {\"a\": 1, \"b\": -0.5}}"), 200);
  EXPECT_EQ(post("/v1/episodes/7/reward", "{\"rewards\": {\"b\": 2}}"), 200);
  bench_.key = "fb-7-guess";
  EXPECT_EQ(post("/v1/episodes/7/reward", "{\"reward\": 9}"), 401);
  EXPECT_EQ(bench_.Post(kChat, {{"messages", {Message("user", "x")}}}).status, 401);
  bench_.key = access_.api_key;
  EXPECT_EQ(Close().rewards, (std::map<std::string, double>{{"a", 1}, {"b", 2}}));
  EXPECT_EQ(post("/v1/episodes/7/reward", "{\"reward\": 9}"), 401);  // it has ended
}

TEST_F(RecordingProxyTest, WhatTrainingCannotFollowIsRefused) {
  Open();
  for (const Json& more : {Json{{"logit_bias", {{"65", 1}}}}, Json{{"frequency_penalty", 0.5}},
                           Json{{"presence_penalty", 1}}, Json{{"repetition_penalty", 1.1}}}) {
    Json body = {{"messages", {Message("user", "x")}}};
    body.update(more);
    const HttpResponse response = bench_.Post(kChat, body);
    EXPECT_EQ(response.status, 400);
    EXPECT_THAT(response.body, HasSubstr("training"));
  }
  Close();
}

TEST_F(RecordingProxyTest, AnEpisodesBudgetEndsIt) {
  Open({.calls_max = 2});
  Ask({Message("user", "x")});
  Ask({Message("user", "y")});
  HttpResponse response = bench_.Post(kChat, {{"messages", {Message("user", "z")}}});
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Parsed(response)["error"]["code"], "episode_over");
  PostReward(0);
  EXPECT_EQ(Close().outcome, Outcome::kTruncatedTurns);

  Open({.tokens_max = 60});
  Ask({Message("user", "x")});
  response = bench_.Post(kChat, {{"messages", {Message("user", "and something longer")}}});
  EXPECT_EQ(Parsed(response)["error"]["code"], "episode_over");
  const Trajectory t = Close();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTokens);
  EXPECT_EQ(t.loss_tokens(), 7);
}

// However much a call asks for, the branches of an episode stay within its tokens.
TEST_F(RecordingProxyTest, AnAnswerHasWhatIsLeftOfTheEpisodesTokens) {
  bench_.engine->say = [](const GenerateRequest& request) {
    return std::string(static_cast<size_t>(request.new_tokens_max), 'x');
  };
  constexpr int64_t kTokensMax = 200;
  Open({.new_tokens_per_call_max = 1000, .tokens_max = kTokensMax});
  const std::vector<Json> messages = {Message("user", "x")};
  const HttpResponse four = bench_.Post(kChat, {{"messages", messages}, {"n", 4}});
  EXPECT_EQ(four.status, 200) << four.body;
  const auto prompt = static_cast<int64_t>(bench_.engine->requests[0].prompt.size());
  EXPECT_EQ(bench_.engine->requests[0].new_tokens_max, (kTokensMax - 4 * prompt) / 4);
  EXPECT_EQ(bench_.Post(kChat, {{"messages", messages}}).status, 400);
  PostReward(1);
  Trajectory t = Close();
  EXPECT_EQ(t.outcome, Outcome::kTruncatedTokens);
  EXPECT_LE(static_cast<int64_t>(t.tokens.size()), kTokensMax);

  // A conversation that goes on counts each token once; what failed gives back what it had.
  bench_.engine->say = [](const GenerateRequest&) { return std::string(20, 'y'); };
  bench_.engine->requests.clear();
  Open({.new_tokens_per_call_max = 30, .tokens_max = kTokensMax});
  bench_.engine->fails = ResourceExhausted("full");
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(bench_.Post(kChat, {{"messages", messages}}).status, 429);
  }
  bench_.engine->fails = OkStatus();
  std::vector<Json> conversation = messages;
  for (int i = 0; i < 3; ++i) {
    conversation.push_back(Ask(conversation));
    conversation.push_back(Message("user", "x"));
  }
  EXPECT_EQ(bench_.engine->requests.back().new_tokens_max, 30);
  PostReward(1);
  t = Close();
  EXPECT_EQ(t.outcome, Outcome::kDone);
  EXPECT_EQ(t.loss_tokens(), 3 * 21);
}

// The harness's own time is the environment's, named by the tool that was asked for.
TEST_F(RecordingProxyTest, TheTimeBetweenCallsIsTheTools) {
  bench_.engine->say = [&](const GenerateRequest&) {
    return bench_.engine->requests.size() == 1 ? R"({"name": "f", "arguments": {}})"
                                               : R"({"name": "made_up", "arguments": {}})";
  };
  const auto wait = [&](int ms) {
    const TimePoint until = Now() + std::chrono::milliseconds(ms);
    bench_.Until([&] { return Now() >= until; });
  };
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  Open();
  wait(2);  // before its first call: nobody's
  std::vector<Json> messages = {Message("user", "x")};
  messages.push_back(Ask(messages, {{"tools", tools}}));
  ASSERT_EQ(messages.back()["tool_calls"].size(), 1U) << messages.back();
  messages.push_back({{"role", "tool"}, {"content", "a long result: 42"}});
  wait(5);
  Ask(messages, {{"tools", tools}});
  wait(7);
  PostReward(1);
  const Trajectory t = Close();
  std::vector<Turn> actions;
  for (const Turn& turn : t.turns) {
    if (turn.kind == TurnKind::kAction) actions.push_back(turn);
  }
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(actions[0].tool, "f");
  EXPECT_GE(actions[0].spans.environment_us, 5000);
  EXPECT_EQ(actions[1].tool, "");  // declared by nobody
  EXPECT_GE(actions[1].spans.environment_us, 7000);
  EXPECT_LE(actions[0].spans.environment_us + actions[1].spans.environment_us,
            t.ended_us - t.started_us);
}

TEST_F(RecordingProxyTest, CallsAtOnceAreAllRecorded) {
  bench_.engine->say = [](const GenerateRequest& request) {
    return std::string(1 + request.prompt.size() % 7, 'x');
  };
  Open({.calls_max = 64});
  constexpr int kCalls = 24;
  int answered = 0;
  const auto ask = [&](int i) -> Task<void> {
    Json body = {{"messages", {Message("user", std::string(static_cast<size_t>(i), 'y'))}}};
    if (i % 2 == 0) body["stream"] = true;
    HttpCall call{.request = {.method = "POST", .url = bench_.base + kChat, .body = body.dump()},
                  .deadline = Now() + std::chrono::seconds(120)};
    call.request.headers.Set("Authorization", "Bearer " + access_.api_key);
    Task<Result<HttpResponse>> sending = bench_.client->Send(std::move(call));
    const Result<HttpResponse> response = co_await std::move(sending);
    EXPECT_TRUE(response.ok() && response->status == 200);
    ++answered;
  };
  for (int i = 0; i < kCalls; ++i) bench_.loop->Spawn(ask(i));
  bench_.Until([&] { return answered == kCalls; });
  PostReward(1);
  const Trajectory t = Close();
  EXPECT_EQ(t.outcome, Outcome::kDone) << reason_.ToString();
  EXPECT_EQ(Branches(t).size(), static_cast<size_t>(kCalls));
  int64_t sampled = 0;
  for (const GenerateRequest& request : bench_.engine->requests) {
    sampled += 2 + static_cast<int64_t>(request.prompt.size()) % 7;
  }
  EXPECT_EQ(t.loss_tokens(), sampled);
}

TEST_F(RecordingProxyTest, ClosingAnEpisodeCancelsItsCalls) {
  Open();
  bench_.engine->hangs = true;
  HttpCall call{.request = {.method = "POST",
                            .url = bench_.base + kChat,
                            .body = Json({{"messages", {Message("user", "x")}}}).dump()},
                .deadline = Now() + std::chrono::seconds(120)};
  call.request.headers.Set("Authorization", "Bearer " + access_.api_key);
  int status = 0;
  const auto ask = [&]() -> Task<void> {
    Task<Result<HttpResponse>> sending = bench_.client->Send(call);
    const Result<HttpResponse> response = co_await std::move(sending);
    status = response.ok() ? response->status : -1;
  };
  bench_.loop->Spawn(ask());
  bench_.Until([&] { return bench_.engine->requests.size() == 1; });
  const Trajectory t = Close({.outcome = Outcome::kAborted, .reason = Cancelled("enough")});
  EXPECT_EQ(t.outcome, Outcome::kAborted);
  bench_.Until([&] { return status != 0 && bench_.engine->cancelled == 1; });
  EXPECT_EQ(status, 503);
}

}  // namespace
}  // namespace forebay::rollout::serving
