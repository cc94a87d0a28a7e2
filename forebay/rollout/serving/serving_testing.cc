#include "forebay/rollout/serving/serving_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/sse.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout::serving {

uint64_t SayingEngine::Generate(GenerateRequest request,
                                std::function<void(Result<GenerateResult>)> done) {
  const uint64_t id = next_++;
  requests.push_back(request);
  Running& running = running_[id];
  if (say_tokens) {
    running.tokens = say_tokens(request);
  } else {
    running.tokens = tokenizer_.Encode(say(request)).value();
    running.tokens.push_back(weights::kTinyEnd);
  }
  running.request = std::move(request);
  running.done = std::move(done);
  running.result.prompt_tokens_reused = 2;
  loop_.Post([this, id] { Step(id); });
  return id;
}

void SayingEngine::Step(uint64_t id) {
  const auto it = running_.find(id);
  if (it == running_.end() || hangs) return;
  Running& r = it->second;
  const auto i = static_cast<int64_t>(r.result.tokens.size());
  if (i >= hangs_after) return;
  if (!fails.ok() && i >= fails_after) return End(id, fails);
  const int32_t token = r.tokens[static_cast<size_t>(i)];
  const float logprob = -0.25F * static_cast<float>(i + 1);
  TokenEvent event{
      .request = id, .index = i, .token = token, .logprob = logprob, .policy_version = version};
  for (int32_t k = 0; k < r.request.top_logprobs; ++k) {
    event.top_logprobs.push_back({.token = token + k < 256 ? token + k : token + k + 1000,
                                  .logprob = logprob - static_cast<float>(k)});
  }
  r.result.tokens.push_back(token);
  r.result.logprobs.push_back(logprob);
  if (r.request.top_logprobs > 0) r.result.top_logprobs.push_back(event.top_logprobs);
  r.result.versions = {{.policy_version = version, .tokens = static_cast<int32_t>(i + 1)}};
  if (r.request.on_token) r.request.on_token(event);
  const Result<std::string> text = tokenizer_.Decode(std::vector<int32_t>{token}, true);
  if (text.ok()) r.text += *text;  // models have more tokens than tokenizers
  for (const std::string& stop : r.request.stop_strings) {
    if (r.text.find(stop) == std::string::npos) continue;
    r.result.stop_string = stop;
    return End(id, OkStatus());
  }
  if (std::ranges::count(r.request.stop_tokens, token) > 0) {
    r.result.stop_token = token;
    return End(id, OkStatus());
  }
  if (i + 1 >= r.request.new_tokens_max || i + 1 >= static_cast<int64_t>(r.tokens.size())) {
    r.result.finish_reason = FinishReason::kLength;
    return End(id, OkStatus());
  }
  loop_.Post([this, id] { Step(id); });
}

void SayingEngine::End(uint64_t id, Status status) {
  auto node = running_.extract(id);
  Running& r = node.mapped();
  if (status.ok()) {
    r.done(std::move(r.result));
  } else {
    r.done(std::move(status));
  }
}

void SayingEngine::Cancel(uint64_t id) {
  loop_.Post([this, id] {
    if (!running_.contains(id)) return;
    ++cancelled;
    End(id, Cancelled("the request was cancelled"));
  });
}

Bench::Bench() : loop(MakeLoop()) {
  const weights::ModelFiles files = weights::TinyModelFiles({});
  tokenizer = tokenizer::Tokenizer::FromJson(files.tokenizer_json).value();
  chat = tokenizer::ChatTemplate::Parse(files.chat_template).value();
  engine = std::make_unique<SayingEngine>(*loop, *tokenizer);
  client = HttpClient::Create(*loop).value();
}

Bench::~Bench() = default;

ServedModel Bench::model() {
  return {.name = "tiny",
          .engine = engine.get(),
          .tokenizer = tokenizer.get(),
          .chat = chat.get(),
          .stop_tokens = {weights::kTinyEnd}};
}

namespace {

void RunTask(Loop& loop, Task<void> task) {
  loop.Spawn(std::move(task), [&loop] { loop.Stop(); });
  loop.Run();
}

HttpCall MakeCall(const Bench& bench, const std::string& method, const std::string& target,
                  const std::string& body) {
  HttpCall call{.request = {.method = method, .url = bench.base + target, .body = body},
                .deadline = Now() + std::chrono::seconds(120)};
  if (!bench.key.empty()) call.request.headers.Set("Authorization", "Bearer " + bench.key);
  return call;
}

Task<void> SendTask(HttpClient* client, HttpCall call, HttpResponse* out) {
  Task<Result<HttpResponse>> sending = client->Send(std::move(call));
  Result<HttpResponse> response = co_await std::move(sending);
  EXPECT_TRUE(response.ok()) << response.status().ToString();
  if (response.ok()) *out = std::move(*response);
}

Task<void> StreamTask(HttpClient* client, HttpCall call, size_t events_max,
                      std::vector<std::string>* out) {
  Task<Result<std::unique_ptr<HttpStream>>> opening = client->Open(std::move(call));
  Result<std::unique_ptr<HttpStream>> stream = co_await std::move(opening);
  EXPECT_TRUE(stream.ok()) << stream.status().ToString();
  if (!stream.ok()) co_return;
  EXPECT_EQ((*stream)->headers().Get("content-type"), "text/event-stream");
  SseReader reader(std::move(*stream));
  while (out->size() < events_max) {
    Task<Result<std::optional<SseEvent>>> reading = reader.Next();
    Result<std::optional<SseEvent>> event = co_await std::move(reading);
    EXPECT_TRUE(event.ok()) << event.status().ToString();
    if (!event.ok() || !event->has_value()) co_return;
    out->push_back((*event)->data);
  }
}

}  // namespace

HttpResponse Bench::Send(const std::string& method, const std::string& target,
                         const std::string& body) {
  HttpResponse out{.status = 0};
  RunTask(*loop, SendTask(client.get(), MakeCall(*this, method, target, body), &out));
  return out;
}

std::vector<std::string> Bench::Stream(const std::string& target, const Json& body) {
  std::vector<std::string> out;
  RunTask(*loop,
          StreamTask(client.get(), MakeCall(*this, "POST", target, body.dump()), SIZE_MAX, &out));
  return out;
}

void Bench::StreamAndLeave(const std::string& target, const Json& body) {
  std::vector<std::string> out;
  RunTask(*loop, StreamTask(client.get(), MakeCall(*this, "POST", target, body.dump()), 1, &out));
  EXPECT_EQ(out.size(), 1U);
}

namespace {

Task<void> UntilTask(Loop* loop, const std::function<bool()>* condition) {
  const TimePoint deadline = Now() + std::chrono::seconds(120);
  while (!(*condition)() && Now() < deadline) {
    auto sleep = loop->SleepUntil(Now() + std::chrono::milliseconds(1));
    co_await sleep;
  }
  EXPECT_TRUE((*condition)());
}

}  // namespace

void Bench::Until(const std::function<bool()>& condition) {
  RunTask(*loop, UntilTask(loop.get(), &condition));
}

}  // namespace forebay::rollout::serving
