// EngineDevice: the compiled programs of an engine with the cache and weights they run on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/engine/device_weights.h"
#include "forebay/rollout/engine/logit_edits.h"
#include "forebay/rollout/engine/programs.h"
#include "forebay/xla/client.h"

namespace forebay::rollout {

struct EngineDeviceOptions {
  EngineShape shape;
  std::vector<int64_t> context_buckets;  // ascending; the last is shape.context
  std::vector<int64_t> prefill_chunks;   // ascending; none above shape.context
};

// What a decode step reads of each slot.
struct DecodeInputs {
  explicit DecodeInputs(int64_t slots);
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;  // that the tokens take; negative: idle
  std::vector<float> temperatures;
  std::vector<uint32_t> seeds;  // two a slot
  std::vector<int32_t> top_k;
  std::vector<float> top_p, min_p;
};

// What happens between the logits of a step and its tokens, for the slots that ask for it.
struct DecodeSampling {
  const LogitEdits* edits = nullptr;  // null: no slot has any
  bool filter = false;                // by top_k, top_p and min_p of the inputs
  int32_t top_logprobs = 0;           // alternatives to find
};

struct DecodeOutputs {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  // [slots, kTopLogprobsMax], of which the asked for are filled; or empty.
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  // The first `count` of a slot, those that can be sampled.
  std::vector<TokenLogprob> Top(int64_t slot, int32_t count) const;
};

// One thread. Every call blocks until the device is done. After an error the cache may be gone: no
// call is allowed any more.
class EngineDevice {
 public:
  // Compiles and runs every program once.
  static Result<std::unique_ptr<EngineDevice>> Create(const EngineDeviceOptions& options,
                                                      xla::Client& client,
                                                      const models::Model& model,
                                                      std::shared_ptr<DeviceWeights> weights);

  // One step of all slots that are not idle. With `changed` false, the tokens and positions are
  // those that the last step left on the device, and `inputs` only says how many entries are to be
  // attended.
  Result<DecodeOutputs> Decode(const DecodeInputs& inputs, bool changed,
                               const DecodeSampling& sampling = {});
  // Writes the entries of tokens at positions start, start + 1, ...; at most the largest chunk,
  // start + chunk within the context.
  Status Prefill(int64_t slot, int64_t start, int64_t chunk, std::span<const int32_t> tokens);
  // At least the first `entries`.
  Status CopySlot(int64_t from, int64_t to, int64_t entries);
  // Zeros the entries of a slot: what is not finite would spread to whoever takes it next.
  Status ClearSlot(int64_t slot) { return CopySlot(-1, slot, options_.shape.context); }

  const DeviceWeights& weights() const { return *weights_; }
  // Returns those before.
  std::shared_ptr<DeviceWeights> SetWeights(std::shared_ptr<DeviceWeights> weights) {
    return std::exchange(weights_, std::move(weights));
  }
  // Programs that the client handed to the compiler since Create returned: none, or the engine has
  // a bug, where nobody else uses the client.
  int64_t compiles_after_warmup() const { return client_.counters().compiled - warm_compiles_; }

 private:
  EngineDevice(const EngineDeviceOptions& options, int64_t vocab_size, xla::Client& client,
               std::shared_ptr<DeviceWeights> weights);
  Status Compile(Result<xla::Program> program, std::shared_ptr<xla::Executable>* out);
  Status CompileAll(const models::Model& model);
  Status MakeCache(const models::Model& model);
  Status WarmUp();
  // Runs with (parameters,) cache and inputs; keeps the new cache and returns the further results.
  Result<std::vector<xla::Buffer>> Run(xla::Executable& program, bool with_params,
                                       std::span<xla::Buffer* const> inputs);
  Status Load(const DecodeInputs& inputs);
  // Runs a program without cache or parameters.
  Result<std::vector<xla::Buffer>> Call(xla::Executable& program,
                                        std::vector<xla::Buffer*> inputs) {
    return program.Execute(inputs);
  }
  Status EditLogits(const LogitEdits::Arrays& arrays, xla::Executable& program, xla::Buffer& logits,
                    xla::Buffer* edited);
  Status FilterLogits(xla::Buffer& logits, xla::Buffer* filtered);
  // The results of `top_`.
  Result<std::vector<xla::Buffer>> FindTop(int32_t count, xla::Buffer* logits);

  const EngineDeviceOptions options_;
  const int64_t vocab_size_;
  std::vector<int64_t> prefill_buckets_;  // the smallest and the largest context bucket
  xla::Client& client_;
  std::shared_ptr<DeviceWeights> weights_;
  std::map<int64_t, std::shared_ptr<xla::Executable>> decode_;  // by bucket
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<xla::Executable>>
      prefill_;                                               // chunk, bucket
  std::map<int64_t, std::shared_ptr<xla::Executable>> copy_;  // by bucket
  std::shared_ptr<xla::Executable> sample_, filter_, top_;
  std::map<int64_t, std::shared_ptr<xla::Executable>> edit_;  // by the width of the lists
  std::vector<xla::Buffer> cache_;
  // Of the last step: each takes the memory of the one before, which would be new pages else.
  xla::Buffer logits_;
  xla::Buffer tokens_, positions_, temperatures_, seeds_, top_k_, top_p_, min_p_;
  int64_t warm_compiles_ = 0;
};

}  // namespace forebay::rollout
