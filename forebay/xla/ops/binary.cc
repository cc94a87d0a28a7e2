// Elementwise ops of two operands, Clamp and the operators, with their gradients.
#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/elementwise.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

using Call = VjpCall;
Value A(const Call& c) { return c.operands[0]; }
Value B(const Call& c) { return c.operands[1]; }
Value Y(const Call& c) { return c.outputs[0]; }
Value Ct(const Call& c) { return c.cotangents[0]; }

Values MulVjp(const Call& c) {
  Values out(2);
  if (c.needs[0]) out[0] = Ct(c) * B(c);
  if (c.needs[1]) out[1] = Ct(c) * A(c);
  return out;
}

Values DivVjp(const Call& c) {
  Values out(2);
  const Value scaled = Ct(c) / B(c);
  if (c.needs[0]) out[0] = scaled;
  if (c.needs[1]) out[1] = -(scaled * Y(c));
  return out;
}

// The gradient goes to the side that was taken; equal sides share it.
Values ExtremumVjp(const Call& c, Comparison a_wins) {
  const Value half = Select(Compare(A(c), B(c), Comparison::kEq), Ct(c) * 0.5, ZerosLike(Ct(c)));
  const Value wins = Compare(A(c), B(c), a_wins);
  const Value loses = Compare(B(c), A(c), a_wins);
  return {Select(wins, Ct(c), half), Select(loses, Ct(c), half)};
}

Values PowVjp(const Call& c) {
  Values out(2);
  if (c.needs[0]) out[0] = Ct(c) * (B(c) * Pow(A(c), B(c) - 1.0));
  if (c.needs[1]) {
    // 0^b is constant in b > 0: its derivative is 0, not 0 * log(0).
    const Value positive = Compare(A(c), ZerosLike(A(c)), Comparison::kGt);
    const Value log = Log(Select(positive, A(c), Full(c.graph, 1.0, A(c).shape())));
    out[1] = Ct(c) * (Y(c) * log);
  }
  return out;
}

// a rem b = a - b * trunc(a / b), and the quotient is constant between its jumps.
Values RemVjp(const Call& c) {
  Values out(2);
  if (c.needs[0]) out[0] = Ct(c);
  if (c.needs[1]) out[1] = -(Ct(c) * ((A(c) - Y(c)) / B(c)));
  return out;
}

constexpr ElementwiseKind kAdd{"Add", "add", [](const Call& c) { return Values{Ct(c), Ct(c)}; }};
constexpr ElementwiseKind kSub{
    "Sub", "subtract", [](const Call& c) { return Values{Ct(c), c.needs[1] ? -Ct(c) : Value()}; }};
constexpr ElementwiseKind kMul{"Mul", "multiply", MulVjp};
constexpr ElementwiseKind kDiv{"Div", "divide", DivVjp};
constexpr ElementwiseKind kMax{"Max", "maximum",
                               [](const Call& c) { return ExtremumVjp(c, Comparison::kGt); }};
constexpr ElementwiseKind kMin{"Min", "minimum",
                               [](const Call& c) { return ExtremumVjp(c, Comparison::kLt); }};
constexpr ElementwiseKind kPow{"Pow", "power", PowVjp};
constexpr ElementwiseKind kRem{"Rem", "remainder", RemVjp};

Value Binary(const ElementwiseKind& kind, Value a, Value b) {
  const Operands in(kind.name, {a, b});
  if (!in.ok() || !BroadcastPair(in, a, b)) return in.poison();
  if (a.dtype() == DType::kPred) {
    return in.Fail(fmt::format("is not defined for {}; use And, Or, Xor", a.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<Elementwise>(kind), {a, b}, a.shape());
}

// True when `x op b` is x itself: b is a splat of `neutral` that does not stretch x.
bool IsNeutral(const Value& b, double neutral, const Value& x) {
  if (x.empty() || b.empty() || IsPoison(b) || IsPoison(x) || x.dtype() != b.dtype()) return false;
  if (x.graph() != b.graph()) return false;
  return SplatValue(b) == neutral && BroadcastDims(x.dims(), b.dims()) == x.dims();
}

// min and max are scalars.
class ClampPrimitive final : public Primitive {
 public:
  ClampPrimitive(double low, double high) : low_(low), high_(high) {}
  std::string_view name() const override { return "Clamp"; }
  void Emit(const Node& node, Emitter& out) const override {
    const DType dtype = node.outputs[0].dtype;
    const std::string low = out.ScalarConstant(low_, dtype);
    const std::string high = out.ScalarConstant(high_, dtype);
    const std::string scalar = TypeText({dtype, {}});
    const std::string type = TypeText(node.outputs[0]);
    out.Result(node, fmt::format("stablehlo.clamp {}, {}, {} : ({}, {}, {}) -> {}", low,
                                 out.Name(node.operands[0]), high, scalar, type, scalar, type));
  }
  // 1 on the closed interval, as torch has it.
  Values Vjp(const VjpCall& call) const override {
    const Value x = call.operands[0];
    const Value low = Full(call.graph, low_, x.shape());
    const Value high = Full(call.graph, high_, x.shape());
    const Value inside = And(Compare(x, low, Comparison::kGe), Compare(x, high, Comparison::kLe));
    return {Select(inside, call.cotangents[0], ZerosLike(x))};
  }

 private:
  double low_, high_;
};

Value ScalarLike(const Value& x, double value) {
  return x.empty() ? Value() : Constant(*x.graph(), value, IsPoison(x) ? DType::kF32 : x.dtype());
}

}  // namespace

Value Add(Value a, Value b) {
  if (IsNeutral(b, 0.0, a)) return a;
  if (IsNeutral(a, 0.0, b)) return b;
  return Binary(kAdd, a, b);
}

Value Sub(Value a, Value b) { return IsNeutral(b, 0.0, a) ? a : Binary(kSub, a, b); }

Value Mul(Value a, Value b) {
  if (IsNeutral(b, 1.0, a)) return a;
  if (IsNeutral(a, 1.0, b)) return b;
  return Binary(kMul, a, b);
}

Value Div(Value a, Value b) { return IsNeutral(b, 1.0, a) ? a : Binary(kDiv, a, b); }
Value Max(Value a, Value b) { return Binary(kMax, a, b); }
Value Min(Value a, Value b) { return Binary(kMin, a, b); }
Value Rem(Value a, Value b) { return Binary(kRem, a, b); }

Value Pow(Value a, Value b) {
  if (IsNeutral(b, 1.0, a)) return a;
  if (IsNeutral(b, 2.0, a)) return a * a;
  return Binary(kPow, a, b);
}

Value Clamp(Value x, double low, double high) {
  const Operands in("Clamp", {x});
  if (!in.ok()) return in.poison();
  if (!(low <= high) || x.dtype() == DType::kPred) {
    return in.Fail(fmt::format("bounds {} and {} for {}", low, high, x.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<ClampPrimitive>(low, high), {x}, x.shape());
}

Value operator+(Value a, Value b) { return Add(a, b); }
Value operator-(Value a, Value b) { return Sub(a, b); }
Value operator*(Value a, Value b) { return Mul(a, b); }
Value operator/(Value a, Value b) { return Div(a, b); }
Value operator-(Value a) { return Neg(a); }
Value operator+(Value a, double b) { return Add(a, ScalarLike(a, b)); }
Value operator-(Value a, double b) { return Sub(a, ScalarLike(a, b)); }
Value operator*(Value a, double b) { return Mul(a, ScalarLike(a, b)); }
Value operator/(Value a, double b) { return Div(a, ScalarLike(a, b)); }
Value operator+(double a, Value b) { return Add(ScalarLike(b, a), b); }
Value operator-(double a, Value b) { return Sub(ScalarLike(b, a), b); }
Value operator*(double a, Value b) { return Mul(ScalarLike(b, a), b); }
Value operator/(double a, Value b) { return Div(ScalarLike(b, a), b); }

}  // namespace forebay::xla
