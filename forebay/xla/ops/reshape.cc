// Reshape, ExpandDims, Squeeze and Transpose.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

class ReshapePrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "Reshape"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node, fmt::format("stablehlo.reshape {} : ({}) -> {}", out.OperandNames(node),
                                 TypeText(node.operands[0].shape()), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    return {xla::Reshape(call.cotangents[0], call.operands[0].dims())};
  }
};

class TransposePrimitive final : public Primitive {
 public:
  explicit TransposePrimitive(Dims permutation) : permutation_(std::move(permutation)) {}
  std::string_view name() const override { return "Transpose"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node, fmt::format("stablehlo.transpose {}, dims = {} : ({}) -> {}",
                                 out.OperandNames(node), DimsText(permutation_),
                                 TypeText(node.operands[0].shape()), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    Dims inverse(permutation_.size());
    for (size_t i = 0; i < permutation_.size(); ++i) {
      inverse[static_cast<size_t>(permutation_[i])] = static_cast<int64_t>(i);
    }
    return {xla::Transpose(call.cotangents[0], inverse)};
  }
  const Dims& permutation() const { return permutation_; }

 private:
  Dims permutation_;
};

bool IsIdentity(const Dims& permutation) {
  for (size_t i = 0; i < permutation.size(); ++i) {
    if (permutation[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

Value Reshape(Value x, Dims dims) {
  const Operands in("Reshape", {x});
  if (!in.ok()) return in.poison();
  const std::string asked = DimsText(dims);
  int64_t known = 1;
  int64_t inferred = -1;
  bool valid = true;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == -1) {
      valid = valid && inferred < 0;
      inferred = static_cast<int64_t>(i);
    } else {
      valid = valid && dims[i] >= 0;
      known *= dims[i];
    }
  }
  const int64_t elements = x.shape().elements();
  if (valid && inferred >= 0) {
    valid = known > 0 && elements % known == 0;
    if (valid) dims[static_cast<size_t>(inferred)] = elements / known;
  } else {
    valid = valid && known == elements;
  }
  if (!valid) {
    return in.Fail(fmt::format("{} has {} elements and does not reshape to {}",
                               x.shape().ToString(), elements, asked));
  }
  if (dims == x.dims()) return x;
  // Only the last of several reshapes is printed.
  if (dynamic_cast<const ReshapePrimitive*>(x.node()->primitive.get()) != nullptr) {
    return Reshape(x.node()->operands[0], std::move(dims));
  }
  const Shape shape{x.dtype(), std::move(dims)};
  return AddOne(in.graph(), std::make_shared<ReshapePrimitive>(), {x}, shape);
}

Value Transpose(Value x, Dims permutation) {
  const Operands in("Transpose", {x});
  if (!in.ok()) return in.poison();
  Dims sorted = permutation;
  if (permutation.size() != x.dims().size() || !NormalizeAxes(sorted, x.shape().rank())) {
    return in.Fail(fmt::format("{} is not a permutation of the axes of {}", DimsText(permutation),
                               x.shape().ToString()));
  }
  for (int64_t& axis : permutation) axis = NormalizeAxis(axis, x.shape().rank());
  if (IsIdentity(permutation)) return x;
  if (const auto* inner = dynamic_cast<const TransposePrimitive*>(x.node()->primitive.get())) {
    Dims composed;
    for (const int64_t axis : permutation) {
      composed.push_back(inner->permutation()[static_cast<size_t>(axis)]);
    }
    return Transpose(x.node()->operands[0], std::move(composed));
  }
  Shape shape{x.dtype(), {}};
  for (const int64_t axis : permutation) shape.dims.push_back(x.dims()[static_cast<size_t>(axis)]);
  return AddOne(in.graph(), std::make_shared<TransposePrimitive>(std::move(permutation)), {x},
                std::move(shape));
}

Value ExpandDims(Value x, int axis) {
  const Operands in("ExpandDims", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank() + 1);
  if (a < 0) {
    return in.Fail(fmt::format("axis {} is out of range for {}", axis, x.shape().ToString()));
  }
  Dims dims = x.dims();
  dims.insert(dims.begin() + a, 1);
  return Reshape(x, std::move(dims));
}

Value Squeeze(Value x, int axis) {
  const Operands in("Squeeze", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank());
  if (a < 0 || x.dims()[static_cast<size_t>(a)] != 1) {
    return in.Fail(
        fmt::format("axis {} of {} is not an axis of size 1", axis, x.shape().ToString()));
  }
  Dims dims = x.dims();
  dims.erase(dims.begin() + a);
  return Reshape(x, std::move(dims));
}

}  // namespace forebay::xla
