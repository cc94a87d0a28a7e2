// Legend: B rows, T columns, N = B T tokens, D width.
#include "forebay/learner/train_programs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/loss.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"
#include "forebay/models/parallel.h"
#include "forebay/models/weight_map.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

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

// Runs `body` on each device's parts of xs, or on xs themselves where there is one device.
Values OverMesh(const xla::Mesh& mesh, const std::vector<xla::PartitionSpec>& in,
                const std::vector<xla::PartitionSpec>& out, const xla::BodyFn& body,
                const Values& xs) {
  return mesh.size() == 1 ? body(xs) : xla::ShardMap(mesh, in, out, body, xs);
}

void AddPartitions(std::span<const models::ParamSpec> specs, std::vector<xla::PartitionSpec>* to) {
  for (const models::ParamSpec& spec : specs) to->push_back(spec.partition);
}

// Loss and metrics of all tokens, from those of each device's.
PolicyLossValues SumOverDevices(PolicyLossValues own) {
  xla::Graph& graph = *own.loss.graph();
  const Value slots = xla::Iota(graph, {DType::kS32, {kMetricSlots}}, 0);
  const Value is_maximum =
      xla::Compare(slots, xla::Constant(graph, kGapMax, DType::kS32), xla::Comparison::kEq);
  const xla::Axes axes = models::TokenAxes();
  return {.loss = xla::Psum(own.loss, axes),
          .metrics =
              xla::Select(is_maximum, xla::PMax(own.metrics, axes), xla::Psum(own.metrics, axes))};
}

// `count` parameters from `first` on donate their memory to the first results.
std::vector<xla::Alias> Donations(size_t count, size_t first = 0) {
  std::vector<xla::Alias> aliases;
  aliases.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    aliases.push_back({static_cast<int>(first + i), static_cast<int>(i)});
  }
  return aliases;
}

void Append(const Values& from, Values* to) { to->insert(to->end(), from.begin(), from.end()); }

}  // namespace

namespace {

// The loss of the tokens that this device has.
PolicyLossValues LossOf(const models::Model& model, const GradientProgramOptions& options,
                        const models::ParamValues& params, Value ints, Value floats) {
  xla::Graph& graph = *ints.graph();
  const models::Parallel parallel(options.mesh.size() > 1, options.parallel);
  const int64_t rows = ints.dim(1), length = ints.dim(2);
  const xla::Dims dims_BT = {rows, length};
  const xla::Dims dims_N = {rows * length};
  const Value hidden_BTD = model.Hidden(params,
                                        {.tokens_BT = Plane(ints, kTokens, dims_BT),
                                         .segments_BT = Plane(ints, kSegments, dims_BT),
                                         .positions_BT = Plane(ints, kPositions, dims_BT)},
                                        {.layout = options.layout,
                                         .remat = options.remat,
                                         .host_kernels = options.host_kernels,
                                         .compute = options.compute,
                                         .parallel = parallel});
  const Value weights_N = Plane(floats, kWeights, dims_N);
  const Value one = xla::Constant(graph, 1, DType::kF32);
  const Value zero = xla::Constant(graph, 0, DType::kF32);
  // Logits / temperature = (hidden / temperature) Head^T: any mix of temperatures runs in one
  // program.
  const Value scale_N = xla::Select(xla::Compare(weights_N, zero, xla::Comparison::kGt),
                                    Plane(floats, kInverseTemperature, dims_N), one);
  Value hidden_ND =
      xla::Reshape(hidden_BTD, {rows * length, hidden_BTD.dim(-1)}) * xla::ExpandDims(scale_N, 1);
  if (hidden_ND.dtype() != options.compute) hidden_ND = xla::Convert(hidden_ND, options.compute);
  const Value head = parallel.Gather(model.Head(params), models::TablePartition(), options.compute);
  Value entropy_N;
  const Value logp_N = models::ChunkedLogprobs(hidden_ND, head, Plane(ints, kTargets, dims_N), 1.0,
                                               std::min(options.logprob_chunk, rows * length),
                                               options.entropy ? &entropy_N : nullptr, parallel);
  const PolicyLossValues loss = PolicyLoss({.logp = logp_N,
                                            .rollout = Plane(floats, kRolloutLogprobs, dims_N),
                                            .advantages = Plane(floats, kAdvantages, dims_N),
                                            .weights = weights_N,
                                            .entropy = entropy_N},
                                           options.loss);
  return parallel.on() ? SumOverDevices(loss) : loss;
}

}  // namespace

Result<xla::Program> TraceGradient(const models::Model& model,
                                   const GradientProgramOptions& options, BucketShape shape) {
  xla::Graph graph("gradient");
  const auto specs = model.Params(options.layout);
  std::vector<models::ParamSpec> adapter_specs;
  if (options.lora.rank > 0) {
    FB_ASSIGN_OR_RETURN(adapter_specs, LoraSpecs(specs, options.lora));
  }
  const auto& trained = adapter_specs.empty() ? specs : adapter_specs;
  const size_t sums = options.into_sum ? trained.size() : 0;
  Values xs = Parameters(graph, specs, "");
  Append(Parameters(graph, adapter_specs, ""), &xs);
  const size_t sums_at = xs.size();
  if (sums > 0) Append(Parameters(graph, trained, "sum:"), &xs);
  xs.push_back(graph.Parameter({DType::kS32, {kIntPlanes, shape.rows, shape.length}}, "ints"));
  xs.push_back(graph.Parameter({DType::kF32, {kFloatPlanes, shape.rows, shape.length}}, "floats"));
  std::vector<xla::PartitionSpec> in, out;
  AddPartitions(specs, &in);
  AddPartitions(adapter_specs, &in);
  if (sums > 0) AddPartitions(trained, &in);
  in.insert(in.end(), 2, PlanesPartition());
  AddPartitions(trained, &out);
  out.emplace_back();

  const auto body = [&](std::span<const Value> own) {
    const auto params = own.first(specs.size());
    const auto adapters = own.subspan(specs.size(), adapter_specs.size());
    const Values effective =
        ApplyLora(specs, params, adapter_specs, adapters, LoraScale(options.lora));
    models::ParamValues named;
    for (size_t i = 0; i < specs.size(); ++i) named[specs[i].name] = effective[i];
    const PolicyLossValues loss =
        LossOf(model, options, named, own[own.size() - 2], own[own.size() - 1]);
    if (!graph.status().ok()) return Values(out.size(), graph.Fail("see the first error"));
    const auto wrt = adapters.empty() ? params : adapters;
    Values results = sums > 0 ? xla::AddGradients(loss.loss, wrt, own.subspan(sums_at, sums))
                              : xla::Gradients(loss.loss, wrt);
    results.push_back(loss.metrics);
    return results;
  };
  const Values results = OverMesh(options.mesh, in, out, body, xs);
  FB_RETURN_IF_ERROR(graph.status());
  return graph.Finish(results, Donations(sums, sums_at));
}

xla::PartitionSpec PlanesPartition() {
  const xla::PartitionSpec rows = models::RowsPartition();
  return {xla::Axes(), rows.dim(0), rows.dim(1)};
}

Result<xla::Program> TraceZeros(std::span<const models::ParamSpec> specs, const xla::Mesh& mesh) {
  xla::Graph graph("zeros");
  std::vector<xla::PartitionSpec> partitions;
  AddPartitions(specs, &partitions);
  return graph.Finish(OverMesh(
      mesh, partitions, partitions,
      [](std::span<const Value> own) {
        Values zeros;
        for (const Value& x : own) zeros.push_back(xla::ZerosLike(x));
        return zeros;
      },
      Parameters(graph, specs, "")));
}

Result<xla::Program> TraceAccumulate(std::span<const models::ParamSpec> specs,
                                     const xla::Mesh& mesh) {
  xla::Graph graph("accumulate");
  Values xs = Parameters(graph, specs, "sum:");
  Append(Parameters(graph, specs, "gradient:"), &xs);
  std::vector<xla::PartitionSpec> in, out;
  AddPartitions(specs, &out);
  AddPartitions(specs, &in);
  AddPartitions(specs, &in);
  const Values sums = OverMesh(
      mesh, in, out,
      [&](std::span<const Value> own) {
        Values added;
        for (size_t i = 0; i < specs.size(); ++i) added.push_back(own[i] + own[specs.size() + i]);
        return added;
      },
      xs);
  return graph.Finish(sums, Donations(specs.size()));
}

Result<xla::Program> TraceMerge(const models::Model& model, const GradientProgramOptions& options) {
  xla::Graph graph("merge");
  const auto specs = model.Params(options.layout);
  FB_ASSIGN_OR_RETURN(const auto adapter_specs, LoraSpecs(specs, options.lora));
  Values xs = Parameters(graph, specs, "");
  Append(Parameters(graph, adapter_specs, ""), &xs);
  std::vector<xla::PartitionSpec> in, out;
  AddPartitions(specs, &in);
  AddPartitions(adapter_specs, &in);
  AddPartitions(specs, &out);
  return graph.Finish(OverMesh(
      options.mesh, in, out,
      [&](std::span<const Value> own) {
        return ApplyLora(specs, own.first(specs.size()), adapter_specs, own.subspan(specs.size()),
                         LoraScale(options.lora));
      },
      xs));
}

Result<xla::Program> TraceApply(std::span<const models::ParamSpec> specs,
                                const OptimizerOptions& options, const xla::Mesh& mesh) {
  xla::Graph graph("apply");
  const std::vector<StateSpec> states = OptimizerStateSpecs(options, specs, mesh);
  const size_t n = specs.size();
  Values xs = Parameters(graph, specs, "");
  std::vector<xla::PartitionSpec> in, out;
  AddPartitions(specs, &in);
  for (const StateSpec& s : states) {
    xs.push_back(graph.Parameter(s.shape, s.slot + ":" + specs[s.param].name));
    in.push_back(s.partition);
  }
  out = in;
  out.emplace_back();
  Append(Parameters(graph, specs, "gradient:"), &xs);
  AddPartitions(specs, &in);
  xs.push_back(graph.Parameter({DType::kF32, {HyperCount(options)}}, "hyper"));
  in.emplace_back();
  const Values results = OverMesh(
      mesh, in, out,
      [&](std::span<const Value> own) {
        const OptimizerResult updated =
            OptimizerUpdate(options, specs, own.first(n), own.subspan(n, states.size()),
                            own.subspan(n + states.size(), n), own.back(), mesh);
        Values all = updated.params;
        Append(updated.state, &all);
        all.push_back(updated.grad_norm);
        return all;
      },
      xs);
  return graph.Finish(results, Donations(n + states.size()));
}

}  // namespace forebay::learner
