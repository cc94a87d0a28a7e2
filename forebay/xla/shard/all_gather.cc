// AllGather and ReduceScatter, each the other's gradient.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/collective.h"
#include "forebay/xla/shard/divisible.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

class AllGatherPrimitive final : public Collective {
 public:
  AllGatherPrimitive(std::shared_ptr<const Mesh> mesh, const Axes& axes, int64_t dim)
      : Collective(std::move(mesh), axes), dim_(dim) {}
  std::string_view name() const override { return "AllGather"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.SetName(node, 0,
                out.Collective(fmt::format(
                    "\"stablehlo.all_gather\"({}) <{{all_gather_dim = {} : i64, {}, {}, "
                    "use_global_device_ids}}> : ({}) -> {}",
                    out.OperandNames(node), dim_, ChannelText(), GroupsText(),
                    TypeText(node.operands[0].shape()), TypeText(node.outputs[0]))));
  }
  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet> operands) const override {
    return {operands[0] & ~set()};
  }
  // Device i's part is on every device, at place i: the sum of their cotangents there.
  Values Vjp(const VjpCall& call) const override {
    return {ReduceScatter(call.cotangents[0], axes(), static_cast<int>(dim_))};
  }

 private:
  int64_t dim_;
};

class ReduceScatterPrimitive final : public Collective {
 public:
  ReduceScatterPrimitive(std::shared_ptr<const Mesh> mesh, const Axes& axes, int64_t dim)
      : Collective(std::move(mesh), axes), dim_(dim) {}
  std::string_view name() const override { return "ReduceScatter"; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& shape = node.outputs[0];
    out.SetName(
        node, 0,
        out.Collective(fmt::format(
            "\"stablehlo.reduce_scatter\"({}) <{{{}, {}, scatter_dimension = {} : i64, "
            "use_global_device_ids}}> {} : ({}) -> {}",
            out.OperandNames(node), ChannelText(), GroupsText(), dim_,
            ReducerText("add", shape.dtype), TypeText(node.operands[0].shape()), TypeText(shape))));
  }
  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet> operands) const override {
    return {operands[0] | set()};
  }
  Values Vjp(const VjpCall& call) const override {
    return {AllGather(call.cotangents[0], axes(), static_cast<int>(dim_))};
  }

 private:
  int64_t dim_;
};

}  // namespace

Value AllGather(Value x, const Axes& axes, int dim) {
  const Operands in("AllGather", {x});
  if (!in.ok()) return in.poison();
  std::shared_ptr<const Mesh> mesh = CheckAxes(in.graph(), "AllGather", axes);
  if (mesh == nullptr) return in.poison();
  const int64_t at = NormalizeAxis(dim, x.shape().rank());
  if (at < 0) {
    return in.Fail(fmt::format("dimension {} is out of range for {}", dim, x.shape().ToString()));
  }
  if (mesh->Size(axes) == 1) return x;
  Shape shape = x.shape();
  shape.dims[static_cast<size_t>(at)] *= mesh->Size(axes);
  return AddOne(in.graph(), std::make_shared<AllGatherPrimitive>(std::move(mesh), axes, at), {x},
                std::move(shape));
}

Value ReduceScatter(Value x, const Axes& axes, int dim) {
  const Operands in("ReduceScatter", {x});
  if (!in.ok()) return in.poison();
  std::shared_ptr<const Mesh> mesh = CheckAxes(in.graph(), "ReduceScatter", axes);
  if (mesh == nullptr) return in.poison();
  const int64_t at = NormalizeAxis(dim, x.shape().rank());
  if (at < 0 || x.dtype() == DType::kPred) {
    return in.Fail(fmt::format("dimension {} of {}", dim, x.shape().ToString()));
  }
  if (mesh->Size(axes) == 1) return x;
  Shape shape = x.shape();
  int64_t& size = shape.dims[static_cast<size_t>(at)];
  if (size % mesh->Size(axes) != 0) return in.Fail(NotDivisibleText(x.shape(), at, axes, *mesh));
  size /= mesh->Size(axes);
  return AddOne(in.graph(), std::make_shared<ReduceScatterPrimitive>(std::move(mesh), axes, at),
                {x}, std::move(shape));
}

}  // namespace forebay::xla
