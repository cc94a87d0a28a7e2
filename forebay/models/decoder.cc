// Decoder over packed training rows, and its weights. (Over caches: decoder_cache.cc.)
//
// Legend: B rows, T tokens in a row, N = B * T, D width, L layers.
#include "forebay/models/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/model.h"
#include "forebay/models/packed_attention.h"
#include "forebay/models/rope.h"
#include "forebay/models/row_split.h"
#include "forebay/models/weight_map.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::DType;
using xla::Value;
using xla::Values;

namespace {

using Table = Value RopeTables::*;
constexpr Table kTables[] = {&RopeTables::cos_NH, &RopeTables::sin_NH};

// The parameter, or a poisoned value with the reason on the graph.
Value Param(xla::Graph& graph, const ParamValues& params, std::string_view name) {
  const auto it = params.find(std::string(name));
  if (it != params.end()) return it->second;
  return graph.Fail(
      fmt::format("the model is missing the parameter {}; Model::Params lists all", name));
}

}  // namespace

std::vector<LayerKind> WindowKinds(std::span<const int64_t> windows) {
  std::vector<LayerKind> kinds;
  kinds.reserve(windows.size());
  for (const int64_t window : windows) kinds.push_back({.window = window});
  return kinds;
}

Value LayerWeights::operator[](std::string_view suffix) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].suffix != suffix) continue;
    return parallel_.Gather(values_[i], PartitionOf(tensors_[i]), compute_);
  }
  FB_CHECK(false, fmt::format("no layer weight {}", suffix));
}

struct Decoder::Shared {
  Parallel parallel;
  RowMask mask;
  std::vector<RopeTables> ropes;
  // Each layer's kind; a window that covers the row is none.
  std::vector<LayerKind> kinds;
};

Values Decoder::LayerValues(xla::Graph& graph, const ParamValues& params, int64_t layer) const {
  Values values;
  for (const LayerTensor& tensor : spec_.map.tensors) {
    values.push_back(Param(graph, params, LayerName(layer, tensor.suffix)));
  }
  return values;
}

Value Decoder::Norm(Value x, Value weight) const { return RmsNorm(x, weight, eps()); }

// Rows of the embedding table, with zeros where `real_N` is false: whatever padding tokens hold (an
// id out of range, a row of NaN), nothing of it enters the products that attention sums over.
Value Decoder::Embed(const ParamValues& params, Value tokens_N, Value real_N,
                     const ForwardOptions& options) const {
  xla::Graph& graph = *tokens_N.graph();
  Value table = Param(graph, params, kEmbedName);
  if (!graph.status().ok()) return graph.Fail("see the first error");
  table = options.parallel.Gather(table, TablePartition(), options.compute);
  const Parallel::Local row = options.parallel.ToLocal(tokens_N, table.dim(0));
  const Value x = options.parallel.Leave(xla::Select(xla::ExpandDims(xla::And(real_N, row.mine), 1),
                                                     xla::Take(table, row.index),
                                                     xla::Constant(graph, 0, table.dtype())));
  return spec_.embed_scale == 1 ? x : x * spec_.embed_scale;
}

Value Decoder::Finish(const ParamValues& params, Value x_ND) const {
  return Norm(As(x_ND, DType::kF32), Param(*x_ND.graph(), params, kFinalNormName));
}

Value Decoder::RunPackedLayer(const Shared& shared, std::span<const Value> weights, Value x,
                              const RopeTables& rope, Value window) const {
  const int64_t dim = config().head_dim;
  const AttendFn attend = [&](Value query, Value key, Value value) {
    const HeadShape heads{query.dim(1) / dim, key.dim(1) / dim, dim};
    return PackedAttention(query, key, value, shared.mask, rope, heads, Scores(window));
  };
  return RunLayer(LayerWeights(spec_.map.tensors, weights, x.dtype(), shared.parallel), x, attend);
}

Value Decoder::RunStacked(const Shared& shared, const ParamValues& params, Value x) const {
  xla::Graph& graph = *x.graph();
  const std::vector<LayerKind>& kinds = shared.kinds;
  Values xs = LayerValues(graph, params, -1);
  const size_t weights = xs.size();
  const bool alike = std::ranges::all_of(kinds, [&](const LayerKind& k) { return k == kinds[0]; });
  if (!alike) {
    // What differs becomes data, so that one body serves all layers.
    std::vector<int32_t> windows, ropes;
    for (const LayerKind& kind : kinds) {
      windows.push_back(kind.window == 0 ? std::numeric_limits<int32_t>::max()
                                         : static_cast<int32_t>(kind.window));
      ropes.push_back(kind.rope);
    }
    const auto layers = static_cast<int64_t>(kinds.size());
    xs.push_back(xla::ConstantArrayS32(graph, windows, {layers}));
    xs.push_back(xla::ConstantArrayS32(graph, ropes, {layers}));
  }
  const auto step = [&](std::span<const Value> in) -> Values {
    const std::span<const Value> own = in.subspan(1, weights);
    if (alike) {
      const Value window =
          kinds[0].window == 0
              ? Value()
              : xla::Constant(graph, static_cast<double>(kinds[0].window), DType::kS32);
      return {RunPackedLayer(shared, own, in[0], shared.ropes[static_cast<size_t>(kinds[0].rope)],
                             window)};
    }
    RopeTables rope = shared.ropes[0];
    for (size_t i = 1; i < shared.ropes.size(); ++i) {
      const Value here =
          xla::Compare(in[weights + 2], xla::Constant(graph, static_cast<double>(i), DType::kS32),
                       xla::Comparison::kEq);
      for (const Table table : kTables) {
        rope.*table = xla::Select(here, shared.ropes[i].*table, rope.*table);
      }
    }
    return {RunPackedLayer(shared, own, in[0], rope, in[weights + 1])};
  };
  const Value carry[] = {x};
  return xla::Scan(step, carry, xs)[0];
}

Value Decoder::Hidden(const ParamValues& params, const PackedInputs& inputs,
                      const ForwardOptions& options) const {
  xla::Graph& graph = *inputs.tokens_BT.graph();
  const int64_t rows = inputs.tokens_BT.dim(0), length = inputs.tokens_BT.dim(1);
  // Inside, tokens stand as they are dealt to the devices; what comes out stands as it came.
  const RowSplit split(graph, options.parallel, length);
  const Value segments_BT = split.Deal(inputs.segments_BT);
  const auto flat = [&](Value x_BT) { return xla::Reshape(x_BT, {rows * length}); };
  const Value real_N =
      xla::Compare(flat(segments_BT), xla::Constant(graph, 0, DType::kS32), xla::Comparison::kNe);
  const ContextAttention wanted = options.parallel.context_attention();
  const bool ring =
      wanted == ContextAttention::kRing ||
      (wanted == ContextAttention::kAuto &&
       RingHides(length, config().query_heads / config().kv_heads, xla::ByteSize(options.compute)));

  // Behind a barrier, or XLA computes the mask and the angles again in each layer's fusions.
  Shared shared{
      .parallel = options.parallel,
      .mask = MakeRowMask(segments_BT, options.attention, {}, {split, ring, options.host_kernels}),
      .ropes = {},
      .kinds = {}};
  const Value positions_N = flat(split.Deal(inputs.positions_BT));
  for (const Rotation& rotation : spec_.rotations) {
    shared.ropes.push_back(MakeRopeTables(positions_N, rotation));
  }
  std::vector<Value*> tables;
  for (Value& value : shared.mask.values) tables.push_back(&value);
  for (RopeTables& rope : shared.ropes) {
    for (const Table table : kTables) {
      tables.push_back(&(rope.*table));
    }
  }
  Values behind;
  for (const Value* table : tables) behind.push_back(*table);
  behind = xla::OptimizationBarrier(behind);
  for (size_t i = 0; i < tables.size(); ++i) *tables[i] = behind[i];
  for (LayerKind kind : spec_.kinds) {
    if (kind.window >= split.row_length()) kind.window = 0;
    shared.kinds.push_back(kind);
  }

  Value x = As(Embed(params, flat(split.Deal(inputs.tokens_BT)), real_N, options), options.compute);
  if (options.layout == LayerLayout::kStacked) {
    x = RunStacked(shared, params, x);
  } else {
    for (size_t layer = 0; layer < shared.kinds.size(); ++layer) {
      const LayerKind& kind = shared.kinds[layer];
      const auto body = [&](std::span<const Value> xs) -> Values {
        const Value window =
            kind.window == 0 ? Value()
                             : xla::Constant(graph, static_cast<double>(kind.window), DType::kS32);
        return {RunPackedLayer(shared, xs.subspan(1), xs[0],
                               shared.ropes[static_cast<size_t>(kind.rope)], window)};
      };
      Values xs = LayerValues(graph, params, static_cast<int64_t>(layer));
      xs.insert(xs.begin(), x);
      x = options.remat ? xla::Remat(body, xs)[0] : body(xs)[0];
    }
  }
  // Zero at padding: so is its gradient, even if a loss sends NaN here.
  const Value hidden =
      xla::Select(xla::ExpandDims(real_N, 1), options.parallel.Enter(Finish(params, x)),
                  xla::Constant(graph, 0, DType::kF32));
  return split.Collect(xla::Reshape(hidden, {rows, length, config().width}));
}

Value Decoder::Head(const ParamValues& params) const {
  const std::string_view name = config().tied_embedding ? kEmbedName : kHeadName;
  const auto it = params.find(std::string(name));
  if (it != params.end()) return it->second;
  FB_CHECK(!params.empty(), "Head needs the parameters of a graph");
  return Param(*params.begin()->second.graph(), params, name);
}

std::vector<ParamSpec> Decoder::Params(LayerLayout layout) const {
  return ParamsOf(spec_.map, layout);
}

Result<weights::TensorMap> Decoder::FromCheckpoint(const weights::TensorMap& tensors,
                                                   LayerLayout layout) const {
  return ParamsFromCheckpoint(spec_.map, tensors, layout);
}

Result<weights::TensorMap> Decoder::ToCheckpoint(const weights::TensorMap& params,
                                                 LayerLayout layout) const {
  return ParamsToCheckpoint(spec_.map, params, layout);
}

}  // namespace forebay::models
