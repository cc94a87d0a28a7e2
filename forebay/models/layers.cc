#include "forebay/models/layers.h"

#include <cstdint>
#include <initializer_list>
#include <span>

#include "forebay/models/host_norm.h"
#include "forebay/models/rope.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_product.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::Value;

using xla::DType;
using xla::Values;

namespace {

// [m, k] x [n, k] -> [m, n], [m, k] x [k, n] -> [m, n] and [k, m] x [k, n] -> [m, n], in f32.
Value DotNT(Value a, Value b) { return xla::DotGeneral(a, b, {{}, {}, {1}, {1}}, DType::kF32); }
Value DotNN(Value a, Value b) { return xla::DotGeneral(a, b, {{}, {}, {1}, {0}}, DType::kF32); }
Value DotTN(Value a, Value b) { return xla::DotGeneral(a, b, {{}, {}, {0}, {0}}, DType::kF32); }

// The tanh form: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).
Value GeluTanh(Value x) {
  constexpr double kRoot = 0.7978845608028654;
  const Value inner = (x + x * x * x * 0.044715) * kRoot;
  return x * 0.5 * (xla::Tanh(inner) + 1);
}

Value Gated(Value x, Value gate, Value up, Value down, xla::GateActivation activation) {
  if (xla::TakesHostProduct(x)) {
    return As(xla::HostGatedProduct(x, As(gate, x.dtype()), As(up, x.dtype()), As(down, x.dtype()),
                                    activation),
              x.dtype());
  }
  const Value gated = As(Project(x, gate), DType::kF32);
  const Value active =
      activation == xla::GateActivation::kSilu ? xla::Silu(gated) : GeluTanh(gated);
  return Project(As(active * As(Project(x, up), DType::kF32), x.dtype()), down);
}

}  // namespace

Value As(Value x, DType dtype) { return x.dtype() == dtype ? x : xla::Convert(x, dtype); }

Value Project(Value x, Value weight) {
  if (x.dtype() == DType::kF32 && weight.dtype() == DType::kF32) return xla::Linear(x, weight);
  const DType narrow = x.dtype();
  const Value xs[] = {x, weight};
  return xla::CustomVjp(
      [=](std::span<const Value> in) -> Values {
        return {As(DotNT(in[0], As(in[1], narrow)), narrow)};
      },
      [=](std::span<const Value> in, std::span<const Value>,
          std::span<const Value> d_out) -> Values {
        return {As(DotNN(d_out[0], As(in[1], narrow)), narrow),
                As(DotTN(d_out[0], in[0]), in[1].dtype())};
      },
      xs)[0];
}

Values ProjectAll(Value x, std::initializer_list<Value> weights) {
  Values out;
  if (!xla::TakesHostProduct(x)) {
    for (const Value& weight : weights) out.push_back(Project(x, weight));
    return out;
  }
  for (const Value& weight : weights) out.push_back(As(weight, x.dtype()));
  out = xla::HostProducts(x, out);
  for (Value& product : out) product = As(product, x.dtype());
  return out;
}

Value AddBias(Value projected, Value bias) {
  return As(As(projected, DType::kF32) + As(bias, DType::kF32), projected.dtype());
}

Value RmsNorm(Value x_ND, Value weight_D, double eps) {
  if (CanNormOnHost(x_ND)) return HostRmsNorm(x_ND, weight_D, eps);
  const Value x = As(x_ND, DType::kF32);
  const Value mean_N1 = xla::ReduceMean(x * x, {-1}, /*keep_dims=*/true);
  return As(x * xla::Rsqrt(mean_N1 + eps) * As(weight_D, DType::kF32), x_ND.dtype());
}

Value HeadRmsNorm(Value x, Value weight_H, double eps) {
  const int64_t dim = weight_H.dim(0);
  const Value heads = xla::Reshape(x, {x.dim(0) * x.dim(1) / dim, dim});
  return xla::Reshape(RmsNorm(heads, weight_H, eps), x.dims());
}

Value SwiGlu(Value x_ND, Value gate_FD, Value up_FD, Value down_DF) {
  return Gated(x_ND, gate_FD, up_FD, down_DF, xla::GateActivation::kSilu);
}

Value GeGlu(Value x_ND, Value gate_FD, Value up_FD, Value down_DF) {
  return Gated(x_ND, gate_FD, up_FD, down_DF, xla::GateActivation::kGeluTanh);
}

RopeTables MakeRopeTables(Value positions_N, const Rotation& rotation) {
  xla::Graph& graph = *positions_N.graph();
  const auto half = static_cast<int64_t>(rotation.frequencies.size());
  const Value position_N1 = xla::ExpandDims(xla::Convert(positions_N, xla::DType::kF32), -1);
  const Value angle_NH = position_N1 * xla::ConstantArray(graph, rotation.frequencies, {1, half});
  const Value cos = xla::Cos(angle_NH), sin = xla::Sin(angle_NH);
  if (rotation.amplitude == 1) return {.cos_NH = cos, .sin_NH = sin};
  return {.cos_NH = cos * rotation.amplitude, .sin_NH = sin * rotation.amplitude};
}

Value ApplyRope(Value x_NAH, const RopeTables& rope, bool inverse) {
  const int64_t half = x_NAH.dim(-1) / 2;
  const Value cos = xla::ExpandDims(rope.cos_NH, 1);
  const Value sin = xla::ExpandDims(inverse ? -rope.sin_NH : rope.sin_NH, 1);
  const Value low = xla::Slice(x_NAH, -1, 0, half);
  const Value high = xla::Slice(x_NAH, -1, half, 2 * half);
  const Value rotated[] = {low * cos - high * sin, high * cos + low * sin};
  return xla::Concatenate(rotated, -1);
}

}  // namespace forebay::models
