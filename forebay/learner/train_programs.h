// The programs of an optimizer step: gradient (one a shape), zeros or accumulate, and apply (one
// each).
//
// A shape costs one compilation. With GradientProgramOptions::into_sum each gradient program adds
// to the sum that the one before left; the first is given zeros. Without it a program of its own,
// accumulate, adds the results of two. Params stand in the order of Model::Params.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/base/status.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
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
  // The program adds its gradients to sums that it is given. With stacked layers that is done layer
  // by layer in the sums' own memory: gradients of a micro-batch never stand beside the sum, and
  // zeros for the first cost what a scan would fill its results with. On the CPU with a program a
  // layer it would be one more pass over all gradients in a step of one micro-batch.
  bool into_sum = false;
  xla::DType compute = xla::DType::kF32;  // of activations (models::ForwardOptions)
  bool host_kernels = false;              // models::ForwardOptions; a TrainStep asks its client
  // The devices that share the work (docs/sharding.md). With several, arguments and results are
  // split: parameters as their specs say, rows and tokens as models::RowsPartition.
  xla::Mesh mesh = {};
  models::ParallelOptions parallel = {};
};

// (params..., adapters..., ints s32 [kIntPlanes, rows, length], floats f32 [kFloatPlanes, rows,
// length]) -> (gradients..., metrics f32 [kMetricSlots]). Gradients of the parameters or, with
// adapters, of those alone. With into_sum: (params..., adapters..., sums..., ints, floats) ->
// (sums..., metrics); sums are donated. Errors: also what LoraSpecs refuses.
Result<xla::Program> TraceGradient(const models::Model& model,
                                   const GradientProgramOptions& options, BucketShape shape);

// (params..., adapters...) -> (effective params...), for publishing.
Result<xla::Program> TraceMerge(const models::Model& model, const GradientProgramOptions& options);

// (params...) -> (zeros...) of what is trained.
Result<xla::Program> TraceZeros(std::span<const models::ParamSpec> specs,
                                const xla::Mesh& mesh = {});

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
