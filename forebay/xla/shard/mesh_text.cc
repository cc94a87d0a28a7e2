#include "forebay/xla/shard/mesh_text.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

std::string Quoted(const Axes& axes) {
  std::string out;
  for (const std::string& name : axes.names()) {
    out += fmt::format("{}\"{}\"", out.empty() ? "" : ", ", name);
  }
  return out;
}

}  // namespace

std::string MeshText(const Mesh& mesh) {
  std::string axes;
  for (const MeshAxis& axis : mesh.axes()) {
    axes += fmt::format("{}\"{}\"={}", axes.empty() ? "" : ", ", axis.name, axis.size);
  }
  return fmt::format("sdy.mesh @mesh = <[{}]>", axes);
}

std::string AxisNamesText(const Mesh& mesh) { return Quoted(mesh.Others(Axes())); }

std::string SpecText(const PartitionSpec& spec, int64_t rank) {
  std::string out = "[";
  for (int64_t i = 0; i < rank; ++i) {
    out += fmt::format("{}{{{}}}", i > 0 ? ", " : "", Quoted(spec.dim(i)));
  }
  return out + "]";
}

std::string ShardingAttribute(const PartitionSpec& spec, int64_t rank) {
  return fmt::format("sdy.sharding = #sdy.sharding<@mesh, {}>", SpecText(spec, rank));
}

ProgramSpecs InferSpecs(const Region& root, std::span<const Value> results) {
  std::unordered_map<const Node*, std::vector<PartitionSpec>> known;
  for (const Node* node : root.nodes) {
    const ShardMapSpecs* specs = node->primitive->specs();
    if (specs == nullptr) continue;
    for (size_t i = 0; i < node->operands.size(); ++i) {
      const Node* operand = node->operands[i].node();
      if (operand->primitive == nullptr) known.try_emplace(operand, 1, specs->in[i]);
    }
  }
  for (const Node* node : root.nodes) {
    std::vector<PartitionSpec>& out = known[node];
    out.resize(node->outputs.size());
    if (const ShardMapSpecs* specs = node->primitive->specs()) {
      out = specs->out;
      continue;
    }
    for (size_t i = 0; i < out.size(); ++i) {
      for (const Value& v : node->operands) {
        const auto at = known.find(v.node());
        if (at == known.end() || v.dims() != node->outputs[i].dims) continue;
        out[i] = at->second[static_cast<size_t>(v.output())];
        if (!out[i].dims().empty()) break;
      }
    }
  }
  const auto spec_of = [&](const Node* node, int output) {
    const auto at = known.find(node);
    return at == known.end() ? PartitionSpec() : at->second[static_cast<size_t>(output)];
  };
  ProgramSpecs specs;
  for (const Node* param : root.params) specs.arguments.push_back(spec_of(param, 0));
  for (const Value& v : results) specs.results.push_back(spec_of(v.node(), v.output()));
  return specs;
}

}  // namespace forebay::xla
