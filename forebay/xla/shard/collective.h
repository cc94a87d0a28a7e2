// What the collectives share: the check of their axes and pieces of their text. Private to xla/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/stablehlo/emitter.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::xla {

// The mesh of the ShardMap body under trace, with the axes checked; null after recording an error.
std::shared_ptr<const Mesh> CheckAxes(Graph& graph, std::string_view op, const Axes& axes);

// A node that talks along `axes`, which have more than one device.
class Collective : public Primitive {
 public:
  Collective(std::shared_ptr<const Mesh> mesh, const Axes& axes);

  TracedCost Cost(const Node& node) const override;

 protected:
  // What each device sends in a ring, given the size of the larger of operand and result.
  virtual double SentBytes(double bytes) const;
  const Mesh& mesh() const { return *mesh_; }
  const Axes& axes() const { return axes_; }
  int64_t size() const { return mesh_->Size(axes_); }
  AxisSet set() const { return set_; }
  // "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
  std::string GroupsText() const;

 private:
  std::shared_ptr<const Mesh> mesh_;
  Axes axes_;
  AxisSet set_;
};

// "channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>"; the Emitter fills in the
// number (Emitter::Collective).
std::string ChannelText();
// The region of a reduction by `op` ("add") of elements of this type.
std::string ReducerText(std::string_view op, DType dtype);

}  // namespace forebay::xla
