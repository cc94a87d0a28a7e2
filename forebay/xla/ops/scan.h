// The Scan primitive. Private to xla/.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {

// Operands: initial carries, xs, captures. Region parameters: carries, one slice of each x,
// captures; its results: carries, ys. Node outputs: final carries, stacked ys and, once a gradient
// has asked for them, the carries that each iteration began with, stacked.
struct ScanLayout {
  size_t num_carry = 0;
  size_t num_xs = 0;
  int64_t length = 0;
  bool reverse = false;
  bool saves_carries = false;
};

class ScanPrimitive final : public Primitive {
 public:
  ScanPrimitive(const Region* region, const ScanLayout& layout)
      : region_(*region), layout_(layout) {}
  std::string_view name() const override { return "Scan"; }
  void Emit(const Node& node, Emitter& out) const override;
  Values Vjp(const VjpCall& call) const override;
  std::vector<AxisSet> Varying(const Node& node, std::span<const AxisSet> operands) const override;
  TracedCost Cost(const Node& node) const override;

 private:
  size_t num_ys() const { return region_.results.size() - layout_.num_carry; }

  const Region& region_;
  ScanLayout layout_;
};

// Appends a Scan over a traced region, without the xs that it does not read.
Values AddScan(Graph& graph, Region& region, ScanLayout layout, Values operands);

}  // namespace forebay::xla
