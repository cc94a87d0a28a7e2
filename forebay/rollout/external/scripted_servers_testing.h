// A server that answers what a test tells it to, as vLLM does, and the fixture that asks it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http/http_testing.h"
#include "forebay/base/http_server.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {

// vLLM as far as the engine knows it.
class Vllm {
 public:
  Vllm()
      : server_(std::make_unique<TestServer>(
            [this](HttpExchange& exchange) { return Handle(exchange); })) {}
  ~Vllm() { Die(); }
  std::string url() const { return url_.empty() ? server_->url() : url_; }
  void Die() {
    if (!server_) return;
    url_ = server_->url();
    server_->Stop(Duration(0));  // while handlers may still ask for server_
    server_.reset();
  }

  std::atomic<bool> raw = false;      // tells the same log-probabilities at every temperature
  std::atomic<bool> hangs = false;    // generates until the client goes away
  std::atomic<bool> paused = false;   // as a run that was killed may leave it
  std::atomic<bool> garbage = false;  // generates tokens without log-probabilities
  std::atomic<bool> sick = false;     // /health is answered with 500
  std::atomic<bool> refuses_weights = false;
  std::atomic<bool> frozen = false;   // answers nothing, as a process that was stopped
  std::atomic<bool> freezes = false;  // becomes so when it is to load weights
  std::atomic<bool> loads_adapters = false;
  std::atomic<std::chrono::milliseconds> reload_takes = std::chrono::milliseconds(0);
  std::atomic<int> fails_each = 0;  // of so many requests to generate one is answered with 500
  std::atomic<int> generated = 0, running = 0, most_running = 0, gone = 0;
  std::string model = "policy", key;
  std::string version = "default";  // on the server's loop once it runs
  // Names of adapters that are loaded, and what the last request to generate asked for.
  std::vector<std::string> adapters() {
    const MutexLock lock(mutex_);
    return adapters_;
  }
  std::string asked_model() {
    const MutexLock lock(mutex_);
    return asked_model_;
  }
  // As a process that is started again.
  void ForgetAdapters() {
    const MutexLock lock(mutex_);
    adapters_.clear();
  }
  std::vector<std::string> calls() {
    const MutexLock lock(mutex_);
    return calls_;
  }

 private:
  nlohmann::ordered_json Answer(const nlohmann::ordered_json& ask) const {
    const nlohmann::ordered_json& params = ask["sampling_params"];
    const double temperature = params["temperature"];
    const double logprob = raw || temperature == 0 ? -1.0 : -1.0 / temperature;
    nlohmann::ordered_json content = nlohmann::ordered_json::array();
    const std::vector<int32_t> tokens = {72, weights::kTinyEnd};
    for (const int32_t token : tokens) {
      nlohmann::ordered_json tops = nlohmann::ordered_json::array();
      for (int32_t k = 0; k < params["logprobs"].get<int32_t>(); ++k) {
        tops.push_back({{"token_id", token}, {"logprob", logprob}});
      }
      content.push_back({{"token_id", token}, {"logprob", logprob}, {"top_logprobs", tops}});
    }
    nlohmann::ordered_json choice = {{"token_ids", tokens}, {"finish_reason", "stop"}};
    if (!garbage) choice["logprobs"]["content"] = content;
    choice["weight_versions"] = {{{"version", version}, {"start", 0}, {"end", 2}}};
    return {{"choices", {choice}}};
  }

  bool Knows(const std::string& name) {
    const MutexLock lock(mutex_);
    asked_model_ = name;
    return name == model || std::ranges::find(adapters_, name) != adapters_.end();
  }

  HttpResponse Adapter(bool load, const nlohmann::ordered_json& ask) {
    if (!loads_adapters) return {.status = 404};
    const MutexLock lock(mutex_);
    const std::string name = ask["lora_name"];
    if (!load) return {.status = std::erase(adapters_, name) == 1 ? 200 : 404};
    const std::filesystem::path folder = ask["lora_path"].get<std::string>();
    if (!std::filesystem::exists(folder / "adapter_config.json")) return {.status = 500};
    adapters_.push_back(name);
    return {.body = "Success: LoRA adapter added successfully."};
  }

  Task<void> Handle(HttpExchange& exchange) {
    Loop& loop = server_->thread().loop();  // server_ is null while it ends
    const HttpRequest& request = exchange.request();
    const std::string path(request.path());
    HttpResponse response{.body = "{}"};
    const nlohmann::ordered_json ask = nlohmann::ordered_json::parse(request.body, nullptr, false);
    {
      const MutexLock lock(mutex_);
      if (path != "/health" && path != "/v1/models") calls_.push_back(path);
    }
    if (freezes && path == "/collective_rpc") frozen = true;
    exchange.OnDisconnect([] {});
    while (frozen && !exchange.disconnected()) {
      auto sleep = loop.SleepUntil(Now() + std::chrono::milliseconds(1));
      co_await sleep;
    }
    exchange.OnDisconnect(nullptr);
    if (!key.empty() && request.bearer() != key) {
      response.status = 401;
    } else if (path == "/health") {
      response.status = sick ? 500 : 200;
    } else if (path == "/v1/models") {
      nlohmann::ordered_json cards = {{{"id", model}, {"max_model_len", 256}}};
      for (const std::string& name : adapters()) cards.push_back({{"id", name}});
      response.body = nlohmann::ordered_json({{"data", cards}}).dump();
    } else if (path == "/inference/v1/generate" && !Knows(ask["model"])) {
      response.status = 404;
    } else if (path == "/inference/v1/generate") {
      most_running = std::max<int>(most_running, ++running);
      exchange.OnDisconnect([this] { ++gone; });
      while ((hangs || paused) && !exchange.disconnected()) {
        auto sleep = loop.SleepUntil(Now() + std::chrono::milliseconds(1));
        co_await sleep;
      }
      exchange.OnDisconnect(nullptr);
      --running;
      ++generated;
      response.body = Answer(ask).dump();
      if (fails_each > 0 && ++asked_ % fails_each == 0) response.status = 500;
    } else if (path == "/collective_rpc") {
      if (refuses_weights) response.status = 500;
      auto sleep = loop.SleepUntil(Now() + reload_takes.load());
      co_await sleep;
      const std::string folder = ask["kwargs"]["weights_path"];
      reloadable_ = std::filesystem::exists(folder + "/model.safetensors") &&
                    std::filesystem::exists(folder + "/config.json");
    } else if (path == "/v1/load_lora_adapter" || path == "/v1/unload_lora_adapter") {
      response = Adapter(path.find("unload") == std::string::npos, ask);
    } else if (path == "/resume") {
      paused = false;
    } else if (path == "/update_weight_version") {
      if (reloadable_) version = ask["new_version"];
    } else if (path == "/weight_info") {
      response.body = nlohmann::ordered_json({{"weight_version", version}}).dump();
    }
    Task<Status> responding = exchange.Respond(std::move(response));
    const Status ignored = co_await std::move(responding);
    static_cast<void>(ignored);
  }

  bool reloadable_ = false;
  int asked_ = 0;
  Mutex mutex_;
  std::vector<std::string> adapters_ FB_GUARDED_BY(mutex_);
  std::string asked_model_ FB_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ FB_GUARDED_BY(mutex_);
  std::string url_;
  std::unique_ptr<TestServer> server_;
};

inline std::shared_ptr<weights::Snapshot> Weights(int64_t version,
                                                  std::vector<std::string> names = {"a", "b"}) {
  auto out = std::make_shared<weights::Snapshot>();
  out->policy_version = version;
  for (const std::string& name : names) {
    std::span<std::byte> bytes;
    weights::HostTensor tensor = weights::HostTensor::Allocate({xla::DType::kF32, {2}}, &bytes);
    std::ranges::fill(bytes, static_cast<std::byte>(version));
    out->tensors.emplace(name, tensor);
  }
  return out;
}

class HttpEngineTest : public ::testing::Test {
 protected:
  HttpEngineTest() {
    options_.model = "policy";
    options_.vocab_size = weights::kTinyVocabSize;
    options_.context = 256;
    options_.health_period = std::chrono::milliseconds(20);
    options_.weights_folder = ::testing::TempDir() + "/forebay_http_engine_" +
                              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    options_.files = weights::TinyModelFiles({});
  }
  Result<std::unique_ptr<HttpEngine>> Make(std::vector<Vllm*> servers) {
    for (const Vllm* server : servers) options_.servers.push_back(server->url());
    return MakeHttpEngine(options_, *Weights(0));
  }
  static std::future<Result<GenerateResult>> Ask(Engine& engine, double temperature = 1) {
    auto done = std::make_shared<std::promise<Result<GenerateResult>>>();
    engine.Generate({.prompt = {1, 2},
                     .temperature = temperature,
                     .stop_tokens = {weights::kTinyEnd},
                     .deadline = Now() + std::chrono::seconds(60)},
                    [done](Result<GenerateResult> r) { done->set_value(std::move(r)); });
    return done->get_future();
  }
  static Status Publish(Engine& engine, std::shared_ptr<const weights::Snapshot> snapshot) {
    auto done = std::make_shared<std::promise<Status>>();
    engine.Publish(std::move(snapshot), [done](Status s) { done->set_value(std::move(s)); });
    return done->get_future().get();
  }
  static void Until(const std::function<bool()>& condition) {
    const TimePoint deadline = Now() + std::chrono::seconds(60);
    while (!condition() && Now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_TRUE(condition());
  }

  HttpEngineOptions options_;
};

}  // namespace forebay::rollout
