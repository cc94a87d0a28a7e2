// Scan as a stablehlo.while over (step, carries, xs, captures, stacks): each iteration reads its
// row of the xs with dynamic_slice and writes its row of the stacks with dynamic_update_slice,
// which XLA does in place.
#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops/loop_text.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/scan.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

const Shape kStep{DType::kS32, {}};

// ", %row, %zero, %zero": the start of a row of a stack of this rank, with types.
struct RowStart {
  std::string names, types;
};

RowStart StartOfRow(Emitter& out, const std::string& row, int64_t rank) {
  RowStart start;
  const std::string zero = rank > 1 ? out.ScalarConstant(0, DType::kS32) : "";
  for (int64_t i = 0; i < rank; ++i) {
    start.names += ", " + (i == 0 ? row : zero);
    start.types += ", tensor<i32>";
  }
  return start;
}

std::string ReadRow(Emitter& out, const std::string& stack, const Shape& shape,
                    const std::string& row) {
  const RowStart start = StartOfRow(out, row, shape.rank());
  Shape slice = shape;
  slice.dims[0] = 1;
  const std::string read = out.Define(
      fmt::format("stablehlo.dynamic_slice {}{}, sizes = {} : ({}{}) -> {}", stack, start.names,
                  DimsText(slice.dims), TypeText(shape), start.types, TypeText(slice)));
  const Shape element{shape.dtype, {shape.dims.begin() + 1, shape.dims.end()}};
  return out.Define(
      fmt::format("stablehlo.reshape {} : ({}) -> {}", read, TypeText(slice), TypeText(element)));
}

std::string WriteRow(Emitter& out, const std::string& stack, const Shape& shape,
                     const std::string& row, const std::string& value) {
  Shape slice = shape;
  slice.dims[0] = 1;
  const Shape element{shape.dtype, {shape.dims.begin() + 1, shape.dims.end()}};
  const std::string update = out.Define(
      fmt::format("stablehlo.reshape {} : ({}) -> {}", value, TypeText(element), TypeText(slice)));
  const RowStart start = StartOfRow(out, row, shape.rank());
  return out.Define(fmt::format("stablehlo.dynamic_update_slice {}, {}{} : ({}, {}{}) -> {}", stack,
                                update, start.names, TypeText(shape), TypeText(slice), start.types,
                                TypeText(shape)));
}

std::string StepOp(Emitter& out, std::string_view op, const std::string& a, const std::string& b) {
  return out.Define(fmt::format("stablehlo.{} {}, {} : tensor<i32>", op, a, b));
}

}  // namespace

void ScanPrimitive::Emit(const Node& node, Emitter& out) const {
  const size_t num_carry = layout_.num_carry;
  const size_t num_in = node.operands.size();
  // The state: step, operands, then a stack for each output that is read.
  std::vector<std::string> initial{out.ScalarConstant(0, DType::kS32)};
  std::vector<Shape> shapes{kStep};
  for (const Value& v : node.operands) {
    initial.push_back(out.Name(v));
    shapes.push_back(v.shape());
  }
  std::vector<size_t> stacks;  // node outputs
  for (size_t i = num_carry; i < node.outputs.size(); ++i) {
    if (!out.IsLive(node, static_cast<int>(i))) continue;
    const Shape& shape = node.outputs[i];
    const std::string zero = out.ScalarConstant(0, shape.dtype);
    initial.push_back(
        out.Define(fmt::format("stablehlo.broadcast_in_dim {}, dims = [] : ({}) -> {}", zero,
                               TypeText({shape.dtype, {}}), TypeText(shape))));
    shapes.push_back(shape);
    stacks.push_back(i);
  }

  const auto condition = [&](LoopNames state) {
    const std::string length = out.ScalarConstant(static_cast<double>(layout_.length), DType::kS32);
    return out.Define(fmt::format(
        "stablehlo.compare LT, {}, {}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>", state[0],
        length));
  };
  const auto body = [&](LoopNames state) {
    std::string row = state[0];
    if (layout_.reverse) {
      row = StepOp(out, "subtract",
                   out.ScalarConstant(static_cast<double>(layout_.length - 1), DType::kS32), row);
    }
    std::vector<std::string> arguments;
    for (size_t i = 0; i < num_in; ++i) {
      const bool is_x = i >= num_carry && i < num_carry + layout_.num_xs;
      arguments.push_back(is_x ? ReadRow(out, state[1 + i], shapes[1 + i], row) : state[1 + i]);
    }
    std::vector<bool> live(region_.results.size(), true);
    for (size_t i = num_carry; i < live.size(); ++i)
      live[i] = out.IsLive(node, static_cast<int>(i));
    const std::vector<std::string> results = out.Inline(region_, arguments, live);

    std::vector<std::string> next{StepOp(out, "add", state[0], out.ScalarConstant(1, DType::kS32))};
    next.insert(next.end(), results.begin(), results.begin() + static_cast<int64_t>(num_carry));
    next.insert(next.end(), state.begin() + 1 + static_cast<int64_t>(num_carry),
                state.begin() + 1 + static_cast<int64_t>(num_in));
    for (size_t s = 0; s < stacks.size(); ++s) {
      const size_t output = stacks[s];
      // Past the ys stand the saved carries: what this iteration began with.
      const std::string& value =
          output < results.size() ? results[output] : arguments[output - results.size()];
      next.push_back(WriteRow(out, state[1 + num_in + s], node.outputs[output], row, value));
    }
    return next;
  };
  const std::vector<std::string> final = EmitWhile(out, initial, shapes, condition, body);
  for (size_t i = 0; i < num_carry; ++i) out.SetName(node, static_cast<int>(i), final[1 + i]);
  for (size_t s = 0; s < stacks.size(); ++s) {
    out.SetName(node, static_cast<int>(stacks[s]), final[1 + num_in + s]);
  }
}

}  // namespace forebay::xla
