// BroadcastInDim and BroadcastTo.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/constant.h"
#include "forebay/xla/ops/elementwise.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

class BroadcastPrimitive final : public Primitive {
 public:
  explicit BroadcastPrimitive(Dims axes) : axes_(std::move(axes)) {}
  std::string_view name() const override { return "BroadcastInDim"; }
  bool is_cheap_constant() const override { return true; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node, fmt::format("stablehlo.broadcast_in_dim {}, dims = {} : ({}) -> {}",
                                 out.OperandNames(node), DimsText(axes_),
                                 TypeText(node.operands[0].shape()), TypeText(node.outputs[0])));
  }
  // The sum over every axis along which elements were repeated.
  Values Vjp(const VjpCall& call) const override {
    const Dims& from = call.operands[0].dims();
    const Dims& to = call.outputs[0].dims();
    std::vector<bool> kept(to.size(), false);
    for (size_t i = 0; i < from.size(); ++i) {
      const auto axis = static_cast<size_t>(axes_[i]);
      kept[axis] = from[i] == to[axis];
    }
    Dims summed;
    for (size_t i = 0; i < to.size(); ++i) {
      if (!kept[i]) summed.push_back(static_cast<int64_t>(i));
    }
    return {Reshape(ReduceSum(call.cotangents[0], summed), from)};
  }

 private:
  Dims axes_;  // ascending
};

const BroadcastPrimitive* AsBroadcast(const Value& x) {
  return dynamic_cast<const BroadcastPrimitive*>(x.node()->primitive.get());
}

}  // namespace

std::optional<double> SplatValue(const Value& x) {
  const Value& source = AsBroadcast(x) != nullptr ? x.node()->operands[0] : x;
  return ScalarConstantValue(source);
}

Value BroadcastInDim(Value x, Dims dims, Dims operand_to_result_axes) {
  const Operands in("BroadcastInDim", {x});
  if (!in.ok()) return in.poison();
  const Dims& axes = operand_to_result_axes;
  bool fits = axes.size() == x.dims().size();
  for (size_t i = 0; fits && i < axes.size(); ++i) {
    const int64_t axis = axes[i];
    fits = axis >= 0 && axis < static_cast<int64_t>(dims.size()) && (i == 0 || axes[i - 1] < axis);
    if (fits) {
      const int64_t size = x.dims()[i];
      fits = size == 1 || size == dims[static_cast<size_t>(axis)];
    }
  }
  if (!fits) {
    return in.Fail(
        fmt::format("{} to dims {} with axes {}: each operand axis needs an ascending "
                    "result axis of its size (or size 1)",
                    x.shape().ToString(), DimsText(dims), DimsText(axes)));
  }
  if (dims == x.dims()) return x;  // ascending axes of full rank are the identity
  // A scalar that was broadcast before is broadcast directly.
  if (AsBroadcast(x) != nullptr && x.node()->operands[0].shape().rank() == 0) {
    return BroadcastInDim(x.node()->operands[0], std::move(dims), {});
  }
  const Shape shape{x.dtype(), std::move(dims)};
  return AddOne(in.graph(), std::make_shared<BroadcastPrimitive>(std::move(operand_to_result_axes)),
                {x}, shape);
}

Value BroadcastTo(Value x, Dims dims) {
  const Operands in("BroadcastTo", {x});
  if (!in.ok()) return in.poison();
  if (x.dims() == dims) return x;
  const std::optional<Dims> common = BroadcastDims(x.dims(), dims);
  if (!common || *common != dims) {
    return in.Fail(
        fmt::format("{} does not broadcast to {}", x.shape().ToString(), DimsText(dims)));
  }
  Dims axes;
  for (size_t i = dims.size() - x.dims().size(); i < dims.size(); ++i) {
    axes.push_back(static_cast<int64_t>(i));
  }
  return BroadcastInDim(x, std::move(dims), std::move(axes));
}

}  // namespace forebay::xla
