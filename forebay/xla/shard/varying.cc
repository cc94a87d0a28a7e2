#include "forebay/xla/shard/varying.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

Axes Select(const Mesh& mesh, AxisSet set, bool inside) {
  std::vector<std::string> names;
  for (size_t i = 0; i < mesh.axes().size(); ++i) {
    const bool in = ((set >> i) & 1) != 0;
    if (mesh.axes()[i].size > 1 && in == inside) names.push_back(mesh.axes()[i].name);
  }
  return Axes(std::move(names));
}

using Sets = std::unordered_map<const Node*, std::vector<AxisSet>>;

// Fills in the sets of a node whose operands have theirs.
void Visit(const Node& node, Sets& sets) {
  std::vector<AxisSet> operands;
  operands.reserve(node.operands.size());
  for (const Value& v : node.operands) {
    operands.push_back(sets.at(v.node())[static_cast<size_t>(v.output())]);
  }
  sets[&node] = node.primitive->Varying(node, operands);
}

}  // namespace

std::vector<AxisSet> Primitive::Varying(const Node& node, std::span<const AxisSet> operands) const {
  AxisSet all = 0;
  for (const AxisSet set : operands) all |= set;
  return std::vector<AxisSet>(node.outputs.size(), all);
}

AxisSet SetOf(const Mesh& mesh, const Axes& axes) {
  AxisSet set = 0;
  for (const std::string& name : axes.names()) {
    const int number = mesh.AxisNumber(name);
    FB_CHECK(number >= 0, name);
    if (mesh.axes()[static_cast<size_t>(number)].size > 1) set |= AxisSet{1} << number;
  }
  return set;
}

Axes AxesOutside(const Mesh& mesh, AxisSet set) { return Select(mesh, set, false); }
Axes AxesInside(const Mesh& mesh, AxisSet set) { return Select(mesh, set, true); }

std::vector<AxisSet> VaryingResults(const Region& region, std::span<const AxisSet> params) {
  FB_CHECK(params.size() == region.params.size(), "one set a parameter");
  Sets sets;
  for (size_t i = 0; i < params.size(); ++i) sets[region.params[i]] = {params[i]};
  for (const Node* node : region.nodes) Visit(*node, sets);
  std::vector<AxisSet> results;
  results.reserve(region.results.size());
  for (const Value& v : region.results) {
    results.push_back(sets.at(v.node())[static_cast<size_t>(v.output())]);
  }
  return results;
}

std::optional<AxisSet> VaryingOf(const Value& value) {
  // Regions under trace are open: their nodes are found through the operands, and ids rise.
  std::vector<const Node*> order{value.node()};
  Sets sets;
  sets[value.node()];
  for (size_t i = 0; i < order.size(); ++i) {
    for (const Value& v : order[i]->operands) {
      if (sets.try_emplace(v.node()).second) order.push_back(v.node());
    }
  }
  std::ranges::sort(order, {}, &Node::id);
  const Graph::Impl& impl = value.graph()->impl();
  const auto body = std::ranges::find(impl.stack, impl.shard_body);
  for (const Node* node : order) {
    const Region& region = *node->region;
    if (std::find(impl.stack.begin(), body, &region) != body) {  // outside: whole on every device
      sets[node].assign(node->outputs.size(), 0);
    } else if (node->primitive != nullptr) {
      Visit(*node, sets);
    } else {
      const auto at = std::ranges::find(region.params, node) - region.params.begin();
      if (static_cast<size_t>(at) >= region.varying.size()) return std::nullopt;
      sets[node] = {region.varying[static_cast<size_t>(at)]};
    }
  }
  return sets.at(value.node())[static_cast<size_t>(value.output())];
}

Values SumOverReplicas(Graph& graph, std::span<const Value> wrt, Values cotangents) {
  for (size_t i = 0; i < wrt.size(); ++i) {
    if (IsPoison(wrt[i])) continue;
    const std::optional<AxisSet> set = VaryingOf(wrt[i]);
    if (!set) {
      graph.Fail(fmt::format(
          "Gradients: wrt {} ({}) depends on the arguments of a body inside the ShardMap body, so "
          "it is not known along which axes it differs; ask for the gradient of a value of the "
          "ShardMap body, or use Vjp and sum what it returns",
          i, wrt[i].shape().ToString()));
      continue;
    }
    cotangents[i] = Psum(cotangents[i], AxesOutside(*graph.impl().mesh, *set));
  }
  return cotangents;
}

Values ShareAmongReplicas(Graph& graph, std::span<const Value> wrt, std::span<const Value> sums) {
  const Mesh& mesh = *graph.impl().mesh;
  Values shares(sums.begin(), sums.end());
  for (size_t i = 0; i < wrt.size(); ++i) {
    if (shares[i].empty() || IsPoison(wrt[i])) continue;
    const std::optional<AxisSet> set = VaryingOf(wrt[i]);
    if (!set) continue;  // SumOverReplicas refuses it
    const int64_t copies = mesh.Size(AxesOutside(mesh, *set));
    if (copies > 1) shares[i] = shares[i] * (1.0 / static_cast<double>(copies));
  }
  return shares;
}

}  // namespace forebay::xla
