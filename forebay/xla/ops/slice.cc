// Slice, Pad, Concatenate and Reverse: static pieces of arrays.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

// Slice and Pad along one axis are each other's gradient; `interior` is the gap that a stride
// leaves.
Value PadAxis(Value x, int64_t axis, int64_t low, int64_t high, int64_t interior, double value);
Value SliceAxis(Value x, int64_t axis, int64_t start, int64_t limit, int64_t stride);

class SlicePrimitive final : public Primitive {
 public:
  SlicePrimitive(int64_t axis, int64_t start, int64_t limit, int64_t stride)
      : axis_(axis), start_(start), limit_(limit), stride_(stride) {}
  std::string_view name() const override { return "Slice"; }
  void Emit(const Node& node, Emitter& out) const override {
    std::string ranges;
    const Shape& shape = node.operands[0].shape();
    for (int64_t i = 0; i < shape.rank(); ++i) {
      if (i > 0) ranges += ", ";
      if (i != axis_) {
        ranges += fmt::format("0:{}", shape.dims[static_cast<size_t>(i)]);
      } else if (stride_ == 1) {
        ranges += fmt::format("{}:{}", start_, limit_);
      } else {
        ranges += fmt::format("{}:{}:{}", start_, limit_, stride_);
      }
    }
    out.Result(node, fmt::format("stablehlo.slice {} [{}] : ({}) -> {}", out.OperandNames(node),
                                 ranges, TypeText(shape), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    const Value ct = call.cotangents[0];
    const auto axis = static_cast<size_t>(axis_);
    const int64_t taken = ct.dims()[axis];
    const int64_t end = taken == 0 ? start_ : start_ + (taken - 1) * stride_ + 1;
    const int64_t size = call.operands[0].dims()[axis];
    return {PadAxis(ct, axis_, start_, size - end, stride_ - 1, 0.0)};
  }

 private:
  int64_t axis_, start_, limit_, stride_;
};

class PadPrimitive final : public Primitive {
 public:
  PadPrimitive(int64_t axis, int64_t low, int64_t high, int64_t interior, double value)
      : axis_(axis), low_(low), high_(high), interior_(interior), value_(value) {}
  std::string_view name() const override { return "Pad"; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& shape = node.operands[0].shape();
    const auto at_axis = [&](int64_t amount) {
      Dims dims(static_cast<size_t>(shape.rank()), 0);
      dims[static_cast<size_t>(axis_)] = amount;
      return DimsText(dims);
    };
    const std::string value = out.ScalarConstant(value_, shape.dtype);
    out.Result(node,
               fmt::format("stablehlo.pad {}, {}, low = {}, high = {}, interior = {} : ({}, {}) -> "
                           "{}",
                           out.Name(node.operands[0]), value, at_axis(low_), at_axis(high_),
                           at_axis(interior_), TypeText(shape), TypeText({shape.dtype, {}}),
                           TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    const Value ct = call.cotangents[0];
    const int64_t size = ct.dims()[static_cast<size_t>(axis_)];
    return {SliceAxis(ct, axis_, low_, size - high_, interior_ + 1)};
  }

 private:
  int64_t axis_, low_, high_, interior_;
  double value_;
};

class ConcatenatePrimitive final : public Primitive {
 public:
  explicit ConcatenatePrimitive(int64_t axis) : axis_(axis) {}
  std::string_view name() const override { return "Concatenate"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(
        node,
        fmt::format("stablehlo.concatenate {}, dim = {} : ({}) -> {}", out.OperandNames(node),
                    axis_, TypesText(Emitter::OperandShapes(node)), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    Values out(call.operands.size());
    int64_t start = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t size = call.operands[i].dims()[static_cast<size_t>(axis_)];
      if (call.needs[i]) out[i] = SliceAxis(call.cotangents[0], axis_, start, start + size, 1);
      start += size;
    }
    return out;
  }

 private:
  int64_t axis_;
};

class ReversePrimitive final : public Primitive {
 public:
  explicit ReversePrimitive(int64_t axis) : axis_(axis) {}
  std::string_view name() const override { return "Reverse"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node, fmt::format("stablehlo.reverse {}, dims = [{}] : {}", out.OperandNames(node),
                                 axis_, TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    return {xla::Reverse(call.cotangents[0], static_cast<int>(axis_))};
  }

 private:
  int64_t axis_;
};

Value SliceAxis(Value x, int64_t axis, int64_t start, int64_t limit, int64_t stride) {
  if (IsPoison(x)) return x;
  Shape shape = x.shape();
  int64_t& size = shape.dims[static_cast<size_t>(axis)];
  if (start == 0 && limit == size && stride == 1) return x;
  size = (limit - start + stride - 1) / stride;
  return AddOne(*x.graph(), std::make_shared<SlicePrimitive>(axis, start, limit, stride), {x},
                std::move(shape));
}

Value PadAxis(Value x, int64_t axis, int64_t low, int64_t high, int64_t interior, double value) {
  if (IsPoison(x)) return x;
  Shape shape = x.shape();
  int64_t& size = shape.dims[static_cast<size_t>(axis)];
  const int64_t padded = low + high + size + (size > 1 ? (size - 1) * interior : 0);
  if (padded == size) return x;
  size = padded;
  return AddOne(*x.graph(), std::make_shared<PadPrimitive>(axis, low, high, interior, value), {x},
                std::move(shape));
}

}  // namespace

Value Slice(Value x, int axis, int64_t start, int64_t limit, int64_t stride) {
  const Operands in("Slice", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank());
  if (a < 0 || start < 0 || limit < start || stride < 1 ||
      limit > x.dims()[static_cast<size_t>(a)]) {
    return in.Fail(fmt::format("{}:{}:{} of axis {} is out of range for {}", start, limit, stride,
                               axis, x.shape().ToString()));
  }
  return SliceAxis(x, a, start, limit, stride);
}

Value Pad(Value x, int axis, int64_t low, int64_t high, double value) {
  const Operands in("Pad", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank());
  if (a < 0 || low < 0 || high < 0) {
    return in.Fail(
        fmt::format("low {} and high {} of axis {} for {}", low, high, axis, x.shape().ToString()));
  }
  return PadAxis(x, a, low, high, 0, value);
}

Value Concatenate(std::span<const Value> xs, int axis) {
  const Operands in("Concatenate", xs);
  if (!in.ok()) return in.poison();
  Shape shape = xs[0].shape();
  const int64_t a = NormalizeAxis(axis, shape.rank());
  if (a < 0) return in.Fail(fmt::format("axis {} is out of range for {}", axis, shape.ToString()));
  const auto at = static_cast<size_t>(a);
  shape.dims[at] = 0;
  for (const Value& x : xs) {
    Shape other = x.shape();
    const int64_t size = at < other.dims.size() ? std::exchange(other.dims[at], shape.dims[at]) : 0;
    if (other != shape) {
      return in.Fail(fmt::format("shapes {} and {} differ in more than axis {}",
                                 xs[0].shape().ToString(), x.shape().ToString(), axis));
    }
    shape.dims[at] += size;
  }
  if (xs.size() == 1) return xs[0];
  return AddOne(in.graph(), std::make_shared<ConcatenatePrimitive>(a), Values(xs.begin(), xs.end()),
                std::move(shape));
}

Value Reverse(Value x, int axis) {
  const Operands in("Reverse", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank());
  if (a < 0) {
    return in.Fail(fmt::format("axis {} is out of range for {}", axis, x.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<ReversePrimitive>(a), {x}, x.shape());
}

}  // namespace forebay::xla
