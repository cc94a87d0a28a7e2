// ShardMap: one sdy.manual_computation over all axes of the mesh.
#include "forebay/xla/shard_map.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/autodiff/vjp.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/loop_text.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/region.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/mesh_text.h"
#include "forebay/xla/shard/varying.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/stablehlo/emitter.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {
namespace {

// Operands: xs, then what the body captures, whole on every device.
class ShardMapPrimitive final : public Primitive {
 public:
  ShardMapPrimitive(std::shared_ptr<const Mesh> mesh, const Region* region, ShardMapSpecs specs)
      : mesh_(std::move(mesh)), region_(*region), specs_(std::move(specs)) {}
  std::string_view name() const override { return "ShardMap"; }
  const ShardMapSpecs* specs() const override { return &specs_; }
  void Emit(const Node& node, Emitter& out) const override;
  Values Vjp(const VjpCall& call) const override;
  TracedCost Cost(const Node&) const override { return RegionCost(region_, region_.results); }

 private:
  std::shared_ptr<const Mesh> mesh_;
  const Region& region_;
  ShardMapSpecs specs_;
};

void ShardMapPrimitive::Emit(const Node& node, Emitter& out) const {
  std::vector<std::string> arguments;
  for (const Value& v : node.operands) arguments.push_back(out.Name(v));
  std::vector<std::string> results;
  if (mesh_->size() == 1) {
    results = out.Inline(region_, arguments);
  } else {
    const auto list = [](const std::vector<PartitionSpec>& specs, auto rank) {
      std::string text;
      for (size_t i = 0; i < specs.size(); ++i) {
        text += fmt::format("{}<@mesh, {}>", i > 0 ? ", " : "", SpecText(specs[i], rank(i)));
      }
      return text;
    };
    std::string parameters;
    std::vector<std::string> inside;
    for (size_t i = 0; i < region_.params.size(); ++i) {
      inside.push_back(out.FreshName());
      parameters += fmt::format("{}{}: {}", i > 0 ? ", " : "", inside.back(),
                                TypeText(region_.params[i]->outputs[0]));
    }
    std::vector<Shape> locals;
    for (const Value& v : region_.results) locals.push_back(v.shape());
    out.BeginNested(/*isolated=*/true);
    const std::vector<std::string> returned = out.Inline(region_, inside);
    out.Line(fmt::format("sdy.return {} : {}", JoinNames(returned), TypesText(locals)));
    const std::string body = out.EndNested();
    results = out.DefineMany(
        fmt::format("sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] "
                    "manual_axes={{{}}} ({}) {{\n{}}} : ({}) -> ({})",
                    JoinNames(arguments),
                    list(specs_.in, [&](size_t i) { return node.operands[i].shape().rank(); }),
                    list(specs_.out, [&](size_t i) { return node.outputs[i].rank(); }),
                    AxisNamesText(*mesh_), parameters, body,
                    TypesText(Emitter::OperandShapes(node)), TypesText(node.outputs)),
        static_cast<int>(node.outputs.size()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    out.SetName(node, static_cast<int>(i), std::move(results[i]));
  }
}

// A ShardMap again, which runs a copy of the body and differentiates it. The cotangent of a result
// that all devices have is shared out among them; that of an argument that all have is summed.
Values ShardMapPrimitive::Vjp(const VjpCall& call) const {
  Values xs = call.operands;
  std::vector<PartitionSpec> in_specs = specs_.in;
  std::vector<size_t> outputs;
  for (size_t i = 0; i < call.cotangents.size(); ++i) {
    if (call.cotangents[i].empty()) continue;
    outputs.push_back(i);
    xs.push_back(call.cotangents[i]);
    in_specs.push_back(specs_.out[i]);
  }
  std::vector<PartitionSpec> out_specs;
  for (size_t i = 0; i < call.needs.size(); ++i) {
    if (call.needs[i]) out_specs.push_back(specs_.in[i]);
  }
  const size_t num_operands = call.operands.size();
  const auto body = [&](std::span<const Value> args) {
    const std::span<const Value> own = args.first(num_operands);
    Values cotangents(args.begin() + static_cast<int64_t>(num_operands), args.end());
    const Values results = InlineRegion(call.graph, region_, own);
    Values ys;
    for (size_t k = 0; k < outputs.size(); ++k) {
      ys.push_back(results[outputs[k]]);
      const int64_t copies = mesh_->Size(mesh_->Others(specs_.out[outputs[k]].axes()));
      if (copies > 1) cotangents[k] = cotangents[k] * (1.0 / static_cast<double>(copies));
    }
    Values wrt;
    for (size_t i = 0; i < num_operands; ++i) {
      if (call.needs[i]) wrt.push_back(own[i]);
    }
    Values found = VjpOrEmpty(call.graph, ys, cotangents, wrt);
    for (size_t i = 0; i < wrt.size(); ++i) {
      found[i] =
          found[i].empty() ? ZerosLike(wrt[i]) : Psum(found[i], mesh_->Others(out_specs[i].axes()));
    }
    return found;
  };
  const Values found = ShardMap(*mesh_, in_specs, out_specs, body, xs);
  Values result(num_operands);
  size_t at = 0;
  for (size_t i = 0; i < num_operands; ++i) {
    if (call.needs[i]) result[i] = found[at++];
  }
  return result;
}

// "argument 2 \"w1\"", with the name where it is a Parameter of the graph.
std::string ArgumentName(const Graph::Impl& impl, size_t index, const Value& value) {
  const auto at = std::ranges::find(impl.root.params, value.node());
  if (at == impl.root.params.end()) return fmt::format("argument {}", index);
  return fmt::format("argument {} \"{}\"", index,
                     impl.parameter_names[static_cast<size_t>(at - impl.root.params.begin())]);
}

Status CheckCall(const Graph::Impl& impl, const Mesh& mesh, std::span<const PartitionSpec> in_specs,
                 std::span<const Value> xs) {
  if (impl.shard_body != nullptr) return InvalidArgument("inside the body of another one");
  if (impl.mesh != nullptr && *impl.mesh != mesh) {
    return InvalidArgument(
        fmt::format("the mesh is {}, that of an earlier ShardMap of this graph {}", mesh.ToString(),
                    impl.mesh->ToString()));
  }
  if (in_specs.size() != xs.size()) {
    return InvalidArgument(fmt::format("{} specs for {} arguments", in_specs.size(), xs.size()));
  }
  for (size_t i = 0; i < xs.size(); ++i) {
    FB_RETURN_IF_ERROR(
        CheckSpec(mesh, in_specs[i], xs[i].shape()).WithContext(ArgumentName(impl, i, xs[i])));
  }
  return OkStatus();
}

// What the results' specs claim: known axes, and equal values along those that they do not name.
Status CheckResults(const Mesh& mesh, const Region& region,
                    std::span<const PartitionSpec> out_specs) {
  std::vector<AxisSet> params = region.varying;
  params.resize(region.params.size(), 0);
  const std::vector<AxisSet> varying = VaryingResults(region, params);
  for (size_t i = 0; i < out_specs.size(); ++i) {
    const Shape& local = region.results[i].shape();
    const std::string name = fmt::format("result {} ({} on each device)", i, local.ToString());
    FB_RETURN_IF_ERROR(mesh.Check(out_specs[i].axes()).WithContext(name));
    if (static_cast<int64_t>(out_specs[i].dims().size()) > local.rank()) {
      return InvalidArgument(
          fmt::format("{}: its spec {} has more dimensions", name, out_specs[i].ToString()));
    }
    const AxisSet stray = varying[i] & ~SetOf(mesh, out_specs[i].axes());
    if (stray == 0) continue;
    return InvalidArgument(fmt::format(
        "{} differs along {}, which its spec {} does not name: combine the devices' values (Psum, "
        "PMean, AllGather) or name the axis",
        name, AxesInside(mesh, stray).ToString(), out_specs[i].ToString()));
  }
  return OkStatus();
}

}  // namespace

Values ShardMap(const Mesh& mesh, std::span<const PartitionSpec> in_specs,
                std::span<const PartitionSpec> out_specs, const BodyFn& body,
                std::span<const Value> xs) {
  const Operands in("ShardMap", xs);
  Graph& graph = in.graph();
  Graph::Impl& impl = graph.impl();
  const auto fail = [&](std::string_view message) {
    return Values(out_specs.size(), in.Fail(message));
  };
  if (!in.ok()) return Values(out_specs.size(), in.poison());
  if (const Status status = CheckCall(impl, mesh, in_specs, xs); !status.ok()) {
    return fail(status.message());
  }
  if (impl.mesh == nullptr) impl.mesh = std::make_shared<const Mesh>(mesh);
  std::vector<Shape> locals;
  std::vector<AxisSet> varying;
  for (size_t i = 0; i < xs.size(); ++i) {
    locals.push_back(LocalShape(mesh, in_specs[i], xs[i].shape()));
    varying.push_back(SetOf(mesh, in_specs[i].axes()));
  }
  const auto traced_body = [&](std::span<const Value> args) {
    impl.shard_body = impl.stack.back();
    impl.shard_body->varying = varying;
    Values results = body(args);
    impl.shard_body = nullptr;
    return results;
  };
  const TracedBody traced = TraceBody(graph, "ShardMap", traced_body, locals);
  if (traced.region == nullptr) return Values(out_specs.size(), in.poison());
  const Region& region = *traced.region;
  if (region.results.size() != out_specs.size()) {
    return fail(fmt::format("the body returns {} values, there are specs for {}",
                            region.results.size(), out_specs.size()));
  }
  if (const Status status = CheckResults(mesh, region, out_specs); !status.ok()) {
    return fail(status.message());
  }
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), traced.captures.begin(), traced.captures.end());
  ShardMapSpecs specs{.in = {in_specs.begin(), in_specs.end()},
                      .out = {out_specs.begin(), out_specs.end()}};
  specs.in.resize(operands.size());
  std::vector<Shape> outputs;
  outputs.reserve(out_specs.size());
  for (size_t i = 0; i < out_specs.size(); ++i) {
    outputs.push_back(GlobalShape(mesh, out_specs[i], region.results[i].shape()));
  }
  return AddNode(graph,
                 std::make_shared<ShardMapPrimitive>(impl.mesh, traced.region, std::move(specs)),
                 std::move(operands), std::move(outputs));
}

}  // namespace forebay::xla
