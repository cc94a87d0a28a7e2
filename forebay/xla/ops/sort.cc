// SortDescending.
#include <fmt/core.h>

#include <memory>
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

class SortPrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "SortDescending"; }
  bool passes_gradient() const override { return false; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& values = node.outputs[0];
    const std::string scalar = TypeText({values.dtype, {}});
    // Stable, so equal values keep the order of their positions; a total order places NaN.
    const std::vector<std::string> names = out.DefineMany(
        fmt::format("\"stablehlo.sort\"({}) <{{dimension = {} : i64, is_stable = true}}> ({{ "
                    "^bb0(%ra: {}, %rb: {}, %rc: tensor<i32>, %rd: tensor<i32>): %re = "
                    "stablehlo.compare GT, %ra, %rb, {} : ({}, {}) -> tensor<i1> stablehlo.return "
                    "%re : tensor<i1> }}) : ({}) -> ({})",
                    out.OperandNames(node), values.rank() - 1, scalar, scalar,
                    IsFloat(values.dtype) ? "TOTALORDER" : "SIGNED", scalar, scalar,
                    TypesText(Emitter::OperandShapes(node)), TypesText(node.outputs)),
        2);
    out.SetName(node, 0, names[0]);
    out.SetName(node, 1, names[1]);
  }
};

}  // namespace

std::pair<Value, Value> SortDescending(Value x) {
  const Operands in("SortDescending", {x});
  if (!in.ok()) return {in.poison(), in.poison()};
  if (x.dims().empty() || !(IsFloat(x.dtype()) || x.dtype() == DType::kS32)) {
    const Value poison = in.Fail(
        fmt::format("is not defined for {}; it takes float or s32 [..., n]", x.shape().ToString()));
    return {poison, poison};
  }
  const Shape positions{DType::kS32, x.dims()};
  const Value iota = Iota(in.graph(), positions, -1);
  const Values sorted =
      AddNode(in.graph(), std::make_shared<SortPrimitive>(), {x, iota}, {x.shape(), positions});
  return {sorted[0], sorted[1]};
}

}  // namespace forebay::xla
