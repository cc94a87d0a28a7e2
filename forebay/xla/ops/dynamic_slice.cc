// DynamicSlice, DynamicUpdateSlice and IndexLeading: pieces at positions known at run time.
#include <fmt/core.h>

#include <memory>
#include <span>
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

std::span<const Value> Starts(const VjpCall& call, size_t from) {
  return std::span(call.operands).subspan(from);
}

class DynamicSlicePrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "DynamicSlice"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node,
               fmt::format("stablehlo.dynamic_slice {}, sizes = {} : ({}) -> {}",
                           out.OperandNames(node), DimsText(node.outputs[0].dims),
                           TypesText(Emitter::OperandShapes(node)), TypeText(node.outputs[0])));
  }
  // Both clamp starts alike, so the update lands where the slice was read.
  Values Vjp(const VjpCall& call) const override {
    Values out(call.operands.size());
    out[0] = DynamicUpdateSlice(ZerosLike(call.operands[0]), call.cotangents[0], Starts(call, 1));
    return out;
  }
};

class DynamicUpdateSlicePrimitive final : public Primitive {
 public:
  std::string_view name() const override { return "DynamicUpdateSlice"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.Result(node,
               fmt::format("stablehlo.dynamic_update_slice {} : ({}) -> {}", out.OperandNames(node),
                           TypesText(Emitter::OperandShapes(node)), TypeText(node.outputs[0])));
  }
  Values Vjp(const VjpCall& call) const override {
    Values out(call.operands.size());
    const Value ct = call.cotangents[0];
    if (call.needs[0]) {
      out[0] = DynamicUpdateSlice(ct, ZerosLike(call.operands[1]), Starts(call, 2));
    }
    if (call.needs[1]) {
      out[1] = DynamicSlice(ct, Starts(call, 2), call.operands[1].dims());
    }
    return out;
  }
};

// All starts are scalars of one integer dtype, one an axis.
bool CheckStarts(const Operands& in, const Value& x, std::span<const Value> starts) {
  bool valid = starts.size() == x.dims().size();
  for (const Value& start : starts) {
    valid = valid && start.dims().empty() && start.dtype() == DType::kS32;
  }
  if (!valid) {
    in.Fail(fmt::format("{} needs {} starts, each an s32 scalar", x.shape().ToString(),
                        x.shape().rank()));
  }
  return valid;
}

Values Together(Value x, std::span<const Value> rest) {
  Values all{x};
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace

Value DynamicSlice(Value x, std::span<const Value> starts, Dims sizes) {
  const Operands in("DynamicSlice", Together(x, starts));
  if (!in.ok() || !CheckStarts(in, x, starts)) return in.poison();
  bool fits = sizes.size() == x.dims().size();
  for (size_t i = 0; fits && i < sizes.size(); ++i) fits = sizes[i] >= 0 && sizes[i] <= x.dims()[i];
  if (!fits) {
    return in.Fail(fmt::format("sizes {} do not fit {}", DimsText(sizes), x.shape().ToString()));
  }
  if (sizes == x.dims()) return x;  // every start clamps to 0
  const Shape shape{x.dtype(), std::move(sizes)};
  return AddOne(in.graph(), std::make_shared<DynamicSlicePrimitive>(), Together(x, starts), shape);
}

Value DynamicUpdateSlice(Value x, Value update, std::span<const Value> starts) {
  Values operands = Together(x, Together(update, starts));
  const Operands in("DynamicUpdateSlice", operands);
  if (!in.ok() || !CheckStarts(in, x, starts)) return in.poison();
  bool fits = update.dims().size() == x.dims().size() && update.dtype() == x.dtype();
  for (size_t i = 0; fits && i < x.dims().size(); ++i) fits = update.dims()[i] <= x.dims()[i];
  if (!fits) {
    return in.Fail(
        fmt::format("update {} does not fit {}", update.shape().ToString(), x.shape().ToString()));
  }
  if (update.dims() == x.dims()) return update;
  return AddOne(in.graph(), std::make_shared<DynamicUpdateSlicePrimitive>(), std::move(operands),
                x.shape());
}

Value IndexLeading(Value x, Value index) {
  const Operands in("IndexLeading", {x, index});
  if (!in.ok()) return in.poison();
  if (x.dims().empty() || x.dims()[0] == 0 || index.shape() != Shape{DType::kS32, {}}) {
    return in.Fail(fmt::format("index {} of {}: needs an s32 scalar and a leading axis",
                               index.shape().ToString(), x.shape().ToString()));
  }
  const Value zero = Constant(in.graph(), 0, DType::kS32);
  Values starts(x.dims().size(), zero);
  starts[0] = index;
  Dims sizes = x.dims();
  sizes[0] = 1;
  const Dims row(x.dims().begin() + 1, x.dims().end());
  return Reshape(DynamicSlice(x, starts, std::move(sizes)), row);
}

}  // namespace forebay::xla
