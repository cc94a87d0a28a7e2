#include "forebay/xla/traced_cost.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <ranges>
#include <span>
#include <unordered_set>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/ops/region.h"

namespace forebay::xla {

int64_t TracedCost::collective_count() const {
  return std::accumulate(collectives.begin(), collectives.end(), int64_t{0},
                         [](int64_t sum, const CollectiveUse& use) { return sum + use.count; });
}

double TracedCost::sent_bytes() const {
  return std::accumulate(collectives.begin(), collectives.end(), 0.0,
                         [](double sum, const CollectiveUse& use) { return sum + use.sent_bytes; });
}

void TracedCost::Add(const TracedCost& other, int64_t times) {
  dot_flops += other.dot_flops * static_cast<double>(times);
  has_while = has_while || other.has_while;
  for (const CollectiveUse& use : other.collectives) {
    auto at = std::ranges::find_if(collectives, [&](const CollectiveUse& known) {
      return known.op == use.op && known.axes == use.axes;
    });
    if (at == collectives.end()) {
      collectives.push_back({.op = use.op, .axes = use.axes});
      at = collectives.end() - 1;
    }
    at->count += use.count * times;
    at->sent_bytes += use.sent_bytes * static_cast<double>(times);
  }
}

TracedCost Primitive::Cost(const Node&) const { return {}; }

TracedCost RegionCost(const Region& region, std::span<const Value> results) {
  std::unordered_set<const Node*> live;
  for (const Value& v : results) live.insert(v.node());
  TracedCost cost;
  for (const Node* node : region.nodes | std::views::reverse) {
    if (!live.contains(node)) continue;
    for (const Value& v : node->operands) live.insert(v.node());
    cost.Add(node->primitive->Cost(*node));
  }
  return cost;
}

}  // namespace forebay::xla
