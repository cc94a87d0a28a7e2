#include "forebay/learner/train_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using weights::HostTensor;
using weights::TensorMap;
using xla::DType;

using Buffers = std::vector<xla::Buffer>;
using Arguments = std::vector<xla::Buffer*>;
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

HostTensor Zeros(const xla::Shape& shape) {
  std::span<std::byte> bytes;
  HostTensor tensor = HostTensor::Allocate(shape, &bytes);
  std::memset(bytes.data(), 0, bytes.size());
  return tensor;
}

class TrainStepImpl final : public TrainStep {
 public:
  TrainStepImpl(xla::Client& client, const models::Model& model, TrainStepOptions options)
      : client_(client),
        model_(model),
        options_(std::move(options)),
        specs_(model.Params(options_.gradient.layout)) {}

  Status Upload(const TrainState& state) {
    FB_ASSIGN_OR_RETURN(const TensorMap params,
                        model_.FromCheckpoint(state.params, options_.gradient.layout));
    FB_ASSIGN_OR_RETURN(params_, ToDevice(params));
    if (state.m.empty() && state.v.empty()) {
      FB_ASSIGN_OR_RETURN(m_, ZerosOnDevice());
      FB_ASSIGN_OR_RETURN(v_, ZerosOnDevice());
    } else {
      FB_ASSIGN_OR_RETURN(m_, MomentsToDevice(state.m, "the optimizer's first moments"));
      FB_ASSIGN_OR_RETURN(v_, MomentsToDevice(state.v, "the optimizer's second moments"));
    }
    updates_ = state.updates;
    return OkStatus();
  }

  Status Compile() {
    if (options_.buckets.empty()) {
      return InvalidArgument("a learner needs at least one row shape to compile");
    }
    FB_RETURN_IF_ERROR(CompileShapes(options_.buckets));
    FB_ASSIGN_OR_RETURN(const xla::Program accumulate, TraceAccumulate(specs_));
    FB_ASSIGN_OR_RETURN(accumulate_, CompileOne(accumulate));
    FB_ASSIGN_OR_RETURN(const xla::Program apply, TraceApply(specs_, options_.optimizer));
    FB_ASSIGN_OR_RETURN(apply_, CompileOne(apply));
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
    FB_RETURN_IF_ERROR(CheckWhole());
    StepOutcome outcome;
    const TimePoint start = Now();
    Buffers sum, metrics;
    for (const MicroBatch& batch : batches) {
      FB_ASSIGN_OR_RETURN(Buffers gradients, RunGradient(batch, &outcome));
      metrics.push_back(std::move(gradients.back()));
      gradients.pop_back();
      if (sum.empty()) {
        sum = std::move(gradients);
        continue;
      }
      Arguments arguments;
      Append(sum, &arguments);
      Append(gradients, &arguments);
      FB_ASSIGN_OR_RETURN(sum, accumulate_->Execute(arguments));
    }
    FB_RETURN_IF_ERROR(Apply(std::move(sum), learning_rate, &outcome));
    for (const xla::Buffer& metric : metrics) {  // last: reading waits for the device
      FB_ASSIGN_OR_RETURN(const auto values, metric.ToVector<float>());
      outcome.sums.Add(values);
    }
    outcome.device_seconds = Seconds(Now() - start) - outcome.upload_seconds;
    return outcome;
  }

  Result<GradientValues> Gradients(const MicroBatch& batch) override {
    StepOutcome outcome;
    FB_ASSIGN_OR_RETURN(const Buffers results, RunGradient(batch, &outcome));
    FB_ASSIGN_OR_RETURN(const auto metrics, results.back().ToVector<float>());
    outcome.sums.Add(metrics);
    FB_ASSIGN_OR_RETURN(TensorMap tensors, ToHost(results));
    return GradientValues{outcome.sums, std::move(tensors)};
  }

  Result<TensorMap> Params() const override {
    FB_RETURN_IF_ERROR(CheckWhole());
    return ToHost(params_);
  }

  Result<TrainState> Moments() const override {
    FB_RETURN_IF_ERROR(CheckWhole());
    TrainState state{.updates = updates_};
    FB_ASSIGN_OR_RETURN(state.m, ToHost(m_));
    FB_ASSIGN_OR_RETURN(state.v, ToHost(v_));
    return state;
  }

  int64_t updates() const override { return updates_; }
  int64_t programs() const override { return programs_; }

 private:
  Status CheckWhole() const {
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

  Result<Buffers> ToDevice(const TensorMap& tensors) {
    Buffers buffers;
    for (const auto& spec : specs_) {
      const auto found = tensors.find(spec.name);
      FB_CHECK(found != tensors.end(), "FromCheckpoint covers every parameter");
      FB_ASSIGN_OR_RETURN(auto buffer, client_.FromHost(found->second.bytes(), spec.shape));
      buffers.push_back(std::move(buffer));
    }
    return buffers;
  }

  Result<Buffers> MomentsToDevice(const TensorMap& moments, std::string_view what) {
    auto tensors = model_.FromCheckpoint(moments, options_.gradient.layout);
    if (!tensors.ok()) return tensors.status().WithContext(what);
    return ToDevice(*tensors);
  }

  Result<Buffers> ZerosOnDevice() {
    Buffers buffers;
    for (const auto& spec : specs_) {
      FB_ASSIGN_OR_RETURN(auto buffer, client_.FromHost(Zeros(spec.shape).bytes(), spec.shape));
      buffers.push_back(std::move(buffer));
    }
    return buffers;
  }

  Result<TensorMap> ToHost(const Buffers& buffers) const {
    TensorMap tensors;
    for (size_t i = 0; i < specs_.size(); ++i) {
      std::span<std::byte> bytes;
      HostTensor tensor = HostTensor::Allocate(specs_[i].shape, &bytes);
      FB_RETURN_IF_ERROR(buffers[i].ToHost(bytes));
      tensors.emplace(specs_[i].name, std::move(tensor));
    }
    return model_.ToCheckpoint(tensors, options_.gradient.layout);
  }

  // Gradients of one micro-batch, then its metrics.
  Result<Buffers> RunGradient(const MicroBatch& batch, StepOutcome* outcome) {
    const auto program = Gradient(batch.shape);
    FB_CHECK(program != nullptr,
             fmt::format("no program was compiled for {}", batch.shape.ToString()));
    const TimePoint start = Now();
    const BucketShape shape = batch.shape;
    FB_ASSIGN_OR_RETURN(
        xla::Buffer ints,
        client_.FromVector(batch.ints, {DType::kS32, {kIntPlanes, shape.rows, shape.length}}));
    FB_ASSIGN_OR_RETURN(
        xla::Buffer floats,
        client_.FromVector(batch.floats, {DType::kF32, {kFloatPlanes, shape.rows, shape.length}}));
    outcome->upload_seconds += Seconds(Now() - start);

    Arguments arguments;
    Append(params_, &arguments);
    arguments.push_back(&ints);
    arguments.push_back(&floats);
    return program->Execute(arguments);
  }

  Status Apply(Buffers gradients, double learning_rate, StepOutcome* outcome) {
    FB_ASSIGN_OR_RETURN(
        xla::Buffer hyper,
        client_.FromVector(HyperParameters(options_.optimizer, learning_rate, updates_ + 1),
                           {DType::kF32, {kHyperSlots}}));
    Arguments arguments;
    Append(params_, &arguments);
    Append(m_, &arguments);
    Append(v_, &arguments);
    Append(gradients, &arguments);
    arguments.push_back(&hyper);
    whole_ = false;  // the arguments are donated
    FB_ASSIGN_OR_RETURN(Buffers results, apply_->Execute(arguments));
    const size_t n = specs_.size();
    params_ = Take(results, 0, n);
    m_ = Take(results, n, n);
    v_ = Take(results, 2 * n, n);
    FB_ASSIGN_OR_RETURN(const auto norm, results.back().ToVector<float>());
    whole_ = true;
    outcome->grad_norm = static_cast<double>(norm[0]);
    outcome->updated = std::isfinite(norm[0]);
    if (outcome->updated) ++updates_;
    return OkStatus();
  }

  xla::Client& client_;
  const models::Model& model_;
  const TrainStepOptions options_;
  const std::vector<models::ParamSpec> specs_;
  mutable Mutex mutex_;
  std::vector<ShapeProgram> gradient_ FB_GUARDED_BY(mutex_);
  std::shared_ptr<xla::Executable> accumulate_, apply_;
  Buffers params_, m_, v_;
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
