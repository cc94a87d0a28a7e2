// Elementwise ops of one operand, with their gradients.
#include <fmt/core.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/elementwise.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

using Call = VjpCall;
// The operand, the output and its cotangent in a rule below.
Value X(const Call& c) { return c.operands[0]; }
Value Y(const Call& c) { return c.outputs[0]; }
Value Ct(const Call& c) { return c.cotangents[0]; }

constexpr ElementwiseKind kNeg{"Neg", "negate", [](const Call& c) { return Values{-Ct(c)}; }};
constexpr ElementwiseKind kAbs{"Abs", "abs",
                               [](const Call& c) { return Values{Ct(c) * Sign(X(c))}; }};
constexpr ElementwiseKind kSign{"Sign", "sign", nullptr};
constexpr ElementwiseKind kExp{"Exp", "exponential",
                               [](const Call& c) { return Values{Ct(c) * Y(c)}; }};
constexpr ElementwiseKind kLog{"Log", "log", [](const Call& c) { return Values{Ct(c) / X(c)}; }};
constexpr ElementwiseKind kLog1p{"Log1p", "log_plus_one",
                                 [](const Call& c) { return Values{Ct(c) / (X(c) + 1.0)}; }};
constexpr ElementwiseKind kSqrt{"Sqrt", "sqrt",
                                [](const Call& c) { return Values{Ct(c) * 0.5 / Y(c)}; }};
constexpr ElementwiseKind kRsqrt{
    "Rsqrt", "rsqrt", [](const Call& c) { return Values{Ct(c) * -0.5 * (Y(c) * Y(c) * Y(c))}; }};
constexpr ElementwiseKind kTanh{"Tanh", "tanh",
                                [](const Call& c) { return Values{Ct(c) * (1.0 - Y(c) * Y(c))}; }};
constexpr ElementwiseKind kLogistic{
    "Logistic", "logistic", [](const Call& c) { return Values{Ct(c) * (Y(c) * (1.0 - Y(c)))}; }};
constexpr ElementwiseKind kSin{"Sin", "sine",
                               [](const Call& c) { return Values{Ct(c) * Cos(X(c))}; }};
constexpr ElementwiseKind kCos{"Cos", "cosine",
                               [](const Call& c) { return Values{-(Ct(c) * Sin(X(c)))}; }};
constexpr ElementwiseKind kFloor{"Floor", "floor", nullptr};

Value Unary(const ElementwiseKind& kind, Value x, bool needs_float = true) {
  const Operands in(kind.name, {x});
  if (!in.ok()) return in.poison();
  if (needs_float ? !IsFloat(x.dtype()) : x.dtype() == DType::kPred) {
    return in.Fail(fmt::format("is not defined for {}", x.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<Elementwise>(kind), {x}, x.shape());
}

class ConvertPrimitive final : public Primitive {
 public:
  explicit ConvertPrimitive(bool between_floats) : between_floats_(between_floats) {}
  std::string_view name() const override { return "Convert"; }
  bool passes_gradient() const override { return between_floats_; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node, fmt::format("stablehlo.convert {} : ({}) -> {}", out.OperandNames(node),
                                 TypeText(node.operands[0].shape()), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    return {xla::Convert(call.cotangents[0], call.operands[0].dtype())};
  }

 private:
  bool between_floats_;
};

class BitcastPrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "BitcastConvert"; }
  bool passes_gradient() const override { return false; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node,
               fmt::format("stablehlo.bitcast_convert {} : ({}) -> {}", out.OperandNames(node),
                           TypeText(node.operands[0].shape()), TypeText(node.outputs[0])));
  }
};

// Prints nothing: only autodiff sees it.
class StopGradientPrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "StopGradient"; }
  bool passes_gradient() const override { return false; }
  void Emit(const Node& node, Emitter& out) const override {
    out.SetName(node, 0, out.Name(node.operands[0]));
  }
};

class SiluPrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "Silu"; }
  void Emit(const Node& node, Emitter& out) const override {
    const std::string type = TypeText(node.outputs[0]);
    const std::string x = out.Name(node.operands[0]);
    const std::string sigmoid = out.Define(fmt::format("stablehlo.logistic {} : {}", x, type));
    out.Result(node, fmt::format("stablehlo.multiply {}, {} : {}", x, sigmoid, type));
  }
  Values Vjp(const VjpCall& call) const override {
    const Value sigmoid = Logistic(X(call));
    return {Ct(call) * (sigmoid + Y(call) * (1.0 - sigmoid))};
  }
};

class BarrierPrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "OptimizationBarrier"; }
  void Emit(const Node& node, Emitter& out) const override {
    const int count = static_cast<int>(node.outputs.size());
    const std::vector<std::string> names =
        out.DefineMany(fmt::format("stablehlo.optimization_barrier {} : {}", out.OperandNames(node),
                                   TypesText(node.outputs)),
                       count);
    for (int i = 0; i < count; ++i) out.SetName(node, i, names[static_cast<size_t>(i)]);
  }
  Values Vjp(const VjpCall& call) const override { return call.cotangents; }
};

}  // namespace

Value Neg(Value x) { return Unary(kNeg, x, false); }
Value Abs(Value x) { return Unary(kAbs, x, false); }
Value Sign(Value x) { return Unary(kSign, x, false); }
Value Exp(Value x) { return Unary(kExp, x); }
Value Log(Value x) { return Unary(kLog, x); }
Value Log1p(Value x) { return Unary(kLog1p, x); }
Value Sqrt(Value x) { return Unary(kSqrt, x); }
Value Rsqrt(Value x) { return Unary(kRsqrt, x); }
Value Tanh(Value x) { return Unary(kTanh, x); }
Value Logistic(Value x) { return Unary(kLogistic, x); }
Value Sin(Value x) { return Unary(kSin, x); }
Value Cos(Value x) { return Unary(kCos, x); }
Value Floor(Value x) { return Unary(kFloor, x); }

Value Silu(Value x) {
  const Operands in("Silu", {x});
  if (!in.ok()) return in.poison();
  if (!IsFloat(x.dtype())) {
    return in.Fail(fmt::format("is not defined for {}", x.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<SiluPrimitive>(), {x}, x.shape());
}

Value Convert(Value x, DType dtype) {
  const Operands in("Convert", {x});
  if (!in.ok()) return in.poison();
  if (x.dtype() == dtype) return x;
  return AddOne(in.graph(),
                std::make_shared<ConvertPrimitive>(IsFloat(x.dtype()) && IsFloat(dtype)), {x},
                {dtype, x.dims()});
}

Value BitcastConvert(Value x, DType dtype) {
  const Operands in("BitcastConvert", {x});
  if (!in.ok()) return in.poison();
  if (x.dtype() == dtype) return x;
  if (ByteSize(x.dtype()) != ByteSize(dtype) || x.dtype() == DType::kPred ||
      dtype == DType::kPred) {
    return in.Fail(fmt::format("{} and {} have elements of different sizes", x.shape().ToString(),
                               Shape{dtype, x.dims()}.ToString()));
  }
  return AddOne(in.graph(), std::make_shared<BitcastPrimitive>(), {x}, {dtype, x.dims()});
}

Value StopGradient(Value x) {
  const Operands in("StopGradient", {x});
  if (!in.ok()) return in.poison();
  return AddOne(in.graph(), std::make_shared<StopGradientPrimitive>(), {x}, x.shape());
}

Values OptimizationBarrier(std::span<const Value> xs) {
  if (xs.empty()) return {};
  const Operands in("OptimizationBarrier", xs);
  if (!in.ok()) return Values(xs.size(), in.poison());
  std::vector<Shape> shapes;
  for (const Value& x : xs) shapes.push_back(x.shape());
  return AddNode(in.graph(), std::make_shared<BarrierPrimitive>(), Values(xs.begin(), xs.end()),
                 std::move(shapes));
}

}  // namespace forebay::xla
