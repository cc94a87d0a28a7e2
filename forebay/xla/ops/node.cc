#include "forebay/xla/ops/node.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {

Values Primitive::Vjp(const VjpCall& call) const {
  call.graph.Fail(
      fmt::format("{}: has no gradient, but one was asked for through it; use "
                  "StopGradient if it should be zero",
                  name()));
  return Values(call.operands.size());
}

Values AddNode(Graph& graph, std::shared_ptr<const Primitive> primitive, Values operands,
               std::vector<Shape> outputs) {
  Graph::Impl& impl = graph.impl();
  Node* node = impl.NewNode(std::move(primitive), std::move(operands), std::move(outputs));
  impl.stack.back()->nodes.push_back(node);
  Values values;
  values.reserve(node->outputs.size());
  for (size_t i = 0; i < node->outputs.size(); ++i) {
    values.emplace_back(&graph, node, static_cast<int>(i));
  }
  return values;
}

Value AddOne(Graph& graph, std::shared_ptr<const Primitive> primitive, Values operands,
             Shape output) {
  std::vector<Shape> outputs;
  outputs.push_back(std::move(output));
  return AddNode(graph, std::move(primitive), std::move(operands), std::move(outputs))[0];
}

bool IsPoison(const Value& value) {
  return value.graph() != nullptr && value.node() == value.graph()->impl().poison;
}

Value Poison(Graph& graph) { return {&graph, graph.impl().poison, 0}; }

Operands::Operands(std::string_view name, std::span<const Value> values) : name_(name) {
  for (const Value& v : values) {
    if (!v.empty() && graph_ == nullptr) graph_ = v.graph();
  }
  FB_CHECK(graph_ != nullptr, "an op needs at least one Value of a graph");
  for (size_t i = 0; i < values.size(); ++i) {
    const Value& v = values[i];
    if (v.empty()) {
      Fail(fmt::format("operand {} is an empty Value", i));
      return;
    }
    if (v.graph() != graph_) {
      Fail(fmt::format("operand {} belongs to another graph", i));
      return;
    }
    if (IsPoison(v)) return;
    if (!v.node()->region->open) {
      Fail(
          fmt::format("operand {} ({}) belongs to a control-flow body that has ended; return it "
                      "from the body",
                      i, v.shape().ToString()));
      return;
    }
  }
  ok_ = true;
}

Value Operands::Fail(std::string_view message) const {
  return graph_->Fail(fmt::format("{}: {}", name_, message));
}

int64_t NormalizeAxis(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) return -1;
  return axis < 0 ? axis + rank : axis;
}

bool NormalizeAxes(Dims& axes, int64_t rank) {
  for (int64_t& axis : axes) {
    axis = NormalizeAxis(axis, rank);
    if (axis < 0) return false;
  }
  std::ranges::sort(axes);
  return std::ranges::adjacent_find(axes) == axes.end();
}

std::string DimsText(std::span<const int64_t> dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(dims[i]);
  }
  return out + "]";
}

}  // namespace forebay::xla
