#include "forebay/rollout/xla_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/device.h"
#include "forebay/rollout/engine/device_weights.h"
#include "forebay/rollout/engine/options.h"
#include "forebay/rollout/engine/runner.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/host_product.h"

namespace forebay::rollout {
namespace {

struct Delivery {
  Result<std::shared_ptr<DeviceWeights>> weights;
  std::function<void(Status)> taken;
};

// A request that was not checked, or why it is not run at all.
struct Arrival {
  Pending pending;
  Status refusal;
};

class XlaEngine final : public Engine {
 public:
  XlaEngine(const XlaEngineOptions& options, const EngineDeviceOptions& resolved,
            xla::Client& client, std::shared_ptr<const models::Model> model,
            std::unique_ptr<EngineDevice> device)
      : limits_({.vocab_size = model->config().vocab_size,
                 .context = options.context,
                 .has_tokenizer = options.tokenizer != nullptr}),
        waiting_max_(options.waiting_max),
        version_(device->weights().policy_version),
        digest_(device->weights().digest),
        runner_({.vocab_size = model->config().vocab_size,
                 .context = options.context,
                 .slots = options.slots,
                 .exact_block = options.deterministic ? resolved.prefill_chunks.back() : 0,
                 .prefill_chunks = resolved.prefill_chunks,
                 .tokenizer = options.tokenizer},
                std::move(device)),
        stats_(runner_.stats()),
        uploader_(std::move(model), client, options.weights_dtype,
                  [this](Result<std::shared_ptr<DeviceWeights>> weights,
                         std::function<void(Status)> taken) {
                    Deliver({std::move(weights), std::move(taken)});
                  }),
        thread_([this] { Run(); }) {}

  ~XlaEngine() override { Shutdown(); }

  uint64_t Generate(GenerateRequest request,
                    std::function<void(Result<GenerateResult>)> done) override {
    const uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
    Arrival arrival{.pending = {.id = id,
                                .request = std::move(request),
                                .done = std::move(done),
                                .arrived = Now()},
                    .refusal = {}};
    arrival.refusal = CheckRequest(arrival.pending.request, limits_);
    Status ended;
    {
      MutexLock lock(mutex_);
      ended = ended_;
      if (ended.ok()) {
        if (arrival.refusal.ok() && waiting_ >= waiting_max_) {
          arrival.refusal = ResourceExhausted(
              fmt::format("{} requests wait for the engine, the most that may", waiting_));
        }
        if (arrival.refusal.ok()) ++waiting_;
        ++requests_;
        inbox_.push_back(std::move(arrival));
        changed_.NotifyOne();
        return id;
      }
    }
    arrival.pending.done(std::move(ended));
    return id;
  }

  void Cancel(uint64_t id) override {
    MutexLock lock(mutex_);
    if (!ended_.ok()) return;  // nobody would take it
    cancels_.push_back(id);
    changed_.NotifyOne();
  }

  void Publish(std::shared_ptr<const weights::Snapshot> snapshot,
               std::function<void(Status)> taken) override {
    uploader_.Upload(std::move(snapshot), std::move(taken));
  }

  int64_t policy_version() const override { return version_.load(std::memory_order_acquire); }
  std::string weights_digest() const override {
    MutexLock lock(mutex_);
    return digest_;
  }
  int64_t context_max() const override { return limits_.context; }

  EngineStats stats() const override {
    MutexLock lock(mutex_);
    EngineStats out = stats_;
    out.requests = requests_;
    out.waiting = waiting_;
    return out;
  }

  void Shutdown() override {
    {
      MutexLock lock(mutex_);
      if (ended_.ok()) ended_ = Unavailable("the engine was shut down");
      changed_.NotifyOne();
    }
    // From a callback the thread only ends its loop; the destructor joins it.
    if (std::this_thread::get_id() == thread_id_.load()) return;
    MutexLock lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
    uploader_.Stop();
  }

 private:
  // ---- any thread
  void Deliver(Delivery delivery) {
    Status ended;
    {
      MutexLock lock(mutex_);
      ended = ended_;
      if (ended.ok()) {
        deliveries_.push_back(std::move(delivery));
        changed_.NotifyOne();
        return;
      }
    }
    if (delivery.taken) delivery.taken(std::move(ended));
  }

  // ---- the engine's thread
  void Run() {
    thread_id_.store(std::this_thread::get_id());
    for (Arrived arrived; Collect(&arrived); arrived = {}) {
      for (Arrival& arrival : arrived.requests) {
        if (arrival.refusal.ok()) {
          runner_.Add(std::move(arrival.pending));
        } else {
          arrival.pending.done(std::move(arrival.refusal));
        }
      }
      runner_.Cancel(arrived.cancels);
      TakeWeights(std::move(arrived.deliveries));
      const Status status = runner_.Step();
      Report();
      if (!status.ok()) {
        MutexLock lock(mutex_);
        if (ended_.ok()) ended_ = Unavailable("the engine's device failed: " + status.ToString());
      }
    }
    FailEverything();
  }

  struct Arrived {
    std::vector<Arrival> requests;
    std::vector<Delivery> deliveries;
    std::vector<uint64_t> cancels;
  };

  // Waits while there is nothing to do, then takes what has arrived. False: the engine has ended.
  bool Collect(Arrived* arrived) {
    const bool idle = runner_.idle();
    MutexLock lock(mutex_);
    while (idle && ended_.ok() && inbox_.empty() && deliveries_.empty() && cancels_.empty()) {
      changed_.WaitUntil(mutex_, TimePoint::max());
    }
    if (!ended_.ok()) return false;
    arrived->requests.swap(inbox_);
    arrived->deliveries.swap(deliveries_);
    arrived->cancels.swap(cancels_);
    return true;
  }

  void TakeWeights(std::vector<Delivery> taking) {
    for (size_t i = 0; i < taking.size(); ++i) {
      Status status = taking[i].weights.ok() ? OkStatus() : taking[i].weights.status();
      const bool superseded =
          std::any_of(taking.begin() + static_cast<std::ptrdiff_t>(i) + 1, taking.end(),
                      [](const Delivery& later) { return later.weights.ok(); });
      if (status.ok() && superseded) {
        status = Cancelled("newer weights were published before these were taken");
      } else if (status.ok()) {
        uploader_.Free(runner_.SetWeights(std::move(*taking[i].weights)));
        version_.store(runner_.weights().policy_version, std::memory_order_release);
        MutexLock lock(mutex_);
        digest_ = runner_.weights().digest;
        stats_ = runner_.stats();
      }
      if (taking[i].taken) taking[i].taken(std::move(status));
    }
  }

  // Shows the statistics, then answers what has ended.
  void Report() {
    std::vector<Runner::Finished> finished = runner_.TakeFinished();
    {
      MutexLock lock(mutex_);
      stats_ = runner_.stats();
      waiting_ = runner_.waiting();
      for (const Arrival& arrival : inbox_) waiting_ += arrival.refusal.ok() ? 1 : 0;
    }
    for (Runner::Finished& one : finished) one.done(std::move(one.result));
  }

  // The engine has ended: nothing enters the inbox any more.
  void FailEverything() {
    Status ended;
    Arrived arrived;
    {
      MutexLock lock(mutex_);
      ended = ended_;
      arrived.requests.swap(inbox_);
      arrived.deliveries.swap(deliveries_);
    }
    runner_.EndAll(ended);
    Report();
    for (Arrival& arrival : arrived.requests) {
      arrival.pending.done(arrival.refusal.ok() ? ended : std::move(arrival.refusal));
    }
    for (Delivery& delivery : arrived.deliveries) {
      if (delivery.taken) delivery.taken(ended);
    }
  }

  const RequestLimits limits_;
  const int64_t waiting_max_;

  std::atomic<int64_t> version_;
  std::atomic<std::thread::id> thread_id_{};
  std::atomic<uint64_t> next_id_{1};
  mutable Mutex mutex_;
  CondVar changed_;
  std::string digest_ FB_GUARDED_BY(mutex_);
  std::vector<Arrival> inbox_ FB_GUARDED_BY(mutex_);
  std::vector<Delivery> deliveries_ FB_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancels_ FB_GUARDED_BY(mutex_);
  Status ended_ FB_GUARDED_BY(mutex_);  // not OK: shut down or failed, and why
  int64_t waiting_ FB_GUARDED_BY(mutex_) = 0;
  int64_t requests_ FB_GUARDED_BY(mutex_) = 0;

  Runner runner_;  // the engine's thread only
  EngineStats stats_ FB_GUARDED_BY(mutex_);

  Mutex join_mutex_;
  WeightUploader uploader_;
  std::thread thread_;
};

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
  }
  return "unknown";
}

Result<std::unique_ptr<Engine>> MakeXlaEngine(const XlaEngineOptions& options, xla::Client& client,
                                              std::shared_ptr<const models::Model> model,
                                              const weights::Snapshot& initial) {
  FB_ASSIGN_OR_RETURN(EngineDeviceOptions resolved, ResolveOptions(options, model->config()));
  if (options.host_products) {
    resolved.shape.host_product_rows = xla::HostProductRows(client, options.weights_dtype);
  }
  FB_ASSIGN_OR_RETURN(std::shared_ptr<DeviceWeights> weights,
                      UploadWeights(*model, client, options.weights_dtype, initial));
  FB_ASSIGN_OR_RETURN(std::unique_ptr<EngineDevice> device,
                      EngineDevice::Create(resolved, client, *model, std::move(weights)));
  return std::unique_ptr<Engine>(
      std::make_unique<XlaEngine>(options, resolved, client, std::move(model), std::move(device)));
}

}  // namespace forebay::rollout
