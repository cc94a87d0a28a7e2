// Runner: the requests of an engine, on its slots and device. All decisions and no threads: the
// engine (xla_engine.cc) calls it from its one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/device.h"
#include "forebay/rollout/engine/device_weights.h"
#include "forebay/rollout/engine/logit_edits.h"
#include "forebay/rollout/engine/slots.h"
#include "forebay/rollout/engine/stop_text.h"
#include "forebay/rollout/engine/waiting.h"
#include "forebay/tokenizer/tokenizer.h"

namespace forebay::rollout {

struct RunnerOptions {
  int64_t vocab_size = 0, context = 0, slots = 0;
  int64_t exact_block = 0;  // see SlotTableOptions
  std::vector<int64_t> prefill_chunks;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;  // null: no stop strings
};

// A request that was checked (CheckRequest).
struct Pending {
  uint64_t id = 0;
  GenerateRequest request;
  std::function<void(Result<GenerateResult>)> done;
  TimePoint arrived = {}, admitted = {}, decode_began = {};
  GenerateResult result = {};
  std::optional<StopText> stop_text = {};
};

// Not thread-safe. Token events are called at once; the answers of requests that have ended wait in
// TakeFinished, so that whoever owns the statistics can show them first.
class Runner {
 public:
  struct Finished {
    std::function<void(Result<GenerateResult>)> done;
    Result<GenerateResult> result;
  };

  Runner(const RunnerOptions& options, std::unique_ptr<EngineDevice> device);

  void Add(Pending pending);
  void Cancel(std::span<const uint64_t> ids);
  // From the next step on. Returns those before: to free them takes longer than to change them, so
  // that is for another thread.
  std::shared_ptr<DeviceWeights> SetWeights(std::shared_ptr<DeviceWeights> weights);
  // Ends what is late, gives free slots to who waits, and runs one program. An error is that of the
  // device, and nothing but EndAll is allowed after it.
  Status Step();
  // Ends every request with `reason`.
  void EndAll(const Status& reason);

  bool idle() const;
  std::vector<Finished> TakeFinished() { return std::exchange(finished_, {}); }
  const DeviceWeights& weights() const { return device_->weights(); }
  int64_t waiting() const { return queue_.size(); }
  // Without `requests` and `waiting`.
  EngineStats stats() const;

 private:
  void Expire(TimePoint now);
  void Admit();
  // Gives the slots whose turn it is the prefix that others hold; up to the first that must run a
  // prefill.
  Status StartPrefills();
  Status PrefillChunk(int64_t slot);
  void BeginDecode(int64_t slot);
  Status DecodeStep();
  Status TakeToken(int64_t slot, const DecodeOutputs& outputs);
  // Why the sequence ends with its last token, if it does.
  Result<std::optional<FinishReason>> Finishes(int64_t slot, Pending& pending) const;
  // Frees the slot and answers its request.
  void End(int64_t slot, Result<GenerateResult> result);
  DecodeSampling Sampling() const;

  const RunnerOptions options_;
  std::unique_ptr<EngineDevice> device_;
  SlotTable table_;
  std::vector<std::optional<Pending>> running_;  // by slot
  WaitingQueue<Pending> queue_;
  std::vector<Finished> finished_;
  DecodeInputs inputs_;
  LogitEdits edits_;
  bool inputs_changed_ = true;
  int64_t prefilled_since_decode_ = 0;  // tokens
  EngineStats stats_;
};

}  // namespace forebay::rollout
