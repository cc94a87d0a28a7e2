// One optimizer's rule for one parameter. Private to the learner; the formulas are in optimizer.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

// What a rule is given. `state` in the order of its slots; `finite` (scalar kPred) is false when
// the update must change nothing.
struct RuleInput {
  const OptimizerOptions& options;
  const models::ParamSpec& spec;  // of the whole parameter
  const xla::Mesh& mesh;          // several devices: values are this one's parts
  xla::Value param, grad;         // the gradient is clipped
  std::span<const xla::Value> state;
  xla::Value finite;
  xla::Value correction1, correction2;  // scalars of HyperSlot
  xla::Value update;                    // scalar of kUpdateNumber; empty without it

  bool sharded() const { return mesh.size() > 1; }
  // The mesh axes over which dimensions first ... last of the parameter are split (negative ones
  // count from the end); none where there is one device.
  xla::Axes SplitAxes(int64_t first, int64_t last) const;
};

// `step`: what is subtracted, times lr, weight decay not included.
struct RuleOutput {
  xla::Value step;
  xla::Values state;
};

struct RuleSlot {
  std::string name;
  xla::Shape shape;
  xla::PartitionSpec partition;
};

struct Rule {
  std::vector<RuleSlot> slots;
  RuleOutput (*apply)(const RuleInput& in) = nullptr;
};

// Without the axes that stack layers and experts: 2 for a matrix of each layer.
int64_t RankOfOne(const models::ParamSpec& spec);

Rule AdamWRule(const models::ParamSpec& spec);
Rule AdamW8bitRule(const models::ParamSpec& spec, const xla::Mesh& mesh);
Rule AdafactorRule(const models::ParamSpec& spec);
Rule LionRule(const models::ParamSpec& spec);
Rule MuonRule(const models::ParamSpec& spec);

// Newton-Schulz: the matrices of the last two axes of x, their singular values brought near 1. In
// the body of a ShardMap: of matrices that are split over these axes.
xla::Value Orthogonalize(xla::Value x, const xla::Axes& rows = {}, const xla::Axes& columns = {});

}  // namespace forebay::learner
