// The programs of an optimizer step: gradient (one a shape), accumulate and apply (one each).
//
// Accumulation is a program of its own, so that a shape costs one compilation instead of two: the
// gradient program's results are either applied as they are or added first. Params stand in the
// order of Model::Params.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/base/status.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

struct GradientProgramOptions {
  models::LayerLayout layout = models::LayerLayout::kPerLayer;
  bool remat = false;
  int64_t logprob_chunk = 512;  // tokens whose logits exist at once
  bool entropy = true;          // the metric; it costs one more pass over each chunk's logits
  PolicyLossOptions loss;
  LoraOptions lora;
  xla::DType compute = xla::DType::kF32;  // of activations (models::ForwardOptions)
  // The devices that share the work (docs/sharding.md). With several, arguments and results are
  // split: parameters as their specs say, rows and tokens as models::RowsPartition.
  xla::Mesh mesh = {};
};

// (params..., adapters..., ints s32 [kIntPlanes, rows, length], floats f32 [kFloatPlanes, rows,
// length]) -> (gradients..., metrics f32 [kMetricSlots]). Gradients of the parameters or, with
// adapters, of those alone. Errors: also what LoraSpecs refuses.
Result<xla::Program> TraceGradient(const models::Model& model,
                                   const GradientProgramOptions& options, BucketShape shape);

// (params..., adapters...) -> (effective params...), for publishing.
Result<xla::Program> TraceMerge(const models::Model& model, const GradientProgramOptions& options);

// (sums..., gradients...) -> (sums...); sums are donated.
Result<xla::Program> TraceAccumulate(std::span<const models::ParamSpec> specs,
                                     const xla::Mesh& mesh = {});

// (params..., state..., gradients..., hyper f32 [HyperCount]) -> (params..., state..., gradient
// norm f32) of what is trained; params and state are donated.
Result<xla::Program> TraceApply(std::span<const models::ParamSpec> specs,
                                const OptimizerOptions& options, const xla::Mesh& mesh = {});

// How a micro-batch's planes [planes, rows, length] lie over a mesh.
xla::PartitionSpec PlanesPartition();

}  // namespace forebay::learner
