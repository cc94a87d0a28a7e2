// Elementwise: the primitive of every op that maps equal-shaped operands element by element.
// Private to xla/.
#pragma once

#include <optional>
#include <string_view>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

struct ElementwiseKind {
  std::string_view name;               // "Add"
  std::string_view stablehlo;          // "add"
  Values (*vjp)(const VjpCall& call);  // null: the gradient stops here
};

class Elementwise final : public Primitive {
 public:
  explicit Elementwise(const ElementwiseKind& kind) : kind_(kind) {}
  std::string_view name() const override { return kind_.name; }
  bool passes_gradient() const override { return kind_.vjp != nullptr; }
  void Emit(const Node& node, Emitter& out) const override;
  Values Vjp(const VjpCall& call) const override { return kind_.vjp(call); }

 private:
  const ElementwiseKind& kind_;  // static storage
};

// The dims to which both broadcast; nullopt when they do not.
std::optional<Dims> BroadcastDims(const Dims& a, const Dims& b);
// Checks dtypes, broadcasts both sides to one shape. False (and recorded) on error.
bool BroadcastPair(const Operands& in, Value& a, Value& b);
// The number that every element of x is, when that is plain from the graph (a constant, broadcast
// or not).
std::optional<double> SplatValue(const Value& x);

}  // namespace forebay::xla
