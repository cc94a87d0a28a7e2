// Learner: the loop that turns leased batches into policy versions.
//
//   lease -> pack -> step -> publish -> (checkpoint, then commit the batches it holds)
//
// One optimizer step a batch, one policy version a step, no-ops included: pacing and staleness
// count batches. The device does not wait for the rest: while it computes one step, the next batch
// is leased (for the version that the step will make, so that ages are exact), packed and handed
// over; while it computes the first gradients of that one, the step's metrics are read, its weights
// copied and published, and a checkpoint's state copied, which a thread of its own writes. Where no
// batch is ready, the step is finished first: what it publishes may be what actors wait for. Given
// the same state, the same batches and the same shapes (LearnerOptions::shape_log),
// every step gives the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/advantages.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/checkpoint_writer.h"
#include "forebay/learner/cost_model.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/schedule.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/learner/token_weights.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

struct LearnerOptions {
  int64_t steps = 100;  // optimizer steps of the whole run, resumed ones included
  int64_t groups_per_step = 4;
  int64_t max_staleness = 4;  // in policy versions
  AdvantageKind advantage = AdvantageKind::kGrpo;
  AggregationOptions aggregation;
  PolicyLossOptions loss;
  OptimizerOptions optimizer;
  LoraOptions lora;  // rank 0: all weights are trained
  ScheduleOptions schedule;
  bool skip_zero_advantage = true;

  int64_t tokens_max = 512;  // of one trajectory: the longest row holds it
  // Ascending. Empty: DefaultShapes, and then what the batches themselves ask for.
  std::vector<int64_t> row_lengths;
  int64_t tokens_per_program = 1024;  // rows * row length of one compiled shape
  int64_t shapes_max = 4;             // when row_lengths is empty
  CostModel cost;                     // of the model's attention
  // When row_lengths is empty: every so many steps the batches seen are planned for anew, in the
  // background. The step after the last of the new programs was compiled uses them. 0: never.
  int64_t replan_every_steps = 8;
  // Where the shapes and the step of each switch are kept (shape_log.h): a learner that starts
  // again uses the same ones at the same steps. "": nowhere.
  std::string shape_log;
  models::LayerLayout layout = models::LayerLayout::kPerLayer;
  xla::DType compute = xla::DType::kF32;  // of activations; weights and sums stay f32
  xla::Mesh mesh = {};                    // the devices that share a step; by default one
  models::ParallelOptions parallel = {};  // how they share it
  bool remat = false;
  int64_t logprob_chunk = 512;  // tokens
  bool entropy_metric = true;

  // Longest wait for one batch; and, 600 at least, for a device that has work to end some of it.
  double lease_deadline_s = 600;
  double checkpoint_deadline_s = 600;   // longest wait for the last checkpoint
  std::string checkpoint_folder;        // "": none; batches are then committed as they are trained
  int64_t checkpoint_every_steps = 10;  // 0: only at the end
  int64_t checkpoints_kept = 2;
  int64_t seed = 0;         // into the manifest
  std::string config_hash;  // into the manifest
};

// All optional. They run on the learner's thread between two steps and should be quick, but
// `checkpoint` runs on the writer's thread.
struct LearnerHooks {
  std::function<void(std::shared_ptr<const weights::Snapshot>)> publish;
  std::function<void(const StepMetrics&)> metrics;
  std::function<void(const CheckpointReport&)> checkpoint;
  // True: a checkpoint is wanted although none is due, because what it commits gives back room that
  // others wait for. Asked after each step and while a batch is waited for.
  std::function<bool()> checkpoint_wanted;
  std::function<std::string()> app_state;  // JSON for the manifest, at the moment of the checkpoint
};

// What the programs of a step are made with (plans, benchmarks).
GradientProgramOptions GradientOptions(const LearnerOptions& options);

class Learner {
 public:
  // Uploads the state and compiles all programs. Blocks. `client` and `model` outlive the learner.
  // kInvalidArgument: an option out of range, or weights that do not fit the model.
  static Result<std::unique_ptr<Learner>> Create(const LearnerOptions& options, xla::Client& client,
                                                 const models::Model& model,
                                                 const LearnerState& state);
  virtual ~Learner() = default;

  // Steps until options.steps are done or `stop` is requested (both OK), then writes the last
  // checkpoint and waits for it. At the target already: zero steps, no lease. Blocks. Errors: the
  // buffer's (kUnavailable when it was closed, with its reason; kDeadlineExceeded after
  // lease_deadline_s), the device's (kDeadlineExceeded: it has stalled), a batch that must not be
  // trained on, or the last checkpoint's. After an error of a lease the last checkpoint has been
  // written too, so that the run can be resumed.
  virtual Status Run(buffer::Buffer& buffer, const LearnerHooks& hooks,
                     std::stop_token stop = {}) = 0;

  // One optimizer step on this batch, outside of Run (replays, benchmarks): no buffer, no hooks, no
  // checkpoint.
  virtual Result<StepMetrics> Step(const buffer::Batch& batch) = 0;

  // The weights that are published now: of the start state, or of the last step.
  virtual std::shared_ptr<const weights::Snapshot> snapshot() const = 0;
  // Everything, as host copies. Blocks.
  virtual Result<LearnerState> State() const = 0;

  virtual int64_t step() const = 0;
  virtual int64_t policy_version() const = 0;
  // What the next step chooses from.
  virtual const std::vector<BucketShape>& buckets() const = 0;
  // Programs compiled in the background so far: no step waited for them. Any thread.
  virtual int64_t programs_ahead() const = 0;
};

}  // namespace forebay::learner
