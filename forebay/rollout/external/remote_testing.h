// The tiny model behind `forebay serve`'s server, on a thread of its own, for tests that ask it
// over HTTP.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine_testing.h"
#include "forebay/rollout/episode_testing.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/weights_endpoint.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::rollout {

inline constexpr int64_t kContext = 128;

// The engine in this process, asked with the seed that a server derives from a request's for its
// first choice.
class Local final : public Engine {
 public:
  explicit Local(Engine& engine) : engine_(engine) {}
  uint64_t Generate(GenerateRequest request,
                    std::function<void(Result<GenerateResult>)> done) override {
    request.seed = DeriveSeed(request.seed & INT64_MAX, 0);
    return engine_.Generate(std::move(request), std::move(done));
  }
  void Cancel(uint64_t id) override { engine_.Cancel(id); }
  void Publish(std::shared_ptr<const weights::Snapshot>, std::function<void(Status)>) override {}
  int64_t policy_version() const override { return engine_.policy_version(); }
  int64_t context_max() const override { return engine_.context_max(); }
  EngineStats stats() const override { return engine_.stats(); }
  void Shutdown() override {}

 private:
  Engine& engine_;
};

// Tells of each call before it is handled: what blocks in there stops the whole server.
class WatchedEndpoint final : public WeightsEndpoint {
 public:
  using Watch = std::function<void(const HttpRequest&)>;
  WatchedEndpoint(std::unique_ptr<WeightsEndpoint> endpoint, Watch watch)
      : endpoint_(std::move(endpoint)), watch_(std::move(watch)) {}
  bool Owns(const HttpRequest& request) const override { return endpoint_->Owns(request); }
  Task<int> Handle(HttpExchange& exchange) override {
    if (watch_) watch_(exchange.request());
    return endpoint_->Handle(exchange);
  }
  Result<std::shared_ptr<void>> Admit(const HttpRequest& request) override {
    return endpoint_->Admit(request);
  }

 private:
  const std::unique_ptr<WeightsEndpoint> endpoint_;
  const Watch watch_;
};

// A server that may end and come back at its address, as a process does.
class RemoteServer {
 public:
  // Listens where `address` says ("tcp:127.0.0.1:0", "unix:/path").
  RemoteServer(const TinyModel& tiny, const TinyText& text, const std::string& address,
               bool takes_weights, WatchedEndpoint::Watch watch = nullptr)
      : loop_(MakeLoop()), workers_(2) {
    XlaEngineOptions options = SmallOptions();
    options.context = kContext;
    options.deterministic = true;
    engine_ = MakeEngine(tiny, options);
    const ServedModel model{.name = "policy",
                            .engine = engine_.get(),
                            .tokenizer = text.tokenizer.get(),
                            .stop_tokens = {weights::kTinyEnd}};
    OpenAiServerOptions server{.listen = {address}, .workers = &workers_};
    if (takes_weights) {
      endpoint_ = std::make_unique<WatchedEndpoint>(
          WeightsEndpoint::Create(*loop_, &workers_, *engine_, {.tensors = tiny.checkpoint},
                                  {.chunk_bytes = 10'000}),
          std::move(watch));
      server.weights = endpoint_.get();
    }
    server_ = std::move(OpenAiServer::Start(*loop_, model, server).value());
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~RemoteServer() {
    loop_->Post([this] { loop_->Spawn(server_->Stop(Now()), [this] { loop_->Stop(); }); });
    thread_.join();
    engine_->Shutdown();
  }
  Engine& engine() { return *engine_; }
  std::string url() const {
    const std::string& address = server_->addresses().front();
    return address.starts_with("unix:") ? address + ":" : address;
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Loop> loop_;
  WorkerPool workers_;
  std::unique_ptr<WeightsEndpoint> endpoint_;
  std::unique_ptr<OpenAiServer> server_;
  std::thread thread_;
};

inline Trajectory Play(Engine& engine, const TinyText& text, double temperature, uint64_t seed) {
  const std::unique_ptr<Loop> loop = MakeLoop();
  EnvironmentScript script;
  script.takes = std::chrono::milliseconds(1);
  script.reset = [](const env::ResetRequest&) -> Result<std::vector<env::Message>> {
    return std::vector<env::Message>{{.role = "user", .content = "Hi"}};
  };
  script.step = [](const std::string& action) -> Result<env::StepResult> {
    return env::StepResult{.messages = {{.role = "user", .content = "More"}},
                           .rewards = {{"length", static_cast<double>(action.size())}}};
  };
  ScriptedPool pool(*loop, &script);
  EpisodeOptions options{.environment = "scripted",
                         .temperature = temperature,
                         .turns_max = 3,
                         .new_tokens_per_turn_max = 12,
                         .tokens_max = kContext,
                         .stop_tokens = {weights::kTinyEnd}};
  Trajectory out;
  const auto play = [&]() -> Task<void> {
    Task<Trajectory> running = RunEpisode(*loop, engine, pool, *text.tokenizer, *text.chat, options,
                                          {.id = {.task_id = 7}, .seed = seed}, nullptr);
    out = co_await std::move(running);
  };
  loop->Spawn(play(), [&] { loop->Stop(); });
  loop->Run();
  out.started_us = out.ended_us = 0;  // wall time
  for (Turn& turn : out.turns) turn.spans = {};
  return out;
}

}  // namespace forebay::rollout
