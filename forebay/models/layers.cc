#include "forebay/models/layers.h"

#include <cstdint>
#include <span>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::Value;

Value RmsNorm(Value x_ND, Value weight_D, double eps) {
  const Value mean_N1 = xla::ReduceMean(x_ND * x_ND, {-1}, /*keep_dims=*/true);
  return x_ND * xla::Rsqrt(mean_N1 + eps) * weight_D;
}

Value SwiGlu(Value x_ND, Value gate_FD, Value up_FD, Value down_DF) {
  const Value gate_NF = xla::Linear(x_ND, gate_FD);
  const Value up_NF = xla::Linear(x_ND, up_FD);
  return xla::Linear(xla::Silu(gate_NF) * up_NF, down_DF);
}

RopeTables MakeRopeTables(Value positions_N, std::span<const float> frequencies) {
  xla::Graph& graph = *positions_N.graph();
  const auto half = static_cast<int64_t>(frequencies.size());
  const Value position_N1 = xla::ExpandDims(xla::Convert(positions_N, xla::DType::kF32), -1);
  const Value angle_NH = position_N1 * xla::ConstantArray(graph, frequencies, {1, half});
  return {xla::Cos(angle_NH), xla::Sin(angle_NH)};
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
