// Take, TakeAlongLast and the scatters: rows and elements at positions given by an array.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

// "[from, ..., to - 1]"
std::string RangeText(int64_t from, int64_t to) {
  Dims range;
  for (int64_t i = from; i < to; ++i) range.push_back(i);
  return DimsText(range);
}

// Gathers clamp positions, scatters drop those out of range: a VJP must see what the gather read.
Value ClampedIndices(const Value& indices, int64_t n) {
  return Clamp(indices, 0, static_cast<double>(n - 1));
}

class TakePrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "Take"; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& table = node.operands[0].shape();
    const int64_t index_rank = node.operands[1].shape().rank();
    std::string sizes = "1";
    for (size_t i = 1; i < table.dims.size(); ++i) sizes += fmt::format(", {}", table.dims[i]);
    std::string offset;
    if (table.rank() > 1) {
      offset =
          fmt::format("offset_dims = {}, ", RangeText(index_rank, index_rank + table.rank() - 1));
    }
    out.Result(node,
               fmt::format("\"stablehlo.gather\"({}) <{{dimension_numbers = #stablehlo.gather<{}"
                           "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = "
                           "{}>, indices_are_sorted = false, slice_sizes = array<i64: {}>}}> : "
                           "({}) -> {}",
                           out.OperandNames(node), offset, index_rank, sizes,
                           TypesText(Emitter::OperandShapes(node)), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    const Value table = call.operands[0];
    const Value indices = ClampedIndices(call.operands[1], table.dims()[0]);
    const int64_t count = indices.shape().elements();
    Dims rows = table.dims();
    rows[0] = count;
    return {
        ScatterAdd(ZerosLike(table), Reshape(indices, {count}), Reshape(call.cotangents[0], rows)),
        Value()};
  }
};

class TakeAlongLastPrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "TakeAlongLast"; }
  void Emit(const Node& node, Emitter& out) const override {
    const int64_t last = node.operands[0].shape().rank() - 1;
    std::string sizes = "1";
    for (int64_t i = 0; i < last; ++i) sizes += ", 1";
    std::string batching;
    if (last > 0) {
      batching = fmt::format("operand_batching_dims = {0}, start_indices_batching_dims = {0}, ",
                             RangeText(0, last));
    }
    out.Result(node,
               fmt::format("\"stablehlo.gather\"({}) <{{dimension_numbers = #stablehlo.gather<"
                           "collapsed_slice_dims = [{}], {}start_index_map = [{}], "
                           "index_vector_dim = {}>, indices_are_sorted = false, slice_sizes = "
                           "array<i64: {}>}}> : ({}) -> {}",
                           out.OperandNames(node), last, batching, last, last, sizes,
                           TypesText(Emitter::OperandShapes(node)), TypeText(node.outputs[0])));
  }
  // A select against an iota, not a scatter: it fuses into whatever reads it (the softmax minus
  // one-hot of a cross entropy), and a scatter is a serial loop on the CPU.
  Values Vjp(const VjpCall& call) const override {
    const Value x = call.operands[0];
    const auto last = static_cast<int>(x.shape().rank() - 1);
    const Value indices = ClampedIndices(call.operands[1], x.dims().back());
    const Value position = Iota(call.graph, {DType::kS32, x.dims()}, last);
    const Value hit = Compare(position, ExpandDims(indices, last), Comparison::kEq);
    return {Select(hit, ExpandDims(call.cotangents[0], last), ZerosLike(x)), Value()};
  }
};

class ScatterPrimitive final : public Primitive {
 public:
  explicit ScatterPrimitive(bool adds) : adds_(adds) {}
  std::string_view name() const override { return adds_ ? "ScatterAdd" : "ScatterSet"; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& shape = node.outputs[0];
    const std::string scalar = TypeText({shape.dtype, {}});
    std::string window;
    if (shape.rank() > 1) {
      window = fmt::format("update_window_dims = {}, ", RangeText(1, shape.rank()));
    }
    const std::string combine =
        adds_ ? fmt::format("%rc = stablehlo.add %ra, %rb : {0} stablehlo.return %rc : {0}", scalar)
              : fmt::format("stablehlo.return %rb : {}", scalar);
    out.Result(
        node,
        fmt::format("\"stablehlo.scatter\"({}) <{{indices_are_sorted = false, "
                    "scatter_dimension_numbers = #stablehlo.scatter<{}inserted_window_dims = [0], "
                    "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = "
                    "false}}> ({{ ^bb0(%ra: {}, %rb: {}): {} }}) : ({}) -> {}",
                    out.OperandNames(node), window, scalar, scalar, combine,
                    TypesText(Emitter::OperandShapes(node)), TypeText(shape)));
  }
  Values Vjp(const VjpCall& call) const override {
    const Value ct = call.cotangents[0];
    const Value indices = call.operands[1];
    const Value updates = call.operands[2];
    Values out(3);
    if (call.needs[0]) out[0] = adds_ ? ct : ScatterSet(ct, indices, ZerosLike(updates));
    if (call.needs[2]) {
      // Rows out of range were dropped: nothing flows back from them.
      const int64_t n = ct.dims()[0];
      const Value zero = ZerosLike(indices);
      const Value inside =
          And(Compare(indices, zero, Comparison::kGe),
              Compare(indices, Full(call.graph, static_cast<double>(n), indices.shape()),
                      Comparison::kLt));
      const Value rows = Take(ct, indices);
      out[2] = Select(BroadcastInDim(inside, rows.dims(), {0}), rows, ZerosLike(rows));
    }
    return out;
  }

 private:
  bool adds_;
};

Value Scatter(bool adds, Value x, Value indices, Value updates) {
  const Operands in(adds ? "ScatterAdd" : "ScatterSet", {x, indices, updates});
  if (!in.ok()) return in.poison();
  bool valid = x.shape().rank() >= 1 && indices.shape().rank() == 1 &&
               indices.dtype() == DType::kS32 && updates.dtype() == x.dtype();
  if (valid) {
    Dims expected = x.dims();
    expected[0] = indices.dims()[0];
    valid = updates.dims() == expected;
  }
  if (!valid) {
    return in.Fail(
        fmt::format("x {}, indices {} and updates {}: they must be [n, ...dims], s32 "
                    "[k] and [k, ...dims]",
                    x.shape().ToString(), indices.shape().ToString(), updates.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<ScatterPrimitive>(adds), {x, indices, updates},
                x.shape());
}

}  // namespace

Value Take(Value table, Value indices) {
  const Operands in("Take", {table, indices});
  if (!in.ok()) return in.poison();
  if (table.dims().empty() || table.dims()[0] == 0 || indices.dtype() != DType::kS32) {
    return in.Fail(
        fmt::format("table {} and indices {}: they must be [n, ...dims] with n > 0 and "
                    "s32",
                    table.shape().ToString(), indices.shape().ToString()));
  }
  Shape shape{table.dtype(), indices.dims()};
  shape.dims.insert(shape.dims.end(), table.dims().begin() + 1, table.dims().end());
  return AddOne(in.graph(), std::make_shared<TakePrimitive>(), {table, indices}, std::move(shape));
}

Value TakeAlongLast(Value x, Value indices) {
  const Operands in("TakeAlongLast", {x, indices});
  if (!in.ok()) return in.poison();
  const bool valid = !x.dims().empty() && x.dims().back() > 0 && indices.dtype() == DType::kS32 &&
                     indices.dims() == Dims(x.dims().begin(), x.dims().end() - 1);
  if (!valid) {
    return in.Fail(fmt::format("x {} and indices {}: they must be [..., n] and s32 [...]",
                               x.shape().ToString(), indices.shape().ToString()));
  }
  return AddOne(in.graph(), std::make_shared<TakeAlongLastPrimitive>(), {x, indices},
                {x.dtype(), indices.dims()});
}

Value ScatterAdd(Value x, Value indices, Value updates) {
  return Scatter(true, x, indices, updates);
}
Value ScatterSet(Value x, Value indices, Value updates) {
  return Scatter(false, x, indices, updates);
}

}  // namespace forebay::xla
