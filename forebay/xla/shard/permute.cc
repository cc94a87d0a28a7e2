// Ppermute, RingShift and AllToAll: values move between devices, nothing is added.
#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

class PpermutePrimitive final : public Collective {
 public:
  PpermutePrimitive(std::shared_ptr<const Mesh> mesh, const Axes& axes, Pairs pairs)
      : Collective(std::move(mesh), axes), pairs_(std::move(pairs)) {}
  std::string_view name() const override { return "Ppermute"; }
  void Emit(const Node& node, Emitter& out) const override {
    std::string pairs;
    size_t count = 0;
    for (const std::vector<int64_t>& group : mesh().Groups(axes())) {
      for (const auto& [from, to] : pairs_) {
        pairs += fmt::format("{}[{}, {}]", count > 0 ? ", " : "", group[static_cast<size_t>(from)],
                             group[static_cast<size_t>(to)]);
        ++count;
      }
    }
    const std::string type = TypeText(node.outputs[0]);
    out.SetName(node, 0,
                out.Collective(fmt::format(
                    "\"stablehlo.collective_permute\"({}) <{{{}, source_target_pairs = dense<[{}]> "
                    ": tensor<{}x2xi64>}}> : ({}) -> {}",
                    out.OperandNames(node), ChannelText(), pairs, count, type, type)));
  }
  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet> operands) const override {
    return {operands[0] | set()};
  }
  Values Vjp(const VjpCall& call) const override {
    Pairs back;
    back.reserve(pairs_.size());
    for (const auto& [from, to] : pairs_) back.emplace_back(to, from);
    return {Ppermute(call.cotangents[0], axes(), back)};
  }

 protected:
  double SentBytes(double bytes) const override { return bytes; }

 private:
  Pairs pairs_;
};

class AllToAllPrimitive final : public Collective {
 public:
  AllToAllPrimitive(std::shared_ptr<const Mesh> mesh, const Axes& axes, int64_t split,
                    int64_t concat)
      : Collective(std::move(mesh), axes), split_(split), concat_(concat) {}
  std::string_view name() const override { return "AllToAll"; }
  void Emit(const Node& node, Emitter& out) const override {
    out.SetName(
        node, 0,
        out.Collective(fmt::format(
            "\"stablehlo.all_to_all\"({}) <{{{}, concat_dimension = {} : i64, {}, split_count = {} "
            ": i64, split_dimension = {} : i64}}> : ({}) -> {}",
            out.OperandNames(node), ChannelText(), concat_, GroupsText(), size(), split_,
            TypeText(node.operands[0].shape()), TypeText(node.outputs[0]))));
  }
  std::vector<AxisSet> Varying(const Node&, std::span<const AxisSet> operands) const override {
    return {operands[0] | set()};
  }
  Values Vjp(const VjpCall& call) const override {
    return {xla::AllToAll(call.cotangents[0], axes(), static_cast<int>(concat_),
                          static_cast<int>(split_))};
  }

 private:
  int64_t split_, concat_;
};

}  // namespace

Value Ppermute(Value x, const Axes& axes, DevicePairs pairs) {
  const Operands in("Ppermute", {x});
  if (!in.ok()) return in.poison();
  std::shared_ptr<const Mesh> mesh = CheckAxes(in.graph(), "Ppermute", axes);
  if (mesh == nullptr) return in.poison();
  const int64_t size = mesh->Size(axes);
  std::vector<bool> sends(static_cast<size_t>(size), false);
  std::vector<bool> receives = sends;
  for (const auto& [from, to] : pairs) {
    if (from < 0 || from >= size || to < 0 || to >= size) {
      return in.Fail(fmt::format("the pair ({}, {}) is out of range: {} has {} devices", from, to,
                                 axes.ToString(), size));
    }
    if (sends[static_cast<size_t>(from)] || receives[static_cast<size_t>(to)]) {
      return in.Fail(fmt::format("the pair ({}, {}): a device sends or receives twice", from, to));
    }
    sends[static_cast<size_t>(from)] = receives[static_cast<size_t>(to)] = true;
  }
  if (pairs.empty()) return ZerosLike(x);
  if (size == 1) return x;
  return AddOne(
      in.graph(),
      std::make_shared<PpermutePrimitive>(std::move(mesh), axes, Pairs(pairs.begin(), pairs.end())),
      {x}, x.shape());
}

Value RingShift(Value x, const Axes& axes, int64_t by) {
  const Operands in("RingShift", {x});
  if (!in.ok()) return in.poison();
  const std::shared_ptr<const Mesh> mesh = CheckAxes(in.graph(), "RingShift", axes);
  if (mesh == nullptr) return in.poison();
  const int64_t size = mesh->Size(axes);
  const int64_t steps = (by % size + size) % size;
  if (steps == 0) return x;
  Pairs pairs;
  for (int64_t i = 0; i < size; ++i) pairs.emplace_back(i, (i + steps) % size);
  return Ppermute(x, axes, pairs);
}

Value AllToAll(Value x, const Axes& axes, int split, int concat) {
  const Operands in("AllToAll", {x});
  if (!in.ok()) return in.poison();
  std::shared_ptr<const Mesh> mesh = CheckAxes(in.graph(), "AllToAll", axes);
  if (mesh == nullptr) return in.poison();
  const int64_t from = NormalizeAxis(split, x.shape().rank());
  const int64_t to = NormalizeAxis(concat, x.shape().rank());
  if (from < 0 || to < 0) {
    return in.Fail(fmt::format("dimensions {} and {} are not both of {}", split, concat,
                               x.shape().ToString()));
  }
  const int64_t size = mesh->Size(axes);
  if (size == 1) return x;
  Shape shape = x.shape();
  if (shape.dims[static_cast<size_t>(from)] % size != 0) {
    return in.Fail(NotDivisibleText(x.shape(), from, axes, *mesh));
  }
  shape.dims[static_cast<size_t>(from)] /= size;
  shape.dims[static_cast<size_t>(to)] *= size;
  return AddOne(in.graph(), std::make_shared<AllToAllPrimitive>(std::move(mesh), axes, from, to),
                {x}, std::move(shape));
}

}  // namespace forebay::xla
