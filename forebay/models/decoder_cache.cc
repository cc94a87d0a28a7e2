// Decoder over key/value caches: prompt chunks and decode steps.
//
// Legend: S slots, T tokens of a chunk, N of either, A query heads, K key/value heads, C cached
// positions, H head size.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "forebay/models/attention.h"
#include "forebay/models/decode_attention.h"
#include "forebay/models/decoder.h"
#include "forebay/models/layers.h"
#include "forebay/models/model.h"
#include "forebay/models/rope.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

using xla::DType;
using xla::Value;
using xla::Values;

// How one kind of step treats its cache.
struct Decoder::Step {
  // Rotates, writes one layer's keys and values and attends over them: [N, A * H].
  std::function<Value(const DecodeHeads& heads, Value* keys, Value* values,
                      const ScoreOptions& scores)>
      attend;
  Value positions_N;
};

namespace {

// x [N, count * H] -> [N, count, H].
Value Heads(Value flat, int64_t dim) {
  return xla::Reshape(flat, {flat.dim(0), flat.dim(1) / dim, dim});
}

Value Rotated(Value flat, const RopeTables& rope) {
  const int64_t dim = 2 * rope.cos_NH.dim(1);
  return As(ApplyRope(As(Heads(flat, dim), DType::kF32), rope), flat.dtype());
}

}  // namespace

Value Decoder::RunCachedLayers(const ParamValues& params, const Step& step, Value x,
                               KvCache* cache) const {
  xla::Graph& graph = *x.graph();
  std::vector<RopeTables> ropes;
  ropes.reserve(spec_.rotations.size());
  for (const Rotation& rotation : spec_.rotations) {
    // Behind a barrier, or XLA computes the angles again in each layer's fusions.
    const RopeTables tables = MakeRopeTables(step.positions_N, rotation);
    const Value both[] = {tables.cos_NH, tables.sin_NH};
    const Values kept = xla::OptimizationBarrier(both);
    ropes.push_back({.cos_NH = kept[0], .sin_NH = kept[1]});
  }
  for (size_t layer = 0; layer < spec_.kinds.size(); ++layer) {
    const LayerKind& kind = spec_.kinds[layer];
    const RopeTables& rope = ropes[static_cast<size_t>(kind.rope)];
    const AttendFn attend = [&](Value query, Value key, Value value) {
      const Value window =
          kind.window == 0 ? Value()
                           : xla::Constant(graph, static_cast<double>(kind.window), DType::kS32);
      const DecodeHeads heads{.query = query, .key = key, .value = value, .rope = rope};
      return As(step.attend(heads, &cache->keys[layer], &cache->values[layer], Scores(window)),
                query.dtype());
    };
    const Values weights = LayerValues(graph, params, static_cast<int64_t>(layer));
    x = RunLayer(LayerWeights(spec_.map.tensors, weights, x.dtype(), Parallel()), x, attend);
  }
  return Finish(params, x);
}

// The number of layers and the shapes; records an error on the graph.
bool Decoder::CheckCache(xla::Graph& graph, const ParamValues& params, const KvCache& cache,
                         int64_t context) const {
  const size_t layers = spec_.kinds.size();
  if (cache.keys.size() != layers || cache.values.size() != layers) {
    graph.Fail(fmt::format("a key/value cache of {} and {} layers was given to a model of {}",
                           cache.keys.size(), cache.values.size(), layers));
    return false;
  }
  // The heads of the weights at hand, which may be a shard's.
  const auto projection = params.find(LayerName(0, "self_attn.k_proj.weight"));
  const int64_t kv_heads = projection == params.end()
                               ? config().kv_heads
                               : projection->second.dim(0) / config().head_dim;
  for (size_t i = 0; i < layers; ++i) {
    for (const Value& part : {cache.keys[i], cache.values[i]}) {
      if (part.empty() || part.dims().size() != 4 || part.dim(1) != kv_heads ||
          part.dim(2) < context || part.dim(3) != config().head_dim || context < 1) {
        graph.Fail(fmt::format(
            "layer {}'s key/value cache is {}; expected [slots, {}, at least the context {}, {}]",
            i, part.empty() ? "empty" : part.shape().ToString(), kv_heads, context,
            config().head_dim));
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

Value Decoder::Decode(const ParamValues& params, Value tokens_S, Value positions_S, int64_t context,
                      KvCache* cache) const {
  xla::Graph& graph = *tokens_S.graph();
  if (!CheckCache(graph, params, *cache, context)) return graph.Fail("see the first error");
  const int64_t slots = tokens_S.dim(0), kv_heads = cache->keys[0].dim(1);
  const int64_t capacity = cache->keys[0].dim(2), dim = config().head_dim;
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  const Value active_S = xla::Compare(positions_S, zero, xla::Comparison::kGe);

  // The cache as rows [S * K * C, H]: each slot writes K of them. An idle slot's rows lie beyond
  // the end, where a scatter drops them.
  const xla::Shape grid{DType::kS32, {slots, kv_heads}};
  const Value pair =
      xla::Iota(graph, grid, 0) * static_cast<double>(kv_heads) + xla::Iota(graph, grid, 1);
  const Value row = pair * static_cast<double>(capacity) + xla::ExpandDims(positions_S, 1);
  const Value beyond =
      xla::Constant(graph, static_cast<double>(slots * kv_heads * capacity), DType::kS32);
  const Value rows =
      xla::Reshape(xla::Select(xla::ExpandDims(active_S, 1), row, beyond), {slots * kv_heads});
  const auto write = [&](Value* part, Value update_SKH) {
    const xla::Dims dims = part->dims();
    const Value flat = xla::Reshape(*part, {slots * kv_heads * capacity, dim});
    const Value update = xla::Reshape(As(update_SKH, part->dtype()), {slots * kv_heads, dim});
    *part = xla::Reshape(xla::ScatterSet(flat, rows, update), dims);
  };
  const Step step{
      .attend =
          [&](const DecodeHeads& heads, Value* keys, Value* values, const ScoreOptions& scores) {
            if (CanAttendOnHost(heads.query, *keys)) {
              return HostDecodeAttention(heads, positions_S, keys, values, scores);
            }
            write(keys, Rotated(heads.key, heads.rope));
            write(values, Heads(heads.value, dim));
            const Value attended = DecodeAttention(
                Rotated(heads.query, heads.rope), xla::Slice(*keys, 2, 0, context),
                xla::Slice(*values, 2, 0, context), xla::Max(positions_S, zero), scores);
            return xla::Reshape(attended, heads.query.dims());
          },
      .positions_N = xla::Max(positions_S, zero)};
  return RunCachedLayers(params, step, Embed(params, tokens_S, active_S, {}), cache);
}

Value Decoder::Prefill(const ParamValues& params, Value tokens_T, Value slot, Value start,
                       Value length, int64_t context, KvCache* cache) const {
  xla::Graph& graph = *tokens_T.graph();
  if (!CheckCache(graph, params, *cache, context)) return graph.Fail("see the first error");
  const int64_t tokens = tokens_T.dim(0), kv_heads = cache->keys[0].dim(1);
  const int64_t dim = config().head_dim;
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  const Value index_T = xla::Iota(graph, xla::Shape{DType::kS32, {tokens}}, 0);
  const Value corner[] = {slot, zero, start, zero};
  const Value first[] = {slot, zero, zero, zero};
  const auto read = [&](Value part) {
    return xla::Squeeze(xla::DynamicSlice(part, first, {1, kv_heads, context, dim}), 0);
  };
  // [T, K, H] -> [1, K, T, H], into the slot's part of the cache.
  const auto write = [&](Value* part, Value update_TKH) {
    const Value update = xla::Transpose(As(update_TKH, part->dtype()), {1, 0, 2});
    *part = xla::DynamicUpdateSlice(*part, xla::ExpandDims(update, 0), corner);
  };
  const Step step{
      .attend =
          [&](const DecodeHeads& heads, Value* keys, Value* values, const ScoreOptions& scores) {
            write(keys, Rotated(heads.key, heads.rope));
            write(values, Heads(heads.value, dim));
            const Value query_TAH = Rotated(heads.query, heads.rope);
            const int64_t count = query_TAH.dim(1), group = count / kv_heads;
            const Value query_KMH =
                xla::Reshape(xla::Transpose(query_TAH, {1, 0, 2}), {kv_heads, group * tokens, dim});
            const Value attended =
                PrefillAttention(query_KMH, read(*keys), read(*values), start, tokens, scores);
            return xla::Reshape(
                xla::Transpose(xla::Reshape(attended, {count, tokens, dim}), {1, 0, 2}),
                heads.query.dims());
          },
      .positions_N = index_T + start};
  const Value real_T = xla::Compare(index_T, length, xla::Comparison::kLt);
  return RunCachedLayers(params, step, Embed(params, tokens_T, real_T, {}), cache);
}

}  // namespace forebay::models
