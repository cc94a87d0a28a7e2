#include "forebay/rollout/xla_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
#include "forebay/rollout/engine/scheduler.h"
#include "forebay/rollout/engine/slots.h"
#include "forebay/rollout/engine/waiting.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::rollout {
namespace {

int64_t Micros(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

struct Pending {
  uint64_t id = 0;
  GenerateRequest request;
  std::function<void(Result<GenerateResult>)> done;
  Status refusal;  // why it is not run at all
  TimePoint arrived, admitted, decode_began;
  GenerateResult result;
};

struct Delivery {
  Result<std::shared_ptr<DeviceWeights>> weights;
  std::function<void(Status)> taken;
};

class XlaEngine final : public Engine {
 public:
  XlaEngine(const XlaEngineOptions& options, const EngineDeviceOptions& resolved,
            xla::Client& client, std::shared_ptr<const models::Model> model,
            std::unique_ptr<EngineDevice> device)
      : vocab_size_(model->config().vocab_size),
        context_(options.context),
        waiting_max_(options.waiting_max),
        device_(std::move(device)),
        table_({.slots = options.slots,
                .exact_block = options.deterministic ? resolved.prefill_chunks.back() : 0}),
        prefill_chunks_(resolved.prefill_chunks),
        running_(static_cast<size_t>(options.slots)),
        inputs_(options.slots),
        version_(device_->weights().policy_version),
        digest_(device_->weights().digest),
        uploader_(std::move(model), client,
                  [this](Result<std::shared_ptr<DeviceWeights>> weights,
                         std::function<void(Status)> taken) {
                    Deliver({std::move(weights), std::move(taken)});
                  }),
        thread_([this] { Run(); }) {
    MutexLock lock(mutex_);
    stats_.slots = options.slots;
  }

  ~XlaEngine() override { Shutdown(); }

  uint64_t Generate(GenerateRequest request,
                    std::function<void(Result<GenerateResult>)> done) override {
    const uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
    Pending pending{
        .id = id, .request = std::move(request), .done = std::move(done), .arrived = Now()};
    pending.refusal = CheckRequest(pending.request, vocab_size_, context_);
    Status ended;
    {
      MutexLock lock(mutex_);
      ended = ended_;
      if (ended.ok()) {
        if (pending.refusal.ok() && waiting_ >= waiting_max_) {
          pending.refusal = ResourceExhausted(
              fmt::format("{} requests wait for the engine, the most that may", waiting_));
        }
        if (pending.refusal.ok()) ++waiting_;
        ++stats_.requests;
        inbox_.push_back(std::move(pending));
        changed_.NotifyOne();
        return id;
      }
    }
    pending.done(std::move(ended));
    return id;
  }

  void Cancel(uint64_t id) override {
    MutexLock lock(mutex_);
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
  int64_t context_max() const override { return context_; }

  EngineStats stats() const override {
    MutexLock lock(mutex_);
    EngineStats out = stats_;
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
    while (Collect()) {
      CancelRequests();
      TakeWeights();
      ExpireRequests(Now());
      AdmitWaiting();
      if (const Status status = Step(); !status.ok()) {
        MutexLock lock(mutex_);
        if (ended_.ok()) ended_ = Unavailable("the engine's device failed: " + status.ToString());
      }
    }
    FailEverything();
  }

  // Waits while there is nothing to do, then takes what has arrived. False: the engine has ended.
  bool Collect() {
    std::vector<Pending> arrived;
    {
      MutexLock lock(mutex_);
      while (ended_.ok() && inbox_.empty() && deliveries_.empty() && cancels_.empty() && Idle()) {
        changed_.WaitUntil(mutex_, TimePoint::max());
      }
      if (!ended_.ok()) return false;
      arrived.swap(inbox_);
      taking_.swap(deliveries_);
      cancelling_.swap(cancels_);
    }
    for (Pending& pending : arrived) {
      if (!pending.refusal.ok()) {
        pending.done(std::move(pending.refusal));
        continue;
      }
      const int64_t priority = pending.request.priority;
      const TimePoint deadline = pending.request.deadline;
      queue_.Push(priority, deadline, std::move(pending));
    }
    return true;
  }

  bool Idle() const { return queue_.empty() && table_.Count(SlotPhase::kFree) == table_.size(); }

  void CancelRequests() {
    if (cancelling_.empty()) return;
    const std::vector<uint64_t> ids = std::exchange(cancelling_, {});
    const auto cancelled = [&](const Pending& pending) {
      return std::find(ids.begin(), ids.end(), pending.id) != ids.end();
    };
    for (Pending& pending : queue_.TakeIf(cancelled)) {
      CountWaiting(-1);
      pending.done(Cancelled("the request was cancelled while it waited for a slot"));
    }
    for (int64_t i = 0; i < table_.size(); ++i) {
      const std::optional<Pending>& pending = running_[static_cast<size_t>(i)];
      if (!pending || !cancelled(*pending)) continue;
      const size_t sampled = pending->result.tokens.size();
      End(i, Cancelled(fmt::format("the request was cancelled after {} tokens", sampled)));
    }
  }

  void TakeWeights() {
    std::vector<Delivery> taking;
    taking.swap(taking_);
    for (size_t i = 0; i < taking.size(); ++i) {
      Status status = taking[i].weights.ok() ? OkStatus() : taking[i].weights.status();
      const bool superseded =
          std::any_of(taking.begin() + static_cast<std::ptrdiff_t>(i) + 1, taking.end(),
                      [](const Delivery& later) { return later.weights.ok(); });
      if (status.ok() && superseded) {
        status = Cancelled("newer weights were published before these were taken");
      } else if (status.ok()) {
        const TimePoint began = Now();
        device_->SetWeights(std::move(*taking[i].weights));
        table_.NewWeights();
        version_.store(device_->weights().policy_version, std::memory_order_release);
        MutexLock lock(mutex_);
        digest_ = device_->weights().digest;
        ++stats_.publishes;
        stats_.publish_stall_last_s = Seconds(Now() - began);
        stats_.publish_stall_seconds += stats_.publish_stall_last_s;
        stats_.publish_stall_max_s =
            std::max(stats_.publish_stall_max_s, stats_.publish_stall_last_s);
      }
      if (taking[i].taken) taking[i].taken(std::move(status));
    }
  }

  void ExpireRequests(TimePoint now) {
    for (Pending& pending : queue_.TakeExpired(now)) {
      CountWaiting(-1);
      pending.done(
          DeadlineExceeded("the request waited for a slot of the engine until its deadline"));
    }
    for (int64_t i = 0; i < table_.size(); ++i) {
      const std::optional<Pending>& pending = running_[static_cast<size_t>(i)];
      if (!pending || pending->request.deadline > now) continue;
      const size_t sampled = pending->result.tokens.size();
      End(i, DeadlineExceeded(
                 fmt::format("the request reached its deadline after {} of at most {} tokens",
                             sampled, pending->request.new_tokens_max)));
    }
  }

  void AdmitWaiting() {
    while (!queue_.empty() && table_.HasFree()) {
      Pending pending = queue_.Pop();
      pending.admitted = Now();
      pending.result.queue_us = Micros(pending.admitted - pending.arrived);
      const int64_t slot = table_.Admit(pending.request.prompt);
      running_[static_cast<size_t>(slot)] = std::move(pending);
      CountWaiting(-1);
    }
  }

  void CountWaiting(int64_t change) {
    MutexLock lock(mutex_);
    waiting_ += change;
    stats_.active = table_.size() - table_.Count(SlotPhase::kFree);
  }

  Status Step() {
    FB_RETURN_IF_ERROR(StartPrefills());
    switch (NextAction({.slots = table_.size(),
                        .decoding = table_.Count(SlotPhase::kDecode),
                        .prefilling = table_.Count(SlotPhase::kPrefill),
                        .chunks_since_decode = chunks_since_decode_})) {
      case Action::kIdle:
        return OkStatus();
      case Action::kPrefill:
        ++chunks_since_decode_;
        return PrefillChunk(table_.NextPrefill());
      case Action::kDecode:
        chunks_since_decode_ = 0;
        return DecodeStep();
    }
    return OkStatus();
  }

  // Gives the slots whose turn it is the prefix that others hold; up to the first that must run a
  // prefill.
  Status StartPrefills() {
    for (int64_t slot = table_.NextPrefill(); slot >= 0 && !table_.slot(slot).started;
         slot = table_.NextPrefill()) {
      if (const std::optional<SlotTable::Source> source = table_.FindSource(slot)) {
        const TimePoint began = Now();
        FB_RETURN_IF_ERROR(device_->CopySlot(source->slot, slot));
        table_.Copied(slot, *source);
        CountBusy(began);
      }
      table_.StartPrefill(slot);
      running_[static_cast<size_t>(slot)]->result.prompt_tokens_reused = table_.slot(slot).reused;
      {
        MutexLock lock(mutex_);
        stats_.reused_tokens += table_.slot(slot).reused;
      }
      if (table_.slot(slot).phase == SlotPhase::kDecode) BeginDecode(slot);
    }
    return OkStatus();
  }

  Status PrefillChunk(int64_t index) {
    const Slot& slot = table_.slot(index);
    const int64_t target = slot.prompt - 1;
    const int64_t chunk = ChunkSize(prefill_chunks_, target - slot.cached);
    const int64_t start = ChunkStart(slot.cached, chunk, context_);
    const int64_t end = std::min(start + chunk, target);
    const TimePoint began = Now();
    FB_RETURN_IF_ERROR(device_->Prefill(
        index, start, chunk,
        std::span<const int32_t>(slot.tokens)
            .subspan(static_cast<size_t>(start), static_cast<size_t>(end - start))));
    CountBusy(began);
    {
      MutexLock lock(mutex_);
      stats_.prefill_tokens += end - slot.cached;
    }
    table_.Prefilled(index, end);
    if (slot.phase == SlotPhase::kDecode) BeginDecode(index);
    return OkStatus();
  }

  void BeginDecode(int64_t index) {
    const auto i = static_cast<size_t>(index);
    Pending& pending = *running_[i];
    pending.decode_began = Now();
    pending.result.prefill_us = Micros(pending.decode_began - pending.admitted);
    inputs_.tokens[i] = pending.request.prompt.back();
    inputs_.positions[i] = static_cast<int32_t>(pending.request.prompt.size()) - 1;
    inputs_.temperatures[i] = static_cast<float>(pending.request.temperature);
    inputs_.seeds[2 * i] = static_cast<uint32_t>(pending.request.seed);
    inputs_.seeds[2 * i + 1] = static_cast<uint32_t>(pending.request.seed >> 32);
    inputs_changed_ = true;
  }

  Status DecodeStep() {
    const TimePoint began = Now();
    FB_ASSIGN_OR_RETURN(const DecodeOutputs outputs, device_->Decode(inputs_, inputs_changed_));
    inputs_changed_ = false;
    CountBusy(began);
    {
      MutexLock lock(mutex_);
      ++stats_.decode_steps;
      stats_.sampled_tokens += table_.Count(SlotPhase::kDecode);
      stats_.recompiles_after_warmup = device_->compiles_after_warmup();
    }
    for (int64_t slot = 0; slot < table_.size(); ++slot) {
      if (table_.slot(slot).phase != SlotPhase::kDecode) continue;
      const auto i = static_cast<size_t>(slot);
      FB_RETURN_IF_ERROR(TakeToken(slot, outputs.tokens[i], outputs.logprobs[i]));
    }
    return OkStatus();
  }

  Status TakeToken(int64_t slot, int32_t token, float logprob) {
    const auto i = static_cast<size_t>(slot);
    Pending& pending = *running_[i];
    if (!std::isfinite(logprob) || token < 0 || token >= vocab_size_) {
      End(slot, Internal(fmt::format(
                    "the model overflows under the weights of policy version {}: a token got the "
                    "log-probability {}",
                    version_.load(), logprob)));
      table_.Cleared(slot);
      return device_->ClearSlot(slot);
    }
    table_.Sampled(slot, token);
    ++inputs_.positions[i];
    inputs_.tokens[i] = token;

    GenerateResult& result = pending.result;
    result.tokens.push_back(token);
    result.logprobs.push_back(logprob);
    const int64_t version = version_.load(std::memory_order_relaxed);
    if (result.versions.empty() || result.versions.back().policy_version != version) {
      result.versions.push_back({.policy_version = version, .tokens = 0});
    }
    ++result.versions.back().tokens;
    if (pending.request.on_token) {
      pending.request.on_token({.request = pending.id,
                                .index = static_cast<int64_t>(result.tokens.size()) - 1,
                                .token = token,
                                .logprob = logprob,
                                .policy_version = version,
                                .top_logprobs = {}});
    }

    const std::vector<int32_t>& stops = pending.request.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      result.stop_token = token;
      Finish(slot, FinishReason::kStop);
    } else if (static_cast<int64_t>(result.tokens.size()) >= pending.request.new_tokens_max) {
      Finish(slot, FinishReason::kLength);
    } else if (static_cast<int64_t>(table_.slot(slot).tokens.size()) >= context_) {
      Finish(slot, FinishReason::kContext);
    }
    return OkStatus();
  }

  void Finish(int64_t slot, FinishReason reason) {
    Pending& pending = *running_[static_cast<size_t>(slot)];
    pending.result.finish_reason = reason;
    pending.result.decode_us = Micros(Now() - pending.decode_began);
    GenerateResult result = std::move(pending.result);
    End(slot, std::move(result));
  }

  // Frees the slot and answers its request.
  void End(int64_t slot, Result<GenerateResult> result) {
    const auto i = static_cast<size_t>(slot);
    const std::function<void(Result<GenerateResult>)> done = std::move(running_[i]->done);
    running_[i].reset();
    table_.Release(slot);
    inputs_.positions[i] = -1;
    inputs_changed_ = true;
    CountWaiting(0);
    done(std::move(result));
  }

  void CountBusy(TimePoint began) {
    MutexLock lock(mutex_);
    stats_.busy_seconds += Seconds(Now() - began);
  }

  // The engine has ended: nothing enters the inbox any more.
  void FailEverything() {
    Status ended;
    std::vector<Pending> pending;
    {
      MutexLock lock(mutex_);
      ended = ended_;
      pending.swap(inbox_);
      for (Delivery& delivery : deliveries_) taking_.push_back(std::move(delivery));
      deliveries_.clear();
      waiting_ = 0;
    }
    for (int64_t slot = 0; slot < table_.size(); ++slot) {
      if (running_[static_cast<size_t>(slot)]) End(slot, ended);
    }
    while (!queue_.empty()) queue_.Pop().done(ended);
    for (Pending& waiting : pending) {
      waiting.done(waiting.refusal.ok() ? ended : std::move(waiting.refusal));
    }
    for (Delivery& delivery : taking_) {
      if (delivery.taken) delivery.taken(ended);
    }
    taking_.clear();
  }

  const int64_t vocab_size_, context_, waiting_max_;

  // The engine's thread only.
  std::unique_ptr<EngineDevice> device_;
  SlotTable table_;
  const std::vector<int64_t> prefill_chunks_;
  std::vector<std::optional<Pending>> running_;  // by slot
  WaitingQueue<Pending> queue_;
  std::vector<Delivery> taking_;
  std::vector<uint64_t> cancelling_;
  DecodeInputs inputs_;
  bool inputs_changed_ = true;
  int64_t chunks_since_decode_ = 0;

  std::atomic<int64_t> version_;
  std::atomic<std::thread::id> thread_id_{};
  std::atomic<uint64_t> next_id_{1};
  mutable Mutex mutex_;
  CondVar changed_;
  std::string digest_ FB_GUARDED_BY(mutex_);
  std::vector<Pending> inbox_ FB_GUARDED_BY(mutex_);
  std::vector<Delivery> deliveries_ FB_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancels_ FB_GUARDED_BY(mutex_);
  Status ended_ FB_GUARDED_BY(mutex_);  // not OK: shut down or failed, and why
  int64_t waiting_ FB_GUARDED_BY(mutex_) = 0;
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
  FB_ASSIGN_OR_RETURN(const EngineDeviceOptions resolved, ResolveOptions(options, model->config()));
  FB_ASSIGN_OR_RETURN(std::shared_ptr<DeviceWeights> weights,
                      UploadWeights(*model, client, initial));
  FB_ASSIGN_OR_RETURN(std::unique_ptr<EngineDevice> device,
                      EngineDevice::Create(resolved, client, *model, std::move(weights)));
  return std::unique_ptr<Engine>(
      std::make_unique<XlaEngine>(options, resolved, client, std::move(model), std::move(device)));
}

}  // namespace forebay::rollout
