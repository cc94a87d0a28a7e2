#include "forebay/learner/optimizer.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using xla::Comparison;
using xla::Value;

// Sums the last axis first: one running f32 sum over the 28 million entries of an embedding would
// stop growing at 2^24 equal terms.
Value SquareSum(Value g) {
  const Value square = g * g;
  if (square.dims().size() < 2) return xla::ReduceSum(square, {0});
  const Value by_row = xla::ReduceSum(square, {-1});
  xla::Dims axes(by_row.dims().size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  return xla::ReduceSum(by_row, axes);
}

Value Scalar(Value hyper, HyperSlot slot) {
  return xla::Reshape(xla::Slice(hyper, 0, slot, slot + 1), {});
}

}  // namespace

std::vector<float> HyperParameters(const AdamWOptions& options, double learning_rate,
                                   int64_t update) {
  const auto t = static_cast<double>(update);
  std::vector<float> hyper(kHyperSlots);
  hyper[kLearningRate] = static_cast<float>(learning_rate);
  hyper[kBiasCorrection1] = static_cast<float>(1 / (1 - std::pow(options.beta1, t)));
  hyper[kBiasCorrection2] = static_cast<float>(1 / (1 - std::pow(options.beta2, t)));
  return hyper;
}

AdamWResult AdamWUpdate(const AdamWOptions& options, std::span<const models::ParamSpec> specs,
                        const AdamWState& state, std::span<const Value> grads, Value hyper) {
  FB_CHECK(grads.size() == specs.size() && state.params.size() == specs.size() &&
               state.m.size() == specs.size() && state.v.size() == specs.size(),
           "one value a parameter");
  Value square_sum;
  for (const Value g : grads) {
    square_sum = square_sum.empty() ? SquareSum(g) : square_sum + SquareSum(g);
  }
  const Value norm = xla::Sqrt(square_sum);
  const Value largest = xla::Constant(
      *hyper.graph(), static_cast<double>(std::numeric_limits<float>::max()), xla::DType::kF32);
  const Value finite = xla::Compare(norm, largest, Comparison::kLe);  // false for NaN
  const Value rate = Scalar(hyper, kLearningRate);
  const Value correction1 = Scalar(hyper, kBiasCorrection1);
  const Value correction2 = Scalar(hyper, kBiasCorrection2);
  Value scale;
  if (options.grad_clip > 0) {
    scale = xla::Min(options.grad_clip / (norm + 1e-6),
                     xla::Constant(*hyper.graph(), 1, xla::DType::kF32));
  }

  AdamWResult out{.grad_norm = norm};
  for (size_t i = 0; i < specs.size(); ++i) {
    const Value p = state.params[i];
    const Value g = scale.empty() ? grads[i] : grads[i] * scale;
    // The step reads the moments as they are stored. From the values before the selection XLA's CPU
    // backend would fuse their update into the step once more, which needs the old moments after
    // they are overwritten: a copy of both (1.1 GB for SmolLM2) in every step.
    const Value m =
        xla::Select(finite, state.m[i] * options.beta1 + g * (1 - options.beta1), state.m[i]);
    const Value v =
        xla::Select(finite, state.v[i] * options.beta2 + g * g * (1 - options.beta2), state.v[i]);
    Value step = m * correction1 / (xla::Sqrt(v * correction2) + options.epsilon);
    if (specs[i].decay && options.weight_decay != 0) step = step + p * options.weight_decay;
    out.state.params.push_back(xla::Select(finite, p - step * rate, p));
    out.state.m.push_back(m);
    out.state.v.push_back(v);
  }
  return out;
}

}  // namespace forebay::learner
