#include "forebay/rollout/http_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_client.h"
#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/external/fleet.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"

namespace forebay::rollout {
namespace {

Status CheckRequest(const GenerateRequest& request, int64_t context, int64_t vocab_size) {
  const auto size = static_cast<int64_t>(request.prompt.size());
  if (size == 0) return InvalidArgument("the prompt is empty");
  if (size >= context) {
    return InvalidArgument(fmt::format(
        "the prompt has {} tokens; the context holds {} together with the answer", size, context));
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= vocab_size) {
      return InvalidArgument(fmt::format(
          "the prompt has the token id {}; the vocabulary has {} ids", token, vocab_size));
    }
  }
  if (request.new_tokens_max < 1) return InvalidArgument("new_tokens_max must be at least 1");
  if (!(request.temperature >= 0 && std::isfinite(request.temperature))) {
    return InvalidArgument("temperature must be a number from 0");
  }
  for (const double penalty :
       {request.repetition_penalty, request.presence_penalty, request.frequency_penalty}) {
    if (!std::isfinite(penalty)) return InvalidArgument("penalties must be finite");
  }
  if (!(request.top_p > 0 && request.top_p <= 1)) return InvalidArgument("top_p is not in (0, 1]");
  if (!(request.min_p >= 0 && request.min_p <= 1)) return InvalidArgument("min_p is not in [0, 1]");
  if (request.top_k < 0) return InvalidArgument("top_k must be at least 0");
  if (request.top_logprobs < 0 || request.top_logprobs > kTopLogprobsMax) {
    return InvalidArgument(fmt::format("top_logprobs is not in [0, {}]", kTopLogprobsMax));
  }
  return OkStatus();
}

// A folder of this run's own, whose name a process that goes on with the run finds again: what
// others keep in options.weights_folder is theirs. Servers of ours need none.
HttpEngineOptions Adjusted(HttpEngineOptions options) {
  if (options.protocol == HttpEngineProtocol::kForebay) options.weights_folder.clear();
  if (options.weights_folder.empty()) return options;
  const weights::ContentId name = weights::ContentOf(std::as_bytes(std::span(options.publisher)));
  options.weights_folder += fmt::format("/forebay_{:016x}", name.high);
  return options;
}

class FleetEngine final : public HttpEngine {
 public:
  explicit FleetEngine(const HttpEngineOptions& options)
      : options_(Adjusted(options)), loop_(MakeLoop()), workers_(std::make_unique<WorkerPool>(1)) {}
  ~FleetEngine() override { Shutdown(); }

  Status Start(const weights::Snapshot& initial, const FirstAdapter& adapter) {
    external::Fleet::Folders folders;
    RemoveFolder();  // of a process that was killed
    if (writes_folders() && adapter.write) {
      folders.base = options_.weights_folder + "/base";
      folders.adapter =
          fmt::format("{}/adapter_{:06}", options_.weights_folder, initial.policy_version);
      FB_RETURN_IF_ERROR(WriteFolder(folders.base, adapter.base));
      std::error_code ignored;
      std::filesystem::remove_all(folders.adapter, ignored);
      FB_RETURN_IF_ERROR(adapter.write(folders.adapter));
    } else if (writes_folders()) {
      folders.merged =
          fmt::format("{}/version_{:06}", options_.weights_folder, initial.policy_version);
      FB_RETURN_IF_ERROR(WriteFolder(folders.merged, initial.tensors));
    }
    FB_ASSIGN_OR_RETURN(
        client_,
        HttpClient::Create(*loop_, {.connections_per_origin_max =
                                        static_cast<size_t>(options_.requests_per_server_max) + 4,
                                    .ca_file = options_.ca_file}));
    fleet_ = std::make_unique<external::Fleet>(*loop_, *client_, *workers_, options_, initial,
                                               std::move(folders));
    thread_ = std::thread([this] { loop_->Run(); });
    loop_->Post([this] { fleet_->Start(); });
    return fleet_->AwaitStart(Now() + options_.start_deadline);
  }

  uint64_t Generate(GenerateRequest request, external::Done done) override {
    const uint64_t id = next_id_++;
    auto shared = std::make_shared<GenerateRequest>(std::move(request));
    Post([this, id, shared, done](bool ended) {
      if (ended) return done(external::HasShutDown());
      const Status valid = CheckRequest(*shared, options_.context, options_.vocab_size);
      if (!valid.ok()) return done(valid);
      const auto room = options_.context - static_cast<int64_t>(shared->prompt.size());
      const bool cut = room < shared->new_tokens_max;
      if (!cut) return fleet_->Generate(id, std::move(*shared), done);
      // Out of context is another end than out of what was asked for.
      shared->new_tokens_max = static_cast<int32_t>(room);
      fleet_->Generate(id, std::move(*shared), [done](Result<GenerateResult> result) {
        if (result.ok() && result->finish_reason == FinishReason::kLength) {
          result->finish_reason = FinishReason::kContext;
        }
        done(std::move(result));
      });
    });
    return id;
  }

  void Cancel(uint64_t id) override {
    Post([this, id](bool ended) {
      if (!ended) fleet_->Cancel(id);
    });
  }

  void Publish(std::shared_ptr<const weights::Snapshot> snapshot,
               std::function<void(Status)> taken) override {
    PublishAdapter(std::move(snapshot), nullptr, std::move(taken));
  }

  void PublishAdapter(std::shared_ptr<const weights::Snapshot> snapshot, AdapterWriter adapter,
                      std::function<void(Status)> taken) override {
    Post([this, snapshot = std::move(snapshot), adapter = std::move(adapter),
          taken = std::move(taken)](bool ended) {
      if (ended) return taken(external::HasShutDown());
      fleet_->Publish(snapshot, adapter, taken);
    });
  }

  int64_t policy_version() const override { return fleet_->policy_version(); }
  std::string weights_digest() const override { return fleet_->digest(); }
  int64_t context_max() const override { return options_.context; }
  EngineStats stats() const override { return fleet_->stats(); }

  void Shutdown() override {
    const MutexLock joining(join_mutex_);  // a second caller returns when it is done
    {
      const MutexLock lock(mutex_);
      if (std::exchange(ended_, true)) return;
    }
    if (!thread_.joinable()) return;
    std::promise<void> stopped;
    loop_->Post([&] {
      fleet_->Stop();
      stopped.set_value();
    });
    stopped.get_future().wait();  // may wait: Shutdown's caller is on another thread
    // Ends what it writes, which the loop hears of before it is told to stop.
    workers_.reset();
    loop_->Post([this] { loop_->Stop(); });
    thread_.join();  // may wait: as above
    RemoveFolder();
  }

 private:
  void RemoveFolder() const {
    if (!writes_folders()) return;
    const std::filesystem::path folder = options_.weights_folder;
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    std::filesystem::remove(folder.parent_path(), ignored);  // if it is empty
  }
  Status WriteFolder(const std::string& folder, const weights::TensorMap& tensors) const {
    weights::ModelFiles files = options_.files;
    files.tensors = tensors;
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return weights::WriteModelFolder(folder, files);
  }
  bool writes_folders() const { return options_.reload && !options_.weights_folder.empty(); }

  // Runs fn(false) on the loop, or fn(true) here if it has ended.
  void Post(std::function<void(bool)> fn) {
    {
      // So that nothing is posted behind the loop's end.
      const MutexLock lock(mutex_);
      if (!ended_) return loop_->Post([fn = std::move(fn)] { fn(false); });
    }
    fn(true);
  }

  const HttpEngineOptions options_;
  const std::unique_ptr<Loop> loop_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<HttpClient> client_;
  std::unique_ptr<external::Fleet> fleet_;
  std::thread thread_;
  std::atomic<uint64_t> next_id_ = 1;
  Mutex join_mutex_;
  Mutex mutex_;
  bool ended_ FB_GUARDED_BY(mutex_) = false;
};

}  // namespace

Result<std::unique_ptr<HttpEngine>> MakeHttpEngine(const HttpEngineOptions& options,
                                                   const weights::Snapshot& initial,
                                                   const FirstAdapter& adapter) {
  if (options.servers.empty()) return InvalidArgument("there is no rollout server");
  for (const std::string& url : options.servers) {
    const Result<HttpUrl> parsed = ParseUrl(url + "/health");
    if (!parsed.ok()) return parsed.status().WithContext("rollout server '" + url + "'");
    if (std::ranges::count(options.servers, url) > 1) {
      return InvalidArgument("rollout server '" + url + "' is listed twice");
    }
  }
  if (options.vocab_size < 1 || options.context < 2 || options.requests_per_server_max < 1 ||
      options.waiting_max < 1) {
    return InvalidArgument(
        "vocab_size, context, requests_per_server_max and waiting_max must be positive");
  }
  if (options.reload && options.weights_folder.empty() &&
      options.protocol != HttpEngineProtocol::kForebay) {
    return InvalidArgument("reload needs a weights_folder that the servers see, too");
  }
  if (options.reload && options.protocol == HttpEngineProtocol::kLlamaCpp) {
    return InvalidArgument("llama.cpp's server cannot take new weights: set reload to false");
  }
  if (adapter.write && (!options.reload || options.protocol == HttpEngineProtocol::kForebay ||
                        options.protocol == HttpEngineProtocol::kLlamaCpp)) {
    return InvalidArgument("adapters are for servers of vLLM and SGLang that take weights");
  }
  auto engine = std::make_unique<FleetEngine>(options);
  FB_RETURN_IF_ERROR(engine->Start(initial, adapter));
  return std::unique_ptr<HttpEngine>(std::move(engine));
}

}  // namespace forebay::rollout
