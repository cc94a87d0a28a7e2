// TrainStep: the policy's weights and optimizer state on a device, and the compiled programs that
// advance them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::learner {

struct TrainStepOptions {
  GradientProgramOptions gradient;
  OptimizerOptions optimizer;
  std::vector<BucketShape> buckets;  // to begin with; each is one compiled program
  uint64_t adapter_seed = 0;         // of new adapters
  double stall_deadline_s = 600;     // longest that the device may take to end one more program
};

// Everything on the device, in host memory. Names and layouts are those of the Hugging Face
// checkpoint, one array a layer for adapters and optimizer state too, so that a checkpoint can be
// read with another layer layout. Copies share the tensors.
struct TrainState {
  weights::TensorMap params;     // with adapters: the base model's, which never change
  weights::TensorMap adapters;   // empty: new ones, if the options want any
  weights::TensorMap optimizer;  // "m.NAME", ... (OptimizerStateSpecs); empty: zeros
  int64_t optimizer_format = kOptimizerStateFormat;  // of a checkpoint of an earlier build: less
  int64_t updates = 0;                               // optimizer updates behind the state
};

// Sums over the loss tokens of any number of micro-batches; means are formed once, from the sums.
struct LossSums {
  std::array<double, kMetricSlots> slots{};
  void Add(std::span<const float> metrics);
  double loss() const { return slots[kLossSum]; }
  double tokens() const { return slots[kTokenCount]; }
  // slots[slot] / tokens; 0 without tokens.
  double PerToken(MetricSlot slot) const;
};

struct StepOutcome {
  LossSums sums;
  double grad_norm = 0;
  bool updated = false;  // false: the norm was not finite, nothing changed
  // Of the device: how long it computed, and how long it had nothing to do since the update before,
  // or since ForgetIdle. And how long the caller took to hand over micro-batches.
  double device_seconds = 0, idle_seconds = 0, upload_seconds = 0;
};

// One thread at a time, CompileShapes excepted.
//
// Run is one optimizer step, waited for. A caller that keeps the device busy takes it in pieces, so
// that the device has the next step's gradients to compute while the caller reads the outcome of
// the update before and copies its weights:
//
//   AddGradients(1)  StartUpdate
//   AddGradients(2)  FinishUpdate -> outcome of 1; Params, State: after 1  StartUpdate
//   AddGradients(3)  FinishUpdate -> outcome of 2 ...
//
// Same programs, same order: the bits are those of Run.
class TrainStep {
 public:
  // Uploads the state and compiles every program: only CompileShapes compiles later. Blocks.
  // `client` and `model` outlive it. kInvalidArgument: the state does not fit the model, the
  // adapters or the optimizer (what is missing or of the wrong shape), a bad option, or no bucket.
  static Result<std::unique_ptr<TrainStep>> Create(xla::Client& client, const models::Model& model,
                                                   const TrainStepOptions& options,
                                                   const TrainState& state);
  virtual ~TrainStep() = default;

  // Compiles what is missing for more shapes; Run takes them from then on. Blocks for seconds. Any
  // thread, while others run steps: nobody else waits for it. An error changes nothing.
  virtual Status CompileShapes(std::span<const BucketShape> shapes) = 0;
  // Forgets the programs of all other shapes. CHECKs that these are compiled.
  virtual void KeepShapes(std::span<const BucketShape> shapes) = 0;

  // One optimizer update on the sum of all micro-batches' losses. Blocks until done. CHECKs that
  // there is one and that its shape is compiled. An error of the device leaves the state
  // unusable.
  virtual Result<StepOutcome> Run(std::span<const MicroBatch> batches, double learning_rate) = 0;

  // Hands over the gradients of these micro-batches, added to those that wait for their update, of
  // the weights as they will be after the update under way. Does not wait for the device, unless
  // its plugin has too much queued (xla/client.h). CHECKs that the shapes are compiled. After an
  // error no gradients wait.
  virtual Status AddGradients(std::span<const MicroBatch> batches) = 0;
  virtual void DropGradients() = 0;
  // Hands over the update with the gradients that wait. Does not wait for the device. CHECKs that
  // there are some, and that the update before was finished.
  virtual Status StartUpdate(double learning_rate) = 0;
  // Blocks until the update under way is done. CHECKs that there is one. An error of the device
  // leaves the state unusable; kDeadlineExceeded: it has stalled.
  virtual Result<StepOutcome> FinishUpdate() = 0;
  // The device has computed all that was handed over.
  virtual bool Idle() const = 0;
  // It has work, and ended nothing for stall_deadline_s.
  virtual bool Stalled() const = 0;
  // Idle time of the device until now is in no outcome.
  virtual void ForgetIdle() = 0;

  // Loss sums and gradients (checkpoint names; with adapters: theirs) of one micro-batch, without
  // an update. For tests and analysis.
  struct GradientValues {
    LossSums sums;
    weights::TensorMap gradients;
  };
  virtual Result<GradientValues> Gradients(const MicroBatch& batch) = 0;

  // Copies to host memory. Block, for the update that was finished last, not for gradients that
  // were handed over since. kFailedPrecondition while an update is under way, and after a device
  // error in the middle of one.
  // What is published: the weights, with what adapters add to them.
  virtual Result<weights::TensorMap> Params() = 0;
  // For a checkpoint. Without adapters `params` stays empty: Params() has them.
  virtual Result<TrainState> State() const = 0;

  virtual int64_t updates() const = 0;
  // Programs handed to the compiler or its cache so far. Any thread.
  virtual int64_t programs() const = 0;
};

}  // namespace forebay::learner
