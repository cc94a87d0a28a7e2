// Comparison, logic, shifts, and Select.
#include <fmt/core.h>

#include <memory>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/elementwise.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

constexpr ElementwiseKind kAnd{"And", "and", nullptr};
constexpr ElementwiseKind kOr{"Or", "or", nullptr};
constexpr ElementwiseKind kXor{"Xor", "xor", nullptr};
constexpr ElementwiseKind kNot{"Not", "not", nullptr};
constexpr ElementwiseKind kShiftLeft{"ShiftLeft", "shift_left", nullptr};
constexpr ElementwiseKind kShiftRight{"ShiftRightLogical", "shift_right_logical", nullptr};

Value Bitwise(const ElementwiseKind& kind, Value a, Value b, bool allow_pred = true) {
  const Operands in(kind.name, {a, b});
  if (!in.ok() || !BroadcastPair(in, a, b)) return in.poison();
  if (IsFloat(a.dtype()) || (!allow_pred && a.dtype() == DType::kPred)) {
    return in.Fail(fmt::format("is not defined for {}", a.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<Elementwise>(kind), {a, b}, a.shape());
}

std::string_view DirectionText(Comparison how) {
  switch (how) {
    case Comparison::kEq:
      return "EQ";
    case Comparison::kNe:
      return "NE";
    case Comparison::kLt:
      return "LT";
    case Comparison::kLe:
      return "LE";
    case Comparison::kGt:
      return "GT";
    case Comparison::kGe:
      return "GE";
  }
  FB_CHECK(false, "unknown comparison");
}

std::string_view CompareTypeText(DType dtype) {
  if (IsFloat(dtype)) return "FLOAT";
  switch (dtype) {
    case DType::kPred:
    case DType::kU8:
    case DType::kU32:
    case DType::kU64:
      return "UNSIGNED";
    default:
      return "SIGNED";
  }
}

class ComparePrimitive final : public Primitive {
 public:
  explicit ComparePrimitive(Comparison how) : how_(how) {}
  std::string_view name() const override { return "Compare"; }
  bool passes_gradient() const override { return false; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& shape = node.operands[0].shape();
    out.Result(node,
               fmt::format("stablehlo.compare {}, {}, {} : ({}) -> {}", DirectionText(how_),
                           out.OperandNames(node), CompareTypeText(shape.dtype),
                           TypesText(Emitter::OperandShapes(node)), TypeText(node.outputs[0])));
  }

 private:
  Comparison how_;
};

class SelectPrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "Select"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node, fmt::format("stablehlo.select {} : {}, {}", out.OperandNames(node),
                                 TypeText(node.operands[0].shape()), TypeText(node.outputs[0])));
  }
  // A select again, not a product with 0 or 1: 0 * inf would be NaN.
  Values Vjp(const VjpCall& call) const override {
    const Value ct = call.cotangents[0];
    const Value zero = ZerosLike(ct);
    const Value predicate = call.operands[0];
    Values out(3);
    if (call.needs[1]) out[1] = Select(predicate, ct, zero);
    if (call.needs[2]) out[2] = Select(predicate, zero, ct);
    return out;
  }
};

}  // namespace

Value Compare(Value a, Value b, Comparison how) {
  const Operands in("Compare", {a, b});
  if (!in.ok() || !BroadcastPair(in, a, b)) return in.poison();
  return AddOne(in.graph(), std::make_shared<ComparePrimitive>(how), {a, b},
                {DType::kPred, a.dims()});
}

Value And(Value a, Value b) { return Bitwise(kAnd, a, b); }
Value Or(Value a, Value b) { return Bitwise(kOr, a, b); }
Value Xor(Value a, Value b) { return Bitwise(kXor, a, b); }
Value ShiftLeft(Value a, Value b) { return Bitwise(kShiftLeft, a, b, false); }
Value ShiftRightLogical(Value a, Value b) { return Bitwise(kShiftRight, a, b, false); }

Value Not(Value a) {
  const Operands in("Not", {a});
  if (!in.ok()) return in.poison();
  if (IsFloat(a.dtype())) {
    return in.Fail(fmt::format("is not defined for {}", a.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<Elementwise>(kNot), {a}, a.shape());
}

Value Select(Value predicate, Value on_true, Value on_false) {
  const Operands in("Select", {predicate, on_true, on_false});
  if (!in.ok() || !BroadcastPair(in, on_true, on_false)) return in.poison();
  if (predicate.dtype() != DType::kPred) {
    return in.Fail(
        fmt::format("the predicate is {}; it must be pred", predicate.shape().ToString()));
  }
  const auto dims = BroadcastDims(predicate.dims(), on_true.dims());
  if (!dims) {
    return in.Fail(fmt::format("predicate {} and values {} do not broadcast",
                               predicate.shape().ToString(), on_true.shape().ToString()));
  }
  const Shape shape{on_true.dtype(), *dims};
  return AddOne(
      in.graph(), std::make_shared<SelectPrimitive>(),
      {BroadcastTo(predicate, *dims), BroadcastTo(on_true, *dims), BroadcastTo(on_false, *dims)},
      shape);
}

}  // namespace forebay::xla
