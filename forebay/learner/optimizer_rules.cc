#include "forebay/learner/optimizer_rules.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "forebay/learner/layer_layout.h"
#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Value;

constexpr double kAdafactorFloor = 1e-30;  // of a squared gradient
constexpr double kAdafactorRmsMax = 1;

// a + (b - a) (1 - decay), or the old value where the update must not be.
Value Ema(const RuleInput& in, Value old, Value next, double decay) {
  return xla::Select(in.finite, old * decay + next * (1 - decay), old);
}
Value Ema(const RuleInput& in, Value old, Value next, Value decay) {
  return xla::Select(in.finite, old * decay + next * (1.0 - decay), old);
}

// The axes of one tensor, those that stack layers and experts left out.
xla::Dims OwnAxes(const models::ParamSpec& spec) {
  xla::Dims axes;
  for (int64_t i = StackedAxes(spec.name); i < spec.shape.rank(); ++i) axes.push_back(i);
  return axes;
}

// The step reads the moments as they are stored. From the values before the selection XLA's CPU
// backend would fuse their update into the step once more, which needs the old moments after they
// are overwritten: a copy of both (1.1 GB for SmolLM2) in every step.
RuleOutput ApplyAdamW(const RuleInput& in) {
  const Value m = Ema(in, in.state[0], in.grad, in.options.beta1);
  const Value v = Ema(in, in.state[1], in.grad * in.grad, in.options.beta2);
  return {m * in.correction1 / (xla::Sqrt(v * in.correction2) + in.options.epsilon), {m, v}};
}

RuleOutput ApplyLion(const RuleInput& in) {
  const double b1 = in.options.beta1;
  const Value step = xla::Sign(in.state[0] * b1 + in.grad * (1 - b1));
  return {step, {Ema(in, in.state[0], in.grad, in.options.beta2)}};
}

// Of u, whose mean square over one tensor is kept at 1 or below.
Value ClipRms(const models::ParamSpec& spec, Value u) {
  const Value rms = xla::Sqrt(xla::ReduceMean(u * u, OwnAxes(spec), /*keep_dims=*/true));
  const Value one = xla::Constant(*u.graph(), 1, DType::kF32);
  return u / xla::Max(rms * (1 / kAdafactorRmsMax), one);
}

RuleOutput ApplyAdafactorVector(const RuleInput& in) {
  const Value v = Ema(in, in.state[0], in.grad * in.grad + kAdafactorFloor, in.correction2);
  return {ClipRms(in.spec, in.grad * xla::Rsqrt(v)), {v}};
}

// v is approximated by row column^T / mean(row).
RuleOutput ApplyAdafactorMatrix(const RuleInput& in) {
  const Value square = in.grad * in.grad + kAdafactorFloor;
  const Value row = Ema(in, in.state[0], xla::ReduceMean(square, {-1}), in.correction2);
  const Value column = Ema(in, in.state[1], xla::ReduceMean(square, {-2}), in.correction2);
  const Value row_part = xla::Rsqrt(row / xla::ReduceMean(row, {-1}, /*keep_dims=*/true));
  const Value u = in.grad * xla::ExpandDims(row_part, -1) * xla::ExpandDims(xla::Rsqrt(column), -2);
  return {ClipRms(in.spec, u), {row, column}};
}

}  // namespace

int64_t RankOfOne(const models::ParamSpec& spec) {
  return spec.shape.rank() - StackedAxes(spec.name);
}

Rule AdamWRule(const models::ParamSpec& spec) {
  return {{{"m", spec.shape}, {"v", spec.shape}}, ApplyAdamW};
}

Rule LionRule(const models::ParamSpec& spec) { return {{{"m", spec.shape}}, ApplyLion}; }

Rule AdafactorRule(const models::ParamSpec& spec) {
  if (RankOfOne(spec) < 2) return {{{"v", spec.shape}}, ApplyAdafactorVector};
  xla::Shape row = spec.shape, column = spec.shape;
  row.dims.pop_back();
  column.dims.erase(column.dims.end() - 2);
  return {{{"row", std::move(row)}, {"column", std::move(column)}}, ApplyAdafactorMatrix};
}

}  // namespace forebay::learner
