// Legend: B rows, T columns, N = B T tokens, D width.
#include "forebay/learner/train_programs.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using xla::DType;
using xla::Value;
using xla::Values;

// One plane of a [planes, rows, length] array, in `dims`.
Value Plane(Value planes, int plane, const xla::Dims& dims) {
  return xla::Reshape(xla::Slice(planes, 0, plane, plane + 1), dims);
}

Values Parameters(xla::Graph& graph, std::span<const models::ParamSpec> specs,
                  const std::string& prefix) {
  Values values;
  values.reserve(specs.size());
  for (const auto& spec : specs) values.push_back(graph.Parameter(spec.shape, prefix + spec.name));
  return values;
}

// The first `count` parameters donate their memory to the results at the same place.
std::vector<xla::Alias> Donations(size_t count) {
  std::vector<xla::Alias> aliases;
  aliases.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    aliases.push_back({static_cast<int>(i), static_cast<int>(i)});
  }
  return aliases;
}

void Append(const Values& from, Values* to) { to->insert(to->end(), from.begin(), from.end()); }

}  // namespace

Result<xla::Program> TraceGradient(const models::Model& model,
                                   const GradientProgramOptions& options, BucketShape shape) {
  xla::Graph graph("gradient");
  const auto specs = model.Params(options.layout);
  const Values params = Parameters(graph, specs, "");
  models::ParamValues named;
  std::vector<models::ParamSpec> adapter_specs;
  if (options.lora.rank > 0) {
    FB_ASSIGN_OR_RETURN(adapter_specs, LoraSpecs(specs, options.lora));
  }
  const Values adapters = Parameters(graph, adapter_specs, "");
  const Values effective =
      ApplyLora(specs, params, adapter_specs, adapters, LoraScale(options.lora));
  for (size_t i = 0; i < specs.size(); ++i) named[specs[i].name] = effective[i];
  const Value ints = graph.Parameter({DType::kS32, {kIntPlanes, shape.rows, shape.length}}, "ints");
  const Value floats =
      graph.Parameter({DType::kF32, {kFloatPlanes, shape.rows, shape.length}}, "floats");

  const xla::Dims dims_BT = {shape.rows, shape.length};
  const xla::Dims dims_N = {shape.tokens()};
  const Value hidden_BTD = model.Hidden(named,
                                        {.tokens_BT = Plane(ints, kTokens, dims_BT),
                                         .segments_BT = Plane(ints, kSegments, dims_BT),
                                         .positions_BT = Plane(ints, kPositions, dims_BT)},
                                        {.layout = options.layout, .remat = options.remat});
  const Value weights_N = Plane(floats, kWeights, dims_N);
  const Value one = xla::Constant(graph, 1, DType::kF32);
  const Value zero = xla::Constant(graph, 0, DType::kF32);
  // Logits / temperature = (hidden / temperature) Head^T: any mix of temperatures runs in one
  // program.
  const Value scale_N = xla::Select(xla::Compare(weights_N, zero, xla::Comparison::kGt),
                                    Plane(floats, kInverseTemperature, dims_N), one);
  const Value hidden_ND =
      xla::Reshape(hidden_BTD, {shape.tokens(), hidden_BTD.dim(-1)}) * xla::ExpandDims(scale_N, 1);
  Value entropy_N;
  const Value logp_N = models::ChunkedLogprobs(
      hidden_ND, model.Head(named), Plane(ints, kTargets, dims_N), 1.0,
      std::min(options.logprob_chunk, shape.tokens()), options.entropy ? &entropy_N : nullptr);

  const PolicyLossValues loss = PolicyLoss({.logp = logp_N,
                                            .rollout = Plane(floats, kRolloutLogprobs, dims_N),
                                            .advantages = Plane(floats, kAdvantages, dims_N),
                                            .weights = weights_N,
                                            .entropy = entropy_N},
                                           options.loss);
  FB_RETURN_IF_ERROR(graph.status());
  Values results = xla::Gradients(loss.loss, adapters.empty() ? params : adapters);
  results.push_back(loss.metrics);
  return graph.Finish(results);
}

Result<xla::Program> TraceAccumulate(std::span<const models::ParamSpec> specs) {
  xla::Graph graph("accumulate");
  Values sums = Parameters(graph, specs, "sum:");
  const Values grads = Parameters(graph, specs, "gradient:");
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] + grads[i];
  return graph.Finish(sums, Donations(sums.size()));
}

Result<xla::Program> TraceMerge(const models::Model& model, const GradientProgramOptions& options) {
  xla::Graph graph("merge");
  const auto specs = model.Params(options.layout);
  FB_ASSIGN_OR_RETURN(const auto adapter_specs, LoraSpecs(specs, options.lora));
  const Values params = Parameters(graph, specs, "");
  const Values adapters = Parameters(graph, adapter_specs, "");
  return graph.Finish(ApplyLora(specs, params, adapter_specs, adapters, LoraScale(options.lora)));
}

Result<xla::Program> TraceApply(std::span<const models::ParamSpec> specs,
                                const OptimizerOptions& options) {
  xla::Graph graph("apply");
  const Values params = Parameters(graph, specs, "");
  Values state;
  for (const StateSpec& s : OptimizerStateSpecs(options, specs)) {
    state.push_back(graph.Parameter(s.shape, s.slot + ":" + specs[s.param].name));
  }
  const Values grads = Parameters(graph, specs, "gradient:");
  const Value hyper = graph.Parameter({DType::kF32, {HyperCount(options)}}, "hyper");
  const OptimizerResult updated = OptimizerUpdate(options, specs, params, state, grads, hyper);
  Values results = updated.params;
  Append(updated.state, &results);
  results.push_back(updated.grad_norm);
  return graph.Finish(results, Donations(params.size() + state.size()));
}

}  // namespace forebay::learner
