#include "forebay/learner/optimizer_rules.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "forebay/learner/layer_layout.h"
#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

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

// The mean of x over its axis -1 or -2, which is one of the parameter's, on all devices.
Value MeanAlong(const RuleInput& in, Value x, int64_t axis, int64_t axis_of_param,
                bool keep_dims = false) {
  return xla::PMean(xla::ReduceMean(x, {axis}, keep_dims),
                    in.SplitAxes(axis_of_param, axis_of_param));
}

// Of u, whose mean square over one tensor is kept at 1 or below.
Value ClipRms(const RuleInput& in, Value u) {
  const Value own = xla::ReduceMean(u * u, OwnAxes(in.spec), /*keep_dims=*/true);
  const Value rms = xla::Sqrt(xla::PMean(own, in.SplitAxes(StackedAxes(in.spec.name), -1)));
  const Value one = xla::Constant(*u.graph(), 1, DType::kF32);
  return u / xla::Max(rms * (1 / kAdafactorRmsMax), one);
}

RuleOutput ApplyAdafactorVector(const RuleInput& in) {
  const Value v = Ema(in, in.state[0], in.grad * in.grad + kAdafactorFloor, in.correction2);
  return {ClipRms(in, in.grad * xla::Rsqrt(v)), {v}};
}

// v is approximated by row column^T / mean(row).
RuleOutput ApplyAdafactorMatrix(const RuleInput& in) {
  const Value square = in.grad * in.grad + kAdafactorFloor;
  const Value row = Ema(in, in.state[0], MeanAlong(in, square, -1, -1), in.correction2);
  const Value column = Ema(in, in.state[1], MeanAlong(in, square, -2, -2), in.correction2);
  const Value row_part = xla::Rsqrt(row / MeanAlong(in, row, -1, -2, /*keep_dims=*/true));
  const Value u = in.grad * xla::ExpandDims(row_part, -1) * xla::ExpandDims(xla::Rsqrt(column), -2);
  return {ClipRms(in, u), {row, column}};
}

// How an array lies that has all dimensions of the parameter but one.
xla::PartitionSpec Without(const models::ParamSpec& spec, int64_t dim) {
  std::vector<xla::Axes> dims;
  for (int64_t i = 0; i < spec.shape.rank(); ++i) {
    if (i != spec.shape.rank() + dim) dims.push_back(spec.partition.dim(i));
  }
  return xla::PartitionSpec(std::move(dims));
}

}  // namespace

xla::Axes RuleInput::SplitAxes(int64_t first, int64_t last) const {
  std::vector<std::string> names;
  if (!sharded()) return {};
  const int64_t rank = spec.shape.rank();
  for (int64_t i = first < 0 ? first + rank : first; i <= (last < 0 ? last + rank : last); ++i) {
    const auto& of_dim = spec.partition.dim(i).names();
    names.insert(names.end(), of_dim.begin(), of_dim.end());
  }
  return xla::Axes(std::move(names));
}

int64_t RankOfOne(const models::ParamSpec& spec) {
  return spec.shape.rank() - StackedAxes(spec.name);
}

Rule AdamWRule(const models::ParamSpec& spec) {
  return {{{"m", spec.shape, spec.partition}, {"v", spec.shape, spec.partition}}, ApplyAdamW};
}

Rule LionRule(const models::ParamSpec& spec) {
  return {{{"m", spec.shape, spec.partition}}, ApplyLion};
}

Rule AdafactorRule(const models::ParamSpec& spec) {
  if (RankOfOne(spec) < 2) return {{{"v", spec.shape, spec.partition}}, ApplyAdafactorVector};
  xla::Shape row = spec.shape, column = spec.shape;
  row.dims.pop_back();
  column.dims.erase(column.dims.end() - 2);
  return {{{"row", std::move(row), Without(spec, -1)},
           {"column", std::move(column), Without(spec, -2)}},
          ApplyAdafactorMatrix};
}

}  // namespace forebay::learner
