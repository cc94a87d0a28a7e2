#include "forebay/learner/train_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/learner/device_arrays.h"
#include "forebay/learner/dispatch_clock.h"
#include "forebay/learner/layer_layout.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharded_buffer.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

using weights::TensorMap;
using xla::DType;

using Buffers = std::vector<xla::Buffer>;
using ShapeProgram = std::pair<BucketShape, std::shared_ptr<xla::Executable>>;

void Append(Buffers& buffers, Arguments* arguments) {
  for (xla::Buffer& buffer : buffers) arguments->push_back(&buffer);
}

// The results [from, from + count), moved out.
Buffers Take(Buffers& results, size_t from, size_t count) {
  const auto begin = results.begin() + static_cast<std::ptrdiff_t>(from);
  return {std::move_iterator(begin),
          std::move_iterator(begin + static_cast<std::ptrdiff_t>(count))};
}

// What the optimizer keeps of `trained`, as arrays named "m.NAME".
std::vector<models::ParamSpec> StateArrays(const OptimizerOptions& options,
                                           std::span<const models::ParamSpec> trained,
                                           const xla::Mesh& mesh) {
  std::vector<models::ParamSpec> out;
  for (const StateSpec& s : OptimizerStateSpecs(options, trained, mesh)) {
    out.push_back(
        {.name = s.slot + "." + trained[s.param].name, .shape = s.shape, .partition = s.partition});
  }
  return out;
}

TrainStepOptions For(const xla::Client& client, TrainStepOptions options) {
  options.gradient.host_kernels = client.calls_host_kernels();
  return options;
}

class TrainStepImpl final : public TrainStep {
 public:
  TrainStepImpl(xla::Client& client, const models::Model& model, TrainStepOptions options)
      : client_(client), model_(model), options_(For(client, std::move(options))) {}

  Status Upload(const TrainState& state) {
    FB_RETURN_IF_ERROR(ValidateOptimizer(options_.optimizer));
    params_.specs = model_.Params(options_.gradient.layout);
    FB_ASSIGN_OR_RETURN(const TensorMap params,
                        model_.FromCheckpoint(state.params, options_.gradient.layout));
    FB_RETURN_IF_ERROR(params_.Upload(client_, mesh(), params));
    if (lora()) {
      base_ = state.params;
      FB_ASSIGN_OR_RETURN(adapters_.specs, LoraSpecs(params_.specs, options_.gradient.lora));
      FB_ASSIGN_OR_RETURN(const TensorMap adapters, Adapters(state.adapters));
      FB_RETURN_IF_ERROR(adapters_.Upload(client_, mesh(), adapters));
    } else if (!state.adapters.empty()) {
      return InvalidArgument(
          "the checkpoint has LoRA adapters, but learner.lora_rank is 0: resume with the rank that "
          "it was trained with, or export it and start a new run from the merged model");
    }
    state_.specs = StateArrays(options_.optimizer, trained().specs, mesh());
    if (state.optimizer.empty()) {
      FB_RETURN_IF_ERROR(state_.UploadZeros(client_, mesh()));
    } else {
      FB_ASSIGN_OR_RETURN(const TensorMap tensors, OptimizerTensors(state));
      FB_RETURN_IF_ERROR(state_.Upload(client_, mesh(), tensors));
    }
    updates_ = state.updates;
    return OkStatus();
  }

  Status Compile() {
    if (options_.buckets.empty()) {
      return InvalidArgument("a learner needs at least one row shape to compile");
    }
    FB_RETURN_IF_ERROR(CompileShapes(options_.buckets));
    if (into_sum()) {
      FB_ASSIGN_OR_RETURN(const xla::Program zeros, TraceZeros(trained().specs, mesh()));
      FB_ASSIGN_OR_RETURN(zeros_, CompileOne(zeros));
    } else {
      FB_ASSIGN_OR_RETURN(const xla::Program accumulate, TraceAccumulate(trained().specs, mesh()));
      FB_ASSIGN_OR_RETURN(accumulate_, CompileOne(accumulate));
    }
    FB_ASSIGN_OR_RETURN(const xla::Program apply,
                        TraceApply(trained().specs, options_.optimizer, mesh()));
    FB_ASSIGN_OR_RETURN(apply_, CompileOne(apply));
    if (!lora()) return OkStatus();
    FB_ASSIGN_OR_RETURN(const xla::Program merge, TraceMerge(model_, options_.gradient));
    FB_ASSIGN_OR_RETURN(merge_, CompileOne(merge));
    return OkStatus();
  }

  Status CompileShapes(std::span<const BucketShape> shapes) override {
    for (const BucketShape shape : shapes) {
      if (Gradient(shape) != nullptr) continue;
      FB_ASSIGN_OR_RETURN(const xla::Program program,
                          TraceGradient(model_, options_.gradient, shape));
      FB_ASSIGN_OR_RETURN(auto executable, CompileOne(program));
      MutexLock lock(mutex_);
      gradient_.emplace_back(shape, std::move(executable));
    }
    return OkStatus();
  }

  void KeepShapes(std::span<const BucketShape> shapes) override {
    for (const BucketShape shape : shapes) FB_CHECK(Gradient(shape) != nullptr, shape.ToString());
    MutexLock lock(mutex_);
    std::erase_if(gradient_, [&](const auto& program) {
      return std::ranges::find(shapes, program.first) == shapes.end();
    });
  }

  Result<StepOutcome> Run(std::span<const MicroBatch> batches, double learning_rate) override {
    FB_CHECK(!batches.empty(), "an optimizer step needs a micro-batch");
    FB_CHECK(waiting_.metrics.empty(), "gradients wait for another update");
    ForgetIdle();
    FB_RETURN_IF_ERROR(AddGradients(batches));
    FB_RETURN_IF_ERROR(StartUpdate(learning_rate));
    return FinishUpdate();
  }

  Status AddGradients(std::span<const MicroBatch> batches) override {
    const Status added = TryAddGradients(batches);
    if (!added.ok()) DropGradients();
    return added;
  }

  void DropGradients() override { waiting_ = {}; }

  Status StartUpdate(double learning_rate) override {
    FB_CHECK(!waiting_.metrics.empty(), "an update needs gradients");
    FB_CHECK(!running_, "the update before was not finished");
    FB_RETURN_IF_ERROR(CheckWhole());
    FB_ASSIGN_OR_RETURN(
        xla::Buffer hyper,
        xla::SplitFromVector(client_,
                             HyperParameters(options_.optimizer, learning_rate, updates_ + 1),
                             {DType::kF32, {HyperCount(options_.optimizer)}}, Whole()));
    Arguments arguments;
    trained().AppendTo(&arguments);
    state_.AppendTo(&arguments);
    Append(waiting_.sum, &arguments);
    arguments.push_back(&hyper);
    whole_ = false;  // the arguments are donated
    FB_ASSIGN_OR_RETURN(Buffers results, apply_->Execute(arguments));
    FB_ASSIGN_OR_RETURN(const int64_t piece, Watch(results.back()));
    const size_t n = trained().size();
    trained().buffers = Take(results, 0, n);
    state_.buffers = Take(results, n, state_.size());
    // The device keeps the sum for as long as the update reads it: not beside the next one.
    waiting_.sum.clear();
    running_.emplace(Update{std::move(waiting_), std::move(results.back()), piece + 1});
    waiting_ = {};
    // The update itself is under way, whatever becomes of this: Params tries again and says why
    // not.
    if (lora() && !Merge().ok()) merged_.clear();
    return OkStatus();
  }

  Result<StepOutcome> FinishUpdate() override {
    FB_CHECK(running_.has_value(), "no update was started");
    const Update update = *std::exchange(running_, std::nullopt);
    if (!clock_->Await(update.pieces_end - 1, options_.stall_deadline_s)) {
      return DeadlineExceeded(fmt::format(
          "the device has work, optimizer update {} among it, but ended none of its programs for "
          "{} s: it hangs, or a device of the mesh is lost; resume from a checkpoint",
          updates_ + 1, options_.stall_deadline_s));
    }
    FB_ASSIGN_OR_RETURN(const auto norm, update.norm.ToVector<float>());
    StepOutcome outcome{.grad_norm = static_cast<double>(norm[0]),
                        .updated = std::isfinite(norm[0]),
                        .upload_seconds = update.gradients.upload_seconds};
    for (const xla::Buffer& metric : update.gradients.metrics) {
      FB_ASSIGN_OR_RETURN(const auto values, metric.ToVector<float>());
      outcome.sums.Add(values);
    }
    whole_ = true;
    if (outcome.updated) {
      ++updates_;
    } else {
      merged_.clear();  // nobody asks for the same weights again
    }
    const DispatchClock::Spans spans = clock_->Take(update.pieces_end, Now());
    outcome.device_seconds = spans.busy_seconds;
    outcome.idle_seconds = spans.idle_seconds;
    return outcome;
  }

  bool Idle() const override { return clock_->Idle(); }
  bool Stalled() const override {
    return clock_->StalledSeconds(Now()) >= options_.stall_deadline_s;
  }
  void ForgetIdle() override { clock_->ForgetIdle(Now()); }

  Result<GradientValues> Gradients(const MicroBatch& batch) override {
    Waiting one;
    FB_RETURN_IF_ERROR(StartSum(&one));
    FB_ASSIGN_OR_RETURN(const Buffers results, RunGradient(batch, &one));
    FB_ASSIGN_OR_RETURN(const auto metrics, results.back().ToVector<float>());
    GradientValues values;
    values.sums.Add(metrics);
    FB_ASSIGN_OR_RETURN(TensorMap tensors, ToHost(trained().specs, results));
    if (lora()) {
      values.gradients = SplitLayers(tensors);
    } else {
      FB_ASSIGN_OR_RETURN(values.gradients, model_.ToCheckpoint(tensors, options_.gradient.layout));
    }
    return values;
  }

  Result<TensorMap> Params() override {
    FB_RETURN_IF_ERROR(CheckWhole());
    TensorMap tensors;
    if (lora()) {
      if (merged_.empty()) FB_RETURN_IF_ERROR(Merge());
      FB_ASSIGN_OR_RETURN(tensors, ToHost(params_.specs, merged_));
      merged_.clear();
    } else {
      FB_ASSIGN_OR_RETURN(tensors, params_.ToHost());
    }
    return model_.ToCheckpoint(tensors, options_.gradient.layout);
  }

  Result<TrainState> State() const override {
    FB_RETURN_IF_ERROR(CheckWhole());
    TrainState state{.params = base_, .updates = updates_};
    FB_ASSIGN_OR_RETURN(const TensorMap adapters, adapters_.ToHost());
    state.adapters = SplitLayers(adapters);
    FB_ASSIGN_OR_RETURN(const TensorMap optimizer, state_.ToHost());
    state.optimizer = SplitLayers(optimizer);
    return state;
  }

  int64_t updates() const override { return updates_; }
  int64_t programs() const override { return programs_; }

 private:
  // Gradients that wait for their update.
  struct Waiting {
    Buffers sum, metrics;
    // Those that compute them: KeepShapes may drop others' last reference.
    std::vector<std::shared_ptr<xla::Executable>> programs;
    double upload_seconds = 0;
  };
  // An update that was handed over.
  struct Update {
    Waiting gradients;
    xla::Buffer norm;
    int64_t pieces_end = 0;  // of the clock's: up to the update itself
  };

  Status CheckWhole() const {
    if (running_) return FailedPrecondition("an optimizer update is under way on the device");
    if (whole_) return OkStatus();
    return FailedPrecondition(
        "the device failed during an optimizer update: weights and moments are lost; resume from a "
        "checkpoint");
  }

  // Null when it is not compiled.
  std::shared_ptr<xla::Executable> Gradient(BucketShape shape) const {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find(gradient_, shape, &ShapeProgram::first);
    return found == gradient_.end() ? nullptr : found->second;
  }

  Result<std::shared_ptr<xla::Executable>> CompileOne(const xla::Program& program) {
    ++programs_;
    return client_.Compile(program);
  }

  const xla::Mesh& mesh() const { return options_.gradient.mesh; }
  bool into_sum() const { return options_.gradient.into_sum; }
  bool lora() const { return options_.gradient.lora.rank > 0; }
  // What gradients are of, and what the optimizer updates.
  DeviceArrays& trained() { return lora() ? adapters_ : params_; }

  Result<TensorMap> Adapters(const TensorMap& given) const {
    if (given.empty()) return InitialAdapters(adapters_.specs, options_.adapter_seed);
    return JoinLayers(given, adapters_.specs, "the checkpoint's set of LoRA adapters");
  }

  Result<TensorMap> OptimizerTensors(const TrainState& state) const {
    const std::string_view kind = OptimizerKindName(options_.optimizer.kind);
    Result<TensorMap> tensors =
        JoinLayers(state.optimizer, state_.specs,
                   fmt::format("the optimizer's state (for learner.optimizer = \"{}\")", kind));
    if (tensors.ok() || state.optimizer_format == kOptimizerStateFormat) return tensors;
    return InvalidArgument(fmt::format(
        "{}. The checkpoint's optimizer state has format {}, of an earlier build; this one has "
        "format {}, which differs for adamw_8bit. Its weights are good: export the run and start a "
        "new one from the model",
        tensors.status().message(), state.optimizer_format, kOptimizerStateFormat));
  }

  xla::Sharding Whole() const { return {.mesh = mesh(), .spec = {}}; }
  xla::Sharding Planes() const { return {.mesh = mesh(), .spec = PlanesPartition()}; }

  // Work was handed over whose results are there when `result` is. -> its number on the clock.
  Result<int64_t> Watch(const xla::Buffer& result) {
    const int64_t piece = clock_->Enqueued(Now());
    const Status watched =
        result.OnReady([clock = clock_, piece] { clock->Completed(piece, Now()); });
    if (watched.ok()) return piece;
    clock_->Completed(piece, Now());  // else it would run for ever
    return watched;
  }

  Status TryAddGradients(std::span<const MicroBatch> batches) {
    if (!running_) FB_RETURN_IF_ERROR(CheckWhole());
    for (const MicroBatch& batch : batches) {
      FB_RETURN_IF_ERROR(StartSum(&waiting_));
      FB_ASSIGN_OR_RETURN(Buffers gradients, RunGradient(batch, &waiting_));
      waiting_.metrics.push_back(std::move(gradients.back()));
      gradients.pop_back();
      if (into_sum() || waiting_.sum.empty()) {
        waiting_.sum = std::move(gradients);
        continue;
      }
      Arguments arguments;
      Append(waiting_.sum, &arguments);
      Append(gradients, &arguments);
      FB_ASSIGN_OR_RETURN(waiting_.sum, accumulate_->Execute(arguments));
      FB_RETURN_IF_ERROR(Watch(waiting_.sum.back()).status());
    }
    return OkStatus();
  }

  // With into_sum the first gradients are added to zeros.
  Status StartSum(Waiting* waiting) {
    if (!into_sum() || !waiting->sum.empty()) return OkStatus();
    Arguments arguments;
    trained().AppendTo(&arguments);
    FB_ASSIGN_OR_RETURN(waiting->sum, zeros_->Execute(arguments));
    return Watch(waiting->sum.back()).status();
  }

  // Gradients of one micro-batch (with into_sum: added to waiting->sum, which is donated), then its
  // metrics.
  Result<Buffers> RunGradient(const MicroBatch& batch, Waiting* waiting) {
    auto program = Gradient(batch.shape);
    FB_CHECK(program != nullptr,
             fmt::format("no program was compiled for {}", batch.shape.ToString()));
    const TimePoint start = Now();
    const BucketShape shape = batch.shape;
    FB_ASSIGN_OR_RETURN(
        xla::Buffer ints,
        xla::SplitFromVector(client_, batch.ints,
                             {DType::kS32, {kIntPlanes, shape.rows, shape.length}}, Planes()));
    FB_ASSIGN_OR_RETURN(
        xla::Buffer floats,
        xla::SplitFromVector(client_, batch.floats,
                             {DType::kF32, {kFloatPlanes, shape.rows, shape.length}}, Planes()));
    waiting->upload_seconds += Seconds(Now() - start);

    Arguments arguments;
    params_.AppendTo(&arguments);
    adapters_.AppendTo(&arguments);
    if (into_sum()) Append(waiting->sum, &arguments);
    arguments.push_back(&ints);
    arguments.push_back(&floats);
    FB_ASSIGN_OR_RETURN(Buffers results, program->Execute(arguments));
    waiting->programs.push_back(std::move(program));
    FB_RETURN_IF_ERROR(Watch(results.back()).status());
    return results;
  }

  // The effective weights, for Params. Handed over with the update, so that they do not queue
  // behind the next step's gradients.
  Status Merge() {
    merged_.clear();  // first: there may be no room for two
    Arguments arguments;
    params_.AppendTo(&arguments);
    adapters_.AppendTo(&arguments);
    FB_ASSIGN_OR_RETURN(merged_, merge_->Execute(arguments));
    return Watch(merged_.back()).status();
  }

  xla::Client& client_;
  const models::Model& model_;
  const TrainStepOptions options_;
  mutable Mutex mutex_;
  std::vector<ShapeProgram> gradient_ FB_GUARDED_BY(mutex_);
  std::shared_ptr<xla::Executable> zeros_, accumulate_;  // with into_sum one, without it the other
  std::shared_ptr<xla::Executable> apply_, merge_;
  DeviceArrays params_, adapters_, state_;
  Buffers merged_;  // with adapters: of the newest update, until they were copied
  Waiting waiting_;
  std::optional<Update> running_;
  // Shared with callbacks that may come after this object is gone.
  const std::shared_ptr<DispatchClock> clock_ = std::make_shared<DispatchClock>(Now());
  TensorMap base_;  // with adapters: the checkpoint's own tensors
  bool whole_ = true;
  int64_t updates_ = 0;
  std::atomic<int64_t> programs_ = 0;
};

}  // namespace

void LossSums::Add(std::span<const float> metrics) {
  FB_CHECK(metrics.size() == slots.size(), "metric slots");
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto value = static_cast<double>(metrics[i]);
    slots[i] = i == kGapMax ? std::max(slots[i], value) : slots[i] + value;
  }
}

double LossSums::PerToken(MetricSlot slot) const {
  return tokens() > 0 ? slots[slot] / tokens() : 0;
}

Result<std::unique_ptr<TrainStep>> TrainStep::Create(xla::Client& client,
                                                     const models::Model& model,
                                                     const TrainStepOptions& options,
                                                     const TrainState& state) {
  auto step = std::make_unique<TrainStepImpl>(client, model, options);
  FB_RETURN_IF_ERROR(step->Upload(state));
  FB_RETURN_IF_ERROR(step->Compile());
  return std::unique_ptr<TrainStep>(std::move(step));
}

}  // namespace forebay::learner
