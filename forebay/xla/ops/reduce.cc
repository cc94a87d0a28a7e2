// Reductions over axes, ArgMax and CumSum.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

enum class Reducer { kSum, kMax, kMin, kAnd, kOr };

std::string_view ReducerName(Reducer reducer) {
  switch (reducer) {
    case Reducer::kSum:
      return "ReduceSum";
    case Reducer::kMax:
      return "ReduceMax";
    case Reducer::kMin:
      return "ReduceMin";
    case Reducer::kAnd:
      return "ReduceAll";
    case Reducer::kOr:
      return "ReduceAny";
  }
  FB_CHECK(false, "unknown reducer");
}

std::string_view ReducerOp(Reducer reducer) {
  switch (reducer) {
    case Reducer::kSum:
      return "add";
    case Reducer::kMax:
      return "maximum";
    case Reducer::kMin:
      return "minimum";
    case Reducer::kAnd:
      return "and";
    case Reducer::kOr:
      return "or";
  }
  FB_CHECK(false, "unknown reducer");
}

double LowestInteger(DType dtype) {
  switch (dtype) {
    case DType::kS8:
      return -128;
    case DType::kS32:
      return std::numeric_limits<int32_t>::min();
    case DType::kS64:
      return -9223372036854775808.0;
    default:
      return 0;
  }
}

double HighestInteger(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return 1;
    case DType::kS8:
      return 127;
    case DType::kU8:
      return 255;
    case DType::kS32:
      return std::numeric_limits<int32_t>::max();
    case DType::kU32:
      return std::numeric_limits<uint32_t>::max();
    default:
      // The largest double below 2^63: no reduction here runs over wider values.
      return 9223372036854774784.0;
  }
}

double Initial(Reducer reducer, DType dtype) {
  switch (reducer) {
    case Reducer::kMax:
      return IsFloat(dtype) ? -HUGE_VAL : LowestInteger(dtype);
    case Reducer::kMin:
      return IsFloat(dtype) ? HUGE_VAL : HighestInteger(dtype);
    case Reducer::kAnd:
      return 1;
    default:
      return 0;
  }
}

// The axes of a rank that are not in `axes` (sorted).
Dims OtherAxes(const Dims& axes, int64_t rank) {
  Dims others;
  for (int64_t i = 0; i < rank; ++i) {
    if (!std::ranges::binary_search(axes, i)) others.push_back(i);
  }
  return others;
}

class ReducePrimitive final : public Primitive {
 public:
  ReducePrimitive(Reducer reducer, Dims axes) : reducer_(reducer), axes_(std::move(axes)) {}
  std::string_view name() const override { return ReducerName(reducer_); }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& shape = node.operands[0].shape();
    const std::string init = out.ScalarConstant(Initial(reducer_, shape.dtype), shape.dtype);
    out.Result(
        node,
        fmt::format("stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = {} : "
                    "({}, {}) -> {}",
                    out.OperandNames(node), init, ReducerOp(reducer_), DimsText(axes_),
                    TypeText(shape), TypeText({shape.dtype, {}}), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    const Value x = call.operands[0];
    const Dims kept = OtherAxes(axes_, x.shape().rank());
    if (reducer_ == Reducer::kSum) {
      return {BroadcastInDim(call.cotangents[0], x.dims(), kept)};
    }
    // Elements equal to the extremum share its cotangent.
    const Value hit = Compare(x, BroadcastInDim(call.outputs[0], x.dims(), kept), Comparison::kEq);
    const Value count = ReduceSum(Convert(hit, x.dtype()), axes_);
    const Value share = BroadcastInDim(call.cotangents[0] / count, x.dims(), kept);
    return {Select(hit, share, ZerosLike(share))};
  }

 private:
  Reducer reducer_;
  Dims axes_;  // sorted
};

Value Reduce(Reducer reducer, Value x, Dims axes, bool keep_dims) {
  const Operands in(ReducerName(reducer), {x});
  if (!in.ok()) return in.poison();
  const std::string asked = DimsText(axes);
  if (!NormalizeAxes(axes, x.shape().rank())) {
    return in.Fail(fmt::format("axes {} are not distinct axes of {}", asked, x.shape().ToString()));
  }
  const bool logical = reducer == Reducer::kAnd || reducer == Reducer::kOr;
  if (logical != (x.dtype() == DType::kPred)) {
    return in.Fail(fmt::format("is not defined for {}", x.shape().ToString()));
  }
  if (axes.empty()) return x;
  Dims kept_dims = x.dims();
  Shape shape{x.dtype(), {}};
  for (const int64_t axis : axes) kept_dims[static_cast<size_t>(axis)] = 1;
  for (const int64_t axis : OtherAxes(axes, x.shape().rank())) {
    shape.dims.push_back(x.dims()[static_cast<size_t>(axis)]);
  }
  const Value reduced =
      AddOne(in.graph(), std::make_shared<ReducePrimitive>(reducer, std::move(axes)), {x}, shape);
  return keep_dims ? Reshape(reduced, std::move(kept_dims)) : reduced;
}

Dims AllAxes(const Value& x) {
  if (x.empty()) return {};
  return OtherAxes({}, x.shape().rank());
}

// A window sum that ends at each element. XLA rewrites it into blocked sums on every platform.
class CumSumPrimitive final : public Primitive {
 public:
  explicit CumSumPrimitive(int64_t axis) : axis_(axis) {}
  std::string_view name() const override { return "CumSum"; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& shape = node.outputs[0];
    const int64_t n = shape.dims[static_cast<size_t>(axis_)];
    const std::string scalar = TypeText({shape.dtype, {}});
    const std::string zero = out.ScalarConstant(0, shape.dtype);
    std::string ones, window, padding;
    for (int64_t i = 0; i < shape.rank(); ++i) {
      const std::string_view comma = i > 0 ? ", " : "";
      ones.append(comma).append("1");
      window.append(comma).append(i == axis_ ? std::to_string(n) : "1");
      padding.append(comma).append(i == axis_ ? fmt::format("[{}, 0]", n - 1) : "[0, 0]");
    }
    out.Result(
        node,
        fmt::format("\"stablehlo.reduce_window\"({0}, {1}) <{{window_dimensions = array<i64: {2}>, "
                    "window_strides = array<i64: {3}>, base_dilations = array<i64: {3}>, "
                    "window_dilations = array<i64: {3}>, padding = dense<[{4}]> : "
                    "tensor<{5}x2xi64>}}> ({{ ^bb0(%ra: {6}, %rb: {6}): "
                    "%rc = stablehlo.add %ra, %rb : {6} stablehlo.return %rc : {6} }}) : "
                    "({7}, {6}) -> {7}",
                    out.Name(node.operands[0]), zero, window, ones, padding, shape.rank(), scalar,
                    TypeText(shape)));
  }
  Values Vjp(const VjpCall& call) const override {
    const int axis = static_cast<int>(axis_);
    return {Reverse(xla::CumSum(Reverse(call.cotangents[0], axis), axis), axis)};
  }

 private:
  int64_t axis_;
};

}  // namespace

Value ReduceSum(Value x, Dims axes, bool keep_dims) {
  return Reduce(Reducer::kSum, x, std::move(axes), keep_dims);
}
Value ReduceMax(Value x, Dims axes, bool keep_dims) {
  return Reduce(Reducer::kMax, x, std::move(axes), keep_dims);
}
Value ReduceMin(Value x, Dims axes, bool keep_dims) {
  return Reduce(Reducer::kMin, x, std::move(axes), keep_dims);
}
Value ReduceAll(Value x) { return Reduce(Reducer::kAnd, x, AllAxes(x), false); }
Value ReduceAny(Value x) { return Reduce(Reducer::kOr, x, AllAxes(x), false); }

Value ReduceMean(Value x, Dims axes, bool keep_dims) {
  const Operands in("ReduceMean", {x});
  if (!in.ok()) return in.poison();
  if (!IsFloat(x.dtype())) {
    return in.Fail(fmt::format("is not defined for {}", x.shape().ToString()));
  }
  const Value sum = ReduceSum(x, std::move(axes), keep_dims);
  if (IsPoison(sum)) return sum;
  const int64_t outputs = sum.shape().elements();
  if (outputs == 0) return sum;
  return sum * (static_cast<double>(outputs) / static_cast<double>(x.shape().elements()));
}

// Two plain reductions, which every backend vectorises; a reduction over pairs it would not.
Value ArgMax(Value x, int axis) {
  const Operands in("ArgMax", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank());
  if (a < 0 || x.dims()[static_cast<size_t>(a)] == 0 || x.dtype() == DType::kPred) {
    return in.Fail(fmt::format("axis {} of {}", axis, x.shape().ToString()));
  }
  const Value best = ReduceMax(x, {a}, /*keep_dims=*/true);
  const Shape index_shape{DType::kS32, x.dims()};
  const Value position = Iota(in.graph(), index_shape, static_cast<int>(a));
  const auto n = static_cast<double>(x.dims()[static_cast<size_t>(a)]);
  // A row with a NaN equals its maximum nowhere: the last position, so that the result is an
  // index.
  const Value last = Full(in.graph(), n - 1, index_shape);
  return ReduceMin(Select(Compare(x, best, Comparison::kEq), position, last), {a});
}

Value CumSum(Value x, int axis) {
  const Operands in("CumSum", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank());
  if (a < 0 || x.dtype() == DType::kPred) {
    return in.Fail(fmt::format("axis {} of {}", axis, x.shape().ToString()));
  }
  if (x.shape().elements() == 0) return x;
  return AddOne(in.graph(), std::make_shared<CumSumPrimitive>(a), {x}, x.shape());
}

}  // namespace forebay::xla
