#include "forebay/learner/learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/learner/adaptive_shapes.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/checkpoint_writer.h"
#include "forebay/learner/learner_options.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/schedule.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/learner/train_batch.h"
#include "forebay/learner/train_step.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::learner {
namespace {

// A lease is asked for in slices, so that a stop request is seen soon, and the end of the step that
// the device computes meanwhile even sooner.
constexpr double kLeaseSliceSeconds = 0.2;
// Longer and longer ones: short steps are published at once, long ones are not asked about often.
constexpr double kBusyLeaseSliceSeconds = 0.005, kBusyLeaseSliceSecondsMax = 0.02;
// So many micro-batches are handed over before the step before is finished: enough work for the
// time that takes, and little enough that no plugin makes their sender wait (xla/client.h).
constexpr size_t kMicroBatchesAhead = 8;

using weights::Snapshot;

// A step from its batch on.
struct PlannedStep {
  StepMetrics metrics;
  std::vector<MicroBatch> micro_batches;  // empty once they are handed over
  bool on_device = false;                 // it has any
};

void CopyOutcome(const StepOutcome& outcome, StepMetrics* m) {
  const LossSums& sums = outcome.sums;
  m->updated = outcome.updated;
  m->non_finite = !outcome.updated;
  m->loss = sums.loss();
  m->ratio_mean = sums.PerToken(kRatioSum);
  m->clip_fraction = sums.PerToken(kClippedCount);
  m->capped_fraction = sums.PerToken(kCappedCount);
  m->kl = sums.PerToken(kKlSum);
  m->entropy = sums.PerToken(kEntropySum);
  m->logprob_gap_max = sums.slots[kGapMax];
  m->grad_norm = outcome.grad_norm;
  m->upload_s = outcome.upload_seconds;
  m->device_s = outcome.device_seconds;
  m->dispatch_gap_s = outcome.idle_seconds;
}

// The first micro-batches, or the others.
std::span<const MicroBatch> Ahead(const PlannedStep& step) {
  const std::span<const MicroBatch> all = step.micro_batches;
  return all.first(std::min(all.size(), kMicroBatchesAhead));
}
std::span<const MicroBatch> Rest(const PlannedStep& step) {
  return std::span<const MicroBatch>(step.micro_batches).subspan(Ahead(step).size());
}

class LearnerImpl final : public Learner {
 public:
  LearnerImpl(const LearnerOptions& options, std::unique_ptr<TrainStep> train,
              std::unique_ptr<AdaptiveShapes> shapes, const LearnerState& state,
              weights::TensorMap params)
      : options_(options),
        batch_options_(BatchOptions(options)),
        train_(std::move(train)),
        shapes_(std::move(shapes)),
        step_(state.step),
        policy_version_(state.policy_version),
        last_batch_(state.committed_batch) {
    snapshot_ = std::make_shared<Snapshot>(Snapshot{policy_version_, std::move(params)});
  }

  Status Run(buffer::Buffer& buffer, const LearnerHooks& hooks, std::stop_token stop) override {
    std::optional<CheckpointWriter> writer;
    if (!options_.checkpoint_folder.empty()) {
      writer.emplace(
          CheckpointWriter::Options{options_.checkpoint_folder, options_.checkpoints_kept},
          [&](const CheckpointReport& report) { OnWritten(report, buffer, hooks); });
    }
    Status stepped = StepUntilDone(buffer, hooks, writer ? &*writer : nullptr, stop);
    train_->DropGradients();  // of a step that an error kept from its update
    if (!writer) return stepped;
    const Status saved = Finish(*writer, hooks);
    return stepped.ok() ? saved : stepped;
  }

  Result<StepMetrics> Step(const buffer::Batch& batch) override {
    const TimePoint start = Now();
    train_->ForgetIdle();
    FB_ASSIGN_OR_RETURN(PlannedStep step, Plan(batch, /*ahead=*/0));
    FB_RETURN_IF_ERROR(train_->AddGradients(step.micro_batches));
    FB_RETURN_IF_ERROR(StartUpdate(step));
    FB_RETURN_IF_ERROR(Complete(&step));
    step.metrics.wall_s = Seconds(Now() - start);
    return std::move(step.metrics);
  }

  std::shared_ptr<const Snapshot> snapshot() const override { return snapshot_; }

  Result<LearnerState> State() const override {
    LearnerState state{
        .step = step_, .policy_version = policy_version_, .committed_batch = last_batch_};
    FB_ASSIGN_OR_RETURN(state.train, train_->State());
    // Shared, not copied again.
    if (!state.train.params.empty()) return state;
    if (snapshot_->policy_version != policy_version_) {
      return FailedPrecondition(fmt::format(
          "the weights of version {} were not copied from the device", policy_version_));
    }
    state.train.params = snapshot_->tensors;
    return state;
  }

  int64_t step() const override { return step_; }
  int64_t policy_version() const override { return policy_version_; }
  const std::vector<BucketShape>& buckets() const override { return shapes_->current(); }
  int64_t programs_ahead() const override { return shapes_->programs_ahead(); }

 private:
  // The batch's part of a step that comes `ahead` steps after those that are done.
  Result<PlannedStep> Plan(const buffer::Batch& batch, int64_t ahead) {
    const int64_t last_batch = last_batch_ + ahead, policy_version = policy_version_ + ahead;
    if (batch.sequence != last_batch + 1) {
      return FailedPrecondition(fmt::format(
          "the weights hold batches up to {}, so the next one is {}, not {}: none is trained on "
          "twice and "
          "none is skipped; open the buffer with the committed_batch of the restored checkpoint",
          last_batch, last_batch + 1, batch.sequence));
    }
    if (batch.learner_version != policy_version) {
      return FailedPrecondition(fmt::format(
          "batch {} was leased at version {}, the learner is at {}: its staleness was judged for "
          "other "
          "weights; open the buffer with the committed_batch of the restored checkpoint",
          batch.sequence, batch.learner_version, policy_version));
    }
    const TimePoint start = Now();
    const int64_t steps_done = step_ + ahead;
    shapes_->BeforeStep(steps_done, *train_);
    FB_ASSIGN_OR_RETURN(TrainBatch built,
                        BuildTrainBatch(batch, batch_options_, shapes_->current()));
    PlannedStep step{.metrics = std::move(built.metrics),
                     .micro_batches = std::move(built.micro_batches)};
    step.on_device = !step.micro_batches.empty();
    StepMetrics& m = step.metrics;
    m.step = steps_done + 1;
    m.learning_rate = LearningRate(options_.schedule, steps_done);
    m.shapes = static_cast<int64_t>(shapes_->current().size());
    shapes_->AfterStep(m.step, built.lengths, *train_);
    m.pack_s = Seconds(Now() - start);
    return step;
  }

  Status StartUpdate(PlannedStep& step) {
    step.micro_batches.clear();
    return step.on_device ? train_->StartUpdate(step.metrics.learning_rate) : OkStatus();
  }

  // Waits for the step's update and makes the next version of it.
  Status Complete(PlannedStep* step) {
    StepMetrics& m = step->metrics;
    if (step->on_device) {
      FB_ASSIGN_OR_RETURN(const StepOutcome outcome, train_->FinishUpdate());
      CopyOutcome(outcome, &m);
    }
    // From here on the batch is in the weights, whatever else fails.
    last_batch_ = m.batch_sequence;
    step_ = m.step;
    const TimePoint stepped = Now();
    FB_RETURN_IF_ERROR(MakeSnapshot(m.updated));
    const TimePoint copied = Now();
    if (m.updated || weights_digest_.empty()) weights_digest_ = weights::Digest(snapshot_->tensors);
    m.weights_digest = weights_digest_;
    m.digest_s = Seconds(Now() - copied);
    m.publish_s = Seconds(Now() - stepped);
    m.policy_version = policy_version_;
    m.programs = train_->programs();
    m.programs_ahead = shapes_->programs_ahead();
    m.compile_ahead_error = shapes_->status().message();
    return OkStatus();
  }

  Status StepUntilDone(buffer::Buffer& buffer, const LearnerHooks& hooks, CheckpointWriter* writer,
                       const std::stop_token& stop) {
    train_->ForgetIdle();
    lease_wait_s_ = 0;
    std::optional<PlannedStep> running;  // its update is under way
    while (true) {
      Result<std::optional<PlannedStep>> next = std::optional<PlannedStep>();
      if (step_ + (running ? 1 : 0) < options_.steps && !stop.stop_requested()) {
        next = Next(buffer, hooks, writer, running.has_value(), stop);
      }
      if (running) {
        // Also when the next one failed: this one is in the weights.
        FB_RETURN_IF_ERROR(Deliver(&*running, buffer, hooks, writer));
        running.reset();
      } else if (next.ok() && !*next) {
        return OkStatus();
      }
      FB_RETURN_IF_ERROR(next.status());
      if (!*next) continue;
      running = std::move(*next);
      FB_RETURN_IF_ERROR(train_->AddGradients(Rest(*running)));
      FB_RETURN_IF_ERROR(StartUpdate(*running));
    }
  }

  // The next batch, packed, and its first gradients handed over. nullopt: stop was requested, or
  // `busy`, the device ended its step before there was a batch.
  Result<std::optional<PlannedStep>> Next(buffer::Buffer& buffer, const LearnerHooks& hooks,
                                          CheckpointWriter* writer, bool busy,
                                          const std::stop_token& stop) {
    const TimePoint asked = Now();
    FB_ASSIGN_OR_RETURN(const auto batch,
                        busy ? LeaseAhead(buffer, stop) : Lease(buffer, hooks, writer, stop));
    double waited = busy ? 0 : Seconds(Now() - asked);
    if (!busy) {
      const auto starved = std::exchange(starved_since_, std::nullopt);
      // Not there for long: there was no batch either while the step before was published.
      if (starved && waited > kLeaseSliceSeconds) waited = Seconds(Now() - *starved);
    }
    lease_wait_s_ += waited;
    if (!batch) return std::optional<PlannedStep>();
    FB_ASSIGN_OR_RETURN(PlannedStep step, Plan(*batch, busy ? 1 : 0));
    step.metrics.lease_wait_s = waited;
    FB_RETURN_IF_ERROR(train_->AddGradients(Ahead(step)));
    return std::optional<PlannedStep>(std::move(step));
  }

  // Ends the step, and tells everybody.
  Status Deliver(PlannedStep* step, buffer::Buffer& buffer, const LearnerHooks& hooks,
                 CheckpointWriter* writer) {
    FB_RETURN_IF_ERROR(Complete(step));
    StepMetrics& m = step->metrics;
    FB_RETURN_IF_ERROR(buffer.MarkTrained(m.batch_sequence));
    const TimePoint done = Now();
    if (hooks.publish) hooks.publish(snapshot_);
    if (writer != nullptr) {
      FB_RETURN_IF_ERROR(MaybeCheckpoint(*writer, hooks));
    } else {
      FB_RETURN_IF_ERROR(buffer.Commit(m.batch_sequence));
    }
    m.publish_s += Seconds(Now() - done);
    if (step->on_device) {
      // The device was idle while a batch was waited for, by steps that it had no part in, too.
      m.dispatch_gap_s = std::max(0.0, m.dispatch_gap_s - lease_wait_s_);
      lease_wait_s_ = 0;
    }
    m.wall_s = m.device_s + m.lease_wait_s + m.dispatch_gap_s;
    if (hooks.metrics) hooks.metrics(m);
    return OkStatus();
  }

  // A batch for the version that the step under way makes. nullopt: the step ended first, or stop
  // was requested, or the device has stalled, which FinishUpdate says.
  Result<std::optional<buffer::Batch>> LeaseAhead(buffer::Buffer& buffer,
                                                  const std::stop_token& stop) {
    double slice = kBusyLeaseSliceSeconds;
    while (!stop.stop_requested() && !train_->Stalled()) {
      auto batch =
          buffer.Lease(options_.groups_per_step, policy_version_ + 1, Now() + FromSeconds(slice));
      if (batch.ok()) return std::optional<buffer::Batch>(std::move(*batch));
      if (batch.status().code() != StatusCode::kDeadlineExceeded) return batch.status();
      if (train_->Idle()) {
        starved_since_ = Now();
        break;
      }
      slice = std::min(2 * slice, kBusyLeaseSliceSecondsMax);
    }
    return std::optional<buffer::Batch>();
  }

  // nullopt: stop was requested.
  Result<std::optional<buffer::Batch>> Lease(buffer::Buffer& buffer, const LearnerHooks& hooks,
                                             CheckpointWriter* writer,
                                             const std::stop_token& stop) {
    const TimePoint deadline = Now() + FromSeconds(options_.lease_deadline_s);
    while (!stop.stop_requested()) {
      const TimePoint slice = std::min(deadline, Now() + FromSeconds(kLeaseSliceSeconds));
      auto batch = buffer.Lease(options_.groups_per_step, policy_version_, slice);
      if (batch.ok()) return std::optional<buffer::Batch>(std::move(*batch));
      if (batch.status().code() != StatusCode::kDeadlineExceeded) return batch.status();
      // The episodes that are missing may wait for room that only a commit makes.
      if (writer != nullptr) FB_RETURN_IF_ERROR(MaybeCheckpoint(*writer, hooks));
      if (Now() < deadline) continue;
      return DeadlineExceeded(fmt::format(
          "the learner waited {} s for the batch of step {}: {}. Are actors alive, and is an "
          "episode shorter than the deadline?",
          options_.lease_deadline_s, step_ + 1, batch.status().message()));
    }
    return std::optional<buffer::Batch>();
  }

  // The next version's host copies. A step that changed nothing shares those of the version before.
  Status MakeSnapshot(bool updated) {
    auto next = std::make_shared<Snapshot>();
    next->policy_version = ++policy_version_;
    if (updated) {
      FB_ASSIGN_OR_RETURN(next->tensors, train_->Params());
    } else {
      next->tensors = snapshot_->tensors;
    }
    snapshot_ = std::move(next);
    return OkStatus();
  }

  Result<CheckpointData> Capture(const LearnerHooks& hooks) const {
    FB_ASSIGN_OR_RETURN(LearnerState state, State());
    CheckpointData data{.state = std::move(state),
                        .schedule = options_.schedule,
                        .lora = options_.lora,
                        .seed = options_.seed,
                        .config_hash = options_.config_hash};
    if (hooks.app_state) data.app_state = hooks.app_state();
    return data;
  }

  // Starts a checkpoint when one is due or wanted and none is in flight; else the next step tries
  // again.
  Status MaybeCheckpoint(CheckpointWriter& writer, const LearnerHooks& hooks) {
    if (step_ == captured_step_ || step_ >= options_.steps || writer.busy()) return OkStatus();
    const int64_t every = options_.checkpoint_every_steps;
    const bool due = every > 0 && step_ - captured_step_ >= every;
    if (!due && !(hooks.checkpoint_wanted && hooks.checkpoint_wanted())) return OkStatus();
    FB_ASSIGN_OR_RETURN(CheckpointData data, Capture(hooks));
    captured_step_ = step_;
    writer.TryWrite(std::move(data));
    return OkStatus();
  }

  Status Finish(CheckpointWriter& writer, const LearnerHooks& hooks) {
    const TimePoint deadline = Now() + FromSeconds(options_.checkpoint_deadline_s);
    Status before = writer.Wait(deadline);
    if (before.ok() && captured_step_ == step_) return OkStatus();
    FB_ASSIGN_OR_RETURN(CheckpointData data, Capture(hooks));
    captured_step_ = step_;
    if (!writer.TryWrite(std::move(data))) return before;
    return writer.Wait(deadline);
  }

  static void OnWritten(const CheckpointReport& report, buffer::Buffer& buffer,
                        const LearnerHooks& hooks) {
    CheckpointReport final_report = report;
    if (report.status.ok()) final_report.status = buffer.Commit(report.committed_batch);
    if (final_report.status.ok() && report.releasable_batch > 0) {
      final_report.status = buffer.Release(report.releasable_batch);
    }
    if (hooks.checkpoint) hooks.checkpoint(final_report);
  }

  const LearnerOptions options_;
  const TrainBatchOptions batch_options_;
  const std::unique_ptr<TrainStep> train_;
  const std::unique_ptr<AdaptiveShapes> shapes_;  // after train_, which its thread compiles for
  std::shared_ptr<const Snapshot> snapshot_;
  std::string weights_digest_;  // of snapshot_, once a step was done
  int64_t step_;
  int64_t policy_version_;
  int64_t last_batch_;
  double lease_wait_s_ = 0;  // while the device was idle, since it last had something to do
  std::optional<TimePoint> starved_since_;  // the device ended the newest step before a batch came
  int64_t captured_step_ = step_;           // the step of the newest checkpoint, or of the start
};

}  // namespace

Result<std::unique_ptr<Learner>> Learner::Create(const LearnerOptions& options, xla::Client& client,
                                                 const models::Model& model,
                                                 const LearnerState& state) {
  FB_RETURN_IF_ERROR(ValidateOptions(options));
  FB_ASSIGN_OR_RETURN(auto buckets, Buckets(options));
  FB_ASSIGN_OR_RETURN(
      auto shapes, AdaptiveShapes::Create(ShapeOptions(options), std::move(buckets), state.step));
  FB_ASSIGN_OR_RETURN(
      auto train,
      TrainStep::Create(client, model, StepOptions(options, shapes->ToCompile()), state.train));
  FB_ASSIGN_OR_RETURN(auto params, train->Params());
  return std::unique_ptr<Learner>(std::make_unique<LearnerImpl>(
      options, std::move(train), std::move(shapes), state, std::move(params)));
}

}  // namespace forebay::learner
