// Constants and Iota.
#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/constant.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

class ScalarConstantPrimitive final : public Primitive {
 public:
  explicit ScalarConstantPrimitive(double value) : value_(value) {}
  std::string_view name() const override { return "Constant"; }
  bool passes_gradient() const override { return false; }
  bool is_cheap_constant() const override { return true; }
  void Emit(const Node& node, Emitter& out) const override {
    out.SetName(node, 0, out.ScalarConstant(value_, node.outputs[0].dtype));
  }
  double value() const { return value_; }

 private:
  double value_;
};

class ArrayConstantPrimitive final : public Primitive {
 public:
  explicit ArrayConstantPrimitive(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string_view name() const override { return "ConstantArray"; }
  bool passes_gradient() const override { return false; }
  void Emit(const Node& node, Emitter& out) const override {
    // MLIR takes the little-endian bytes of a dense literal in hexadecimal.
    static constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string hex;
    hex.reserve(2 * bytes_.size());
    for (const char c : bytes_) {
      const auto byte = static_cast<unsigned char>(c);
      hex += kDigits[byte >> 4];
      hex += kDigits[byte & 15];
    }
    const std::string literal = bytes_.empty() ? "" : fmt::format("\"0x{}\"", hex);
    out.Result(
        node, fmt::format("stablehlo.constant dense<{}> : {}", literal, TypeText(node.outputs[0])));
  }

 private:
  std::string bytes_;
};

class IotaPrimitive final : public Primitive {
 public:
  explicit IotaPrimitive(int64_t axis) : axis_(axis) {}
  std::string_view name() const override { return "Iota"; }
  bool passes_gradient() const override { return false; }
  bool is_cheap_constant() const override { return true; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node, fmt::format("stablehlo.iota dim = {} : {}", axis_, TypeText(node.outputs[0])));
  }

 private:
  int64_t axis_;
};

template <typename T>
Value Array(Graph& graph, std::span<const T> values, Dims dims, DType dtype) {
  Shape shape{dtype, std::move(dims)};
  if (shape.elements() != static_cast<int64_t>(values.size())) {
    return graph.Fail(fmt::format("ConstantArray: {} values for {}, which has {} elements",
                                  values.size(), shape.ToString(), shape.elements()));
  }
  std::string bytes(values.size_bytes(), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), values.size_bytes());
  return AddOne(graph, std::make_shared<ArrayConstantPrimitive>(std::move(bytes)), {},
                std::move(shape));
}

}  // namespace

std::optional<double> ScalarConstantValue(const Value& x) {
  const auto* primitive = dynamic_cast<const ScalarConstantPrimitive*>(x.node()->primitive.get());
  return primitive == nullptr ? std::nullopt : std::optional(primitive->value());
}

Value Constant(Graph& graph, double value, DType dtype) {
  if (!IsFloat(dtype) && dtype != DType::kPred &&
      (!std::isfinite(value) || value != std::floor(value))) {
    return graph.Fail(
        fmt::format("Constant: {} is not a value of {}", value, Shape{dtype, {}}.ToString()));
  }
  return AddOne(graph, std::make_shared<ScalarConstantPrimitive>(value), {}, {dtype, {}});
}

Value Full(Graph& graph, double value, const Shape& shape) {
  return BroadcastTo(Constant(graph, value, shape.dtype), shape.dims);
}

Value ConstantArray(Graph& graph, std::span<const float> values, Dims dims) {
  return Array(graph, values, std::move(dims), DType::kF32);
}

Value ConstantArrayS32(Graph& graph, std::span<const int32_t> values, Dims dims) {
  return Array(graph, values, std::move(dims), DType::kS32);
}

Value Iota(Graph& graph, const Shape& shape, int axis) {
  const int64_t a = NormalizeAxis(axis, shape.rank());
  if (a < 0 || shape.dtype == DType::kPred) {
    return graph.Fail(fmt::format("Iota: axis {} of {}", axis, shape.ToString()));
  }
  return AddOne(graph, std::make_shared<IotaPrimitive>(a), {}, shape);
}

Value ZerosLike(Value x) {
  const Operands in("ZerosLike", {x});
  return in.ok() ? Full(in.graph(), 0.0, x.shape()) : in.poison();
}

}  // namespace forebay::xla
