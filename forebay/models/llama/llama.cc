#include "forebay/models/llama/llama.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/models/attention.h"
#include "forebay/models/layers.h"
#include "forebay/models/llama/config.h"
#include "forebay/models/llama/weight_map.h"
#include "forebay/models/model.h"
#include "forebay/models/packed_attention.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::Value;
using xla::Values;

namespace {

// The parameter, or a poisoned value with the reason on the graph.
Value Param(xla::Graph& graph, const ParamValues& params, const std::string& name) {
  const auto it = params.find(name);
  if (it != params.end()) return it->second;
  return graph.Fail(
      fmt::format("the Llama model is missing the parameter {}; Model::Params lists all", name));
}

// Rows of the embedding table, with zeros where `real_N` is false: whatever padding tokens hold (an
// id out of range, a row of NaN), nothing of it enters the products that attention sums over.
Value Embed(Value table, Value tokens_N, Value real_N) {
  const Value zero = xla::Constant(*table.graph(), 0, xla::DType::kF32);
  return xla::Select(xla::ExpandDims(real_N, 1), xla::Take(table, tokens_N), zero);
}

}  // namespace

struct Llama::Layer {
  Value attention_norm, query, key, value, output, mlp_norm, gate, up, down;

  static Layer Of(std::span<const Value> w) {
    return {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]};
  }
};

namespace {

// The weights of layer `layer`, or the stacked ones for -1.
Values LayerWeights(xla::Graph& graph, const ModelConfig& config, const ParamValues& params,
                    int64_t layer) {
  Values weights;
  for (const LayerTensor& t : LlamaLayerTensors(config)) {
    weights.push_back(Param(graph, params, LayerName(layer, t.suffix)));
  }
  return weights;
}

}  // namespace

Llama::Llama(LlamaConfig config)
    : config_(std::move(config)),
      heads_{config_.base.query_heads, config_.base.kv_heads, config_.base.head_dim},
      frequencies_(RopeFrequencies(config_)) {}

std::vector<ParamSpec> Llama::Params(LayerLayout layout) const {
  return LlamaParams(config_.base, layout);
}

Value Llama::RunLayer(const Layer& layer, Value x_ND, const AttendFn& attend) const {
  const Value normed = RmsNorm(x_ND, layer.attention_norm, config_.base.rms_eps);
  const Value attended = attend(xla::Linear(normed, layer.query), xla::Linear(normed, layer.key),
                                xla::Linear(normed, layer.value));
  const Value middle = x_ND + xla::Linear(attended, layer.output);
  return middle + SwiGlu(RmsNorm(middle, layer.mlp_norm, config_.base.rms_eps), layer.gate,
                         layer.up, layer.down);
}

Value Llama::Finish(const ParamValues& params, Value x_ND) const {
  const Value weight = Param(*x_ND.graph(), params, std::string(kFinalNormName));
  return RmsNorm(x_ND, weight, config_.base.rms_eps);
}

Value Llama::Hidden(const ParamValues& params, const PackedInputs& inputs,
                    const ForwardOptions& options) const {
  xla::Graph& graph = *inputs.tokens_BT.graph();
  const ModelConfig& c = config_.base;
  const int64_t rows = inputs.tokens_BT.dim(0), length = inputs.tokens_BT.dim(1);
  const auto flat = [&](Value x_BT) { return xla::Reshape(x_BT, {rows * length}); };

  const Value real_N = xla::Compare(
      flat(inputs.segments_BT), xla::Constant(graph, 0, xla::DType::kS32), xla::Comparison::kNe);
  const RopeTables rope = MakeRopeTables(flat(inputs.positions_BT), frequencies_);
  // Behind a barrier, or XLA computes the mask and the angles again in each layer's fusions.
  RowMask mask = MakeRowMask(inputs.segments_BT, options.attention);
  Values tables = mask.values;
  tables.push_back(rope.cos_NH);
  tables.push_back(rope.sin_NH);
  const Values shared = xla::OptimizationBarrier(tables);

  Value x = Embed(Param(graph, params, std::string(kEmbedName)), flat(inputs.tokens_BT), real_N);
  // xs: the layer's input, its weights, then `shared`.
  const auto body = [&](std::span<const Value> xs) -> Values {
    const AttendFn attend = [&](Value query, Value key, Value value) {
      const size_t n = xs.size();
      RowMask local = mask;
      local.values = {xs[n - 4], xs[n - 3]};
      return PackedAttention(query, key, value, local, {xs[n - 2], xs[n - 1]}, heads_);
    };
    return {RunLayer(Layer::Of(xs.subspan(1)), xs[0], attend)};
  };
  if (options.layout == LayerLayout::kStacked) {
    const Value carry[] = {x};
    const auto step = [&](std::span<const Value> xs) -> Values {
      Values all(xs.begin(), xs.end());
      all.insert(all.end(), shared.begin(), shared.end());
      return body(all);
    };
    x = xla::Scan(step, carry, LayerWeights(graph, c, params, -1))[0];
  } else {
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      Values xs = {x};
      const Values weights = LayerWeights(graph, c, params, layer);
      xs.insert(xs.end(), weights.begin(), weights.end());
      xs.insert(xs.end(), shared.begin(), shared.end());
      x = options.remat ? xla::Remat(body, xs)[0] : body(xs)[0];
    }
  }
  // Zero at padding: so is its gradient, even if a loss sends NaN here.
  const Value hidden = xla::Select(xla::ExpandDims(real_N, 1), Finish(params, x),
                                   xla::Constant(graph, 0, xla::DType::kF32));
  return xla::Reshape(hidden, {rows, length, c.width});
}

Value Llama::Head(const ParamValues& params) const {
  const std::string name(config_.base.tied_embedding ? kEmbedName : kHeadName);
  const auto it = params.find(name);
  if (it != params.end()) return it->second;
  FB_CHECK(!params.empty(), "Head needs the parameters of a graph");
  return Param(*params.begin()->second.graph(), params, name);
}

Value Llama::Heads(Value x, int64_t count, const RopeTables& rope) const {
  return ApplyRope(xla::Reshape(x, {x.dim(0), count, heads_.head_dim}), rope);
}

bool Llama::CheckCache(xla::Graph& graph, const KvCache& cache, int64_t context) const {
  const auto layers = static_cast<size_t>(config_.base.layers);
  if (cache.keys.size() != layers || cache.values.size() != layers) {
    graph.Fail(fmt::format("a key/value cache of {} and {} layers was given to a model of {}",
                           cache.keys.size(), cache.values.size(), layers));
    return false;
  }
  for (size_t i = 0; i < layers; ++i) {
    for (const Value& part : {cache.keys[i], cache.values[i]}) {
      if (part.empty() || part.dims().size() != 4 || part.dim(1) != heads_.kv_heads ||
          part.dim(2) < context || part.dim(3) != heads_.head_dim || context < 1) {
        graph.Fail(fmt::format(
            "layer {}'s key/value cache is {}; expected [slots, {}, at least the context {}, {}]",
            i, part.empty() ? "empty" : part.shape().ToString(), heads_.kv_heads, context,
            heads_.head_dim));
        return false;
      }
      if (part.dim(0) * part.dim(1) * part.dim(2) > std::numeric_limits<int32_t>::max()) {
        graph.Fail(
            fmt::format("layer {}'s key/value cache {} has more than 2^31 rows; use fewer slots or "
                        "a shorter context",
                        i, part.shape().ToString()));
        return false;
      }
    }
  }
  return true;
}

Value Llama::Decode(const ParamValues& params, Value tokens_S, Value positions_S, int64_t context,
                    KvCache* cache) const {
  xla::Graph& graph = *tokens_S.graph();
  if (!CheckCache(graph, *cache, context)) return graph.Fail("see the first error");
  const int64_t slots = tokens_S.dim(0), kv_heads = heads_.kv_heads, dim = heads_.head_dim;
  const int64_t capacity = cache->keys[0].dim(2);
  const Value zero = xla::Constant(graph, 0, xla::DType::kS32);
  const Value active_S = xla::Compare(positions_S, zero, xla::Comparison::kGe);
  const RopeTables rope = MakeRopeTables(xla::Max(positions_S, zero), frequencies_);

  // The cache as rows [S * K * C, H]: each slot writes K of them. An idle slot's rows lie beyond
  // the end, where a scatter drops them.
  const xla::Shape grid{xla::DType::kS32, {slots, kv_heads}};
  const Value pair =
      xla::Iota(graph, grid, 0) * static_cast<double>(kv_heads) + xla::Iota(graph, grid, 1);
  const Value row = pair * static_cast<double>(capacity) + xla::ExpandDims(positions_S, 1);
  const Value beyond =
      xla::Constant(graph, static_cast<double>(slots * kv_heads * capacity), xla::DType::kS32);
  const Value rows =
      xla::Reshape(xla::Select(xla::ExpandDims(active_S, 1), row, beyond), {slots * kv_heads});
  const auto write = [&](Value* part, Value update) {
    const xla::Dims dims = part->dims();
    const Value flat = xla::Reshape(*part, {slots * kv_heads * capacity, dim});
    *part = xla::Reshape(xla::ScatterSet(flat, rows, xla::Reshape(update, {slots * kv_heads, dim})),
                         dims);
  };

  Value x = Embed(Param(graph, params, std::string(kEmbedName)), tokens_S, active_S);
  for (int64_t layer = 0; layer < config_.base.layers; ++layer) {
    Value& keys = cache->keys[static_cast<size_t>(layer)];
    Value& values = cache->values[static_cast<size_t>(layer)];
    const AttendFn attend = [&](Value query, Value key, Value value) {
      write(&keys, Heads(key, kv_heads, rope));
      write(&values, value);
      const Value attended =
          DecodeAttention(Heads(query, heads_.query_heads, rope), xla::Slice(keys, 2, 0, context),
                          xla::Slice(values, 2, 0, context), xla::Max(positions_S, zero), heads_);
      return xla::Reshape(attended, {slots, heads_.query_heads * dim});
    };
    x = RunLayer(Layer::Of(LayerWeights(graph, config_.base, params, layer)), x, attend);
  }
  return Finish(params, x);
}

Value Llama::Prefill(const ParamValues& params, Value tokens_T, Value slot, Value start,
                     Value length, int64_t context, KvCache* cache) const {
  xla::Graph& graph = *tokens_T.graph();
  if (!CheckCache(graph, *cache, context)) return graph.Fail("see the first error");
  const int64_t tokens = tokens_T.dim(0), kv_heads = heads_.kv_heads, dim = heads_.head_dim;
  const Value zero = xla::Constant(graph, 0, xla::DType::kS32);
  const Value index_T = xla::Iota(graph, xla::Shape{xla::DType::kS32, {tokens}}, 0);
  const RopeTables rope = MakeRopeTables(index_T + start, frequencies_);
  const Value corner[] = {slot, zero, start, zero};
  const Value first[] = {slot, zero, zero, zero};
  // [T, K, H] -> [1, K, T, H], into the slot's part of the cache.
  const auto write = [&](Value* part, Value update_TKH) {
    *part = xla::DynamicUpdateSlice(
        *part, xla::ExpandDims(xla::Transpose(update_TKH, {1, 0, 2}), 0), corner);
  };
  const auto read = [&](Value part) {
    return xla::Squeeze(xla::DynamicSlice(part, first, {1, kv_heads, context, dim}), 0);
  };

  const Value real_T = xla::Compare(index_T, length, xla::Comparison::kLt);
  Value x = Embed(Param(graph, params, std::string(kEmbedName)), tokens_T, real_T);
  for (int64_t layer = 0; layer < config_.base.layers; ++layer) {
    Value& keys = cache->keys[static_cast<size_t>(layer)];
    Value& values = cache->values[static_cast<size_t>(layer)];
    const AttendFn attend = [&](Value query, Value key, Value value) {
      write(&keys, Heads(key, kv_heads, rope));
      write(&values, xla::Reshape(value, {tokens, kv_heads, dim}));
      const Value query_TKGH = xla::Reshape(Heads(query, heads_.query_heads, rope),
                                            {tokens, kv_heads, heads_.group(), dim});
      const Value query_KMH = xla::Reshape(xla::Transpose(query_TKGH, {1, 2, 0, 3}),
                                           {kv_heads, heads_.group() * tokens, dim});
      const Value attended = PrefillAttention(query_KMH, read(keys), read(values), start, tokens);
      const Value attended_TKGH = xla::Transpose(
          xla::Reshape(attended, {kv_heads, heads_.group(), tokens, dim}), {2, 0, 1, 3});
      return xla::Reshape(attended_TKGH, {tokens, heads_.query_heads * dim});
    };
    x = RunLayer(Layer::Of(LayerWeights(graph, config_.base, params, layer)), x, attend);
  }
  return Finish(params, x);
}

Result<weights::TensorMap> Llama::FromCheckpoint(const weights::TensorMap& tensors,
                                                 LayerLayout layout) const {
  return LlamaFromCheckpoint(config_.base, tensors, layout);
}

Result<weights::TensorMap> Llama::ToCheckpoint(const weights::TensorMap& params,
                                               LayerLayout layout) const {
  return LlamaToCheckpoint(config_.base, params, layout);
}

}  // namespace forebay::models
