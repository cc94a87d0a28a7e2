// Psum, PMean, PMax: reductions over devices.
#include <fmt/core.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/collective.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {
namespace {

class AllReduce final : public Collective {
 public:
  AllReduce(std::shared_ptr<const Mesh> mesh, const Axes& axes, bool is_sum)
      : Collective(std::move(mesh), axes), is_sum_(is_sum) {}
  std::string_view name() const override { return is_sum_ ? "Psum" : "PMax"; }
  void Emit(const Node& node, Emitter& out) const override {
    const Shape& shape = node.outputs[0];
    out.SetName(node, 0,
                out.Collective(fmt::format(
                    "\"stablehlo.all_reduce\"({}) <{{{}, {}, use_global_device_ids}}> {} : ({}) -> "
                    "{}",
                    out.OperandNames(node), ChannelText(), GroupsText(),
                    ReducerText(is_sum_ ? "add" : "maximum", shape.dtype), TypeText(shape),
                    TypeText(shape))));
  }
  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet> operands) const override {
    return {operands[0] & ~set()};
  }
  // Every device's x reaches every device's sum, so each gets all their cotangents.
  Values Vjp(const VjpCall& call) const override {
    if (!is_sum_) return Primitive::Vjp(call);
    return {Psum(call.cotangents[0], axes())};
  }

 protected:
  double SentBytes(double bytes) const override { return 2 * Collective::SentBytes(bytes); }

 private:
  bool is_sum_;
};

Value Reduce(std::string_view name, Value x, const Axes& axes, bool is_sum) {
  const Operands in(name, {x});
  if (!in.ok()) return in.poison();
  if (axes.empty()) return x;
  std::shared_ptr<const Mesh> mesh = CheckAxes(in.graph(), name, axes);
  if (mesh == nullptr) return in.poison();
  if (x.dtype() == DType::kPred) {
    return in.Fail(fmt::format("is not defined for {}", x.shape().ToString()));
  }
  if (mesh->Size(axes) == 1) return x;
  return AddOne(in.graph(), std::make_shared<AllReduce>(std::move(mesh), axes, is_sum), {x},
                x.shape());
}

}  // namespace

Value Psum(Value x, const Axes& axes) { return Reduce("Psum", x, axes, true); }
Value PMax(Value x, const Axes& axes) { return Reduce("PMax", x, axes, false); }

Value PMean(Value x, const Axes& axes) {
  const Operands in("PMean", {x});
  if (!in.ok()) return in.poison();
  if (!IsFloat(x.dtype())) {
    return in.Fail(fmt::format("is not defined for {}", x.shape().ToString()));
  }
  if (axes.empty()) return x;
  const std::shared_ptr<const Mesh> mesh = CheckAxes(in.graph(), "PMean", axes);
  if (mesh == nullptr) return in.poison();
  const int64_t size = mesh->Size(axes);
  return size == 1 ? x : Psum(x, axes) * (1.0 / static_cast<double>(size));
}

}  // namespace forebay::xla
