#include "forebay/xla/shard/collective.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard/varying.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/stablehlo/emitter.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {

std::shared_ptr<const Mesh> CheckAxes(Graph& graph, std::string_view op, const Axes& axes) {
  const Graph::Impl& impl = graph.impl();
  if (impl.shard_body == nullptr) {
    graph.Fail(fmt::format("{} along {}: outside of the body of a ShardMap there is one device", op,
                           axes.ToString()));
    return nullptr;
  }
  if (const Status status = impl.mesh->Check(axes); !status.ok()) {
    graph.Fail(fmt::format("{}: {}", op, status.message()));
    return nullptr;
  }
  return impl.mesh;
}

Collective::Collective(std::shared_ptr<const Mesh> mesh, const Axes& axes)
    : mesh_(std::move(mesh)), axes_(axes), set_(SetOf(*mesh_, axes)) {}

TracedCost Collective::Cost(const Node& node) const {
  const int64_t in = node.operands.empty() ? 0 : node.operands[0].shape().bytes();
  TracedCost cost;
  cost.collectives.push_back(
      {.op = std::string(name()),
       .axes = axes_,
       .count = 1,
       .sent_bytes = SentBytes(static_cast<double>(std::max(in, node.outputs[0].bytes())))});
  return cost;
}

double Collective::SentBytes(double bytes) const {
  const auto devices = static_cast<double>(size());
  return bytes * (devices - 1) / devices;
}

std::string Collective::GroupsText() const {
  const std::vector<std::vector<int64_t>> groups = mesh_->Groups(axes_);
  std::string out = "replica_groups = dense<[";
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i > 0) out += ", ";
    out += DimsText(groups[i]);
  }
  return out + fmt::format("]> : tensor<{}x{}xi64>", groups.size(), groups[0].size());
}

std::string ChannelText() {
  return fmt::format("channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>",
                     Emitter::kChannel);
}

std::string ReducerText(std::string_view op, DType dtype) {
  return fmt::format(
      "({{ ^bb0(%ra: {0}, %rb: {0}): %rc = stablehlo.{1} %ra, %rb : {0} stablehlo.return %rc : {0} "
      "}})",
      TypeText({dtype, {}}), op);
}

int64_t AxisSize(Graph& graph, const Axes& axes) {
  const std::shared_ptr<const Mesh> mesh = CheckAxes(graph, "AxisSize", axes);
  return mesh == nullptr ? 1 : mesh->Size(axes);
}

}  // namespace forebay::xla
