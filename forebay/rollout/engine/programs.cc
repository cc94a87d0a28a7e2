#include "forebay/rollout/engine/programs.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine/sampler.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using xla::DType;
using xla::Value;

struct Inputs {
  models::ParamValues params;
  models::KvCache cache;
  int first_cache = 0;  // index of the first cache parameter
};

models::ParamValues TraceParams(xla::Graph& graph, const models::Model& model, int* count) {
  models::ParamValues params;
  for (const models::ParamSpec& spec : model.Params(models::LayerLayout::kPerLayer)) {
    params[spec.name] = graph.Parameter(spec.shape, spec.name);
    ++*count;
  }
  return params;
}

models::KvCache TraceCache(xla::Graph& graph, const models::Model& model,
                           const EngineShape& shape) {
  models::KvCache cache;
  const xla::Shape cache_shape = CacheShape(model.config(), shape);
  const int64_t layers = model.config().layers;
  for (int64_t i = 0; i < layers; ++i) {
    cache.keys.push_back(graph.Parameter(cache_shape, fmt::format("keys.{}", i)));
  }
  for (int64_t i = 0; i < layers; ++i) {
    cache.values.push_back(graph.Parameter(cache_shape, fmt::format("values.{}", i)));
  }
  return cache;
}

Inputs TraceInputs(xla::Graph& graph, const models::Model& model, const EngineShape& shape) {
  Inputs inputs;
  inputs.params = TraceParams(graph, model, &inputs.first_cache);
  inputs.cache = TraceCache(graph, model, shape);
  return inputs;
}

// The program that returns the donated cache and then `more`.
Result<xla::Program> Finish(xla::Graph& graph, const models::KvCache& cache, int first_cache,
                            std::span<const Value> more) {
  std::vector<Value> results = cache.keys;
  results.insert(results.end(), cache.values.begin(), cache.values.end());
  std::vector<xla::Alias> aliases;
  aliases.reserve(results.size());
  for (int i = 0; i < static_cast<int>(results.size()); ++i) {
    aliases.push_back({.parameter = first_cache + i, .output = i});
  }
  results.insert(results.end(), more.begin(), more.end());
  return graph.Finish(results, aliases);
}

}  // namespace

xla::Shape CacheShape(const models::ModelConfig& config, const EngineShape& shape) {
  return {.dtype = DType::kF32,
          .dims = {shape.slots, config.kv_heads, shape.context, config.head_dim}};
}

Result<xla::Program> DecodeProgram(const models::Model& model, const EngineShape& shape,
                                   int64_t bucket) {
  xla::Graph graph(fmt::format("decode_{}", bucket));
  Inputs inputs = TraceInputs(graph, model, shape);
  const int64_t slots = shape.slots;
  const Value tokens_S = graph.Parameter({DType::kS32, {slots}}, "tokens");
  const Value positions_S = graph.Parameter({DType::kS32, {slots}}, "positions");
  const Value temperatures_S = graph.Parameter({DType::kF32, {slots}}, "temperatures");
  const Value seeds_S2 = graph.Parameter({DType::kU32, {slots, 2}}, "seeds");

  const Value hidden_SD = model.Decode(inputs.params, tokens_S, positions_S, bucket, &inputs.cache);
  const Value logits_SV = xla::Linear(hidden_SD, model.Head(inputs.params));
  const Value one = xla::Constant(graph, 1, DType::kS32);
  const Value next_S = xla::Add(positions_S, one);
  const Sampled sampled = Sample({.logits_SV = logits_SV,
                                  .positions_S = next_S,
                                  .temperatures_S = temperatures_S,
                                  .seeds_S2 = seeds_S2});
  const std::array<Value, 2> rows = {
      xla::Reshape(sampled.tokens_S, {1, slots}),
      xla::Reshape(xla::BitcastConvert(sampled.logprobs_S, DType::kS32), {1, slots})};
  const Value busy = xla::Compare(positions_S, xla::ZerosLike(positions_S), xla::Comparison::kGe);
  const std::array<Value, 3> more = {xla::Concatenate(rows, 0), sampled.tokens_S,
                                     xla::Select(busy, next_S, positions_S)};
  return Finish(graph, inputs.cache, inputs.first_cache, more);
}

Result<xla::Program> PrefillProgram(const models::Model& model, const EngineShape& shape,
                                    int64_t chunk, int64_t bucket) {
  xla::Graph graph(fmt::format("prefill_{}_{}", chunk, bucket));
  Inputs inputs = TraceInputs(graph, model, shape);
  const Value tokens_T = graph.Parameter({DType::kS32, {chunk}}, "tokens");
  const Value slot = graph.Parameter({DType::kS32, {}}, "slot");
  const Value start = graph.Parameter({DType::kS32, {}}, "start");
  const Value length = graph.Parameter({DType::kS32, {}}, "length");
  model.Prefill(inputs.params, tokens_T, slot, start, length, bucket, &inputs.cache);
  return Finish(graph, inputs.cache, inputs.first_cache, {});
}

Result<xla::Program> CopyProgram(const models::Model& model, const EngineShape& shape) {
  xla::Graph graph("copy_slot");
  models::KvCache cache = TraceCache(graph, model, shape);
  const Value from = graph.Parameter({DType::kS32, {}}, "from");
  const Value to = graph.Parameter({DType::kS32, {}}, "to");
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  const std::array<Value, 4> from_starts = {from, zero, zero, zero};
  const std::array<Value, 4> to_starts = {to, zero, zero, zero};
  xla::Dims row = CacheShape(model.config(), shape).dims;
  row[0] = 1;
  const Value clear = xla::Compare(from, zero, xla::Comparison::kLt);
  const Value nothing = xla::Constant(graph, 0, DType::kF32);
  for (std::vector<Value>* entries : {&cache.keys, &cache.values}) {
    for (Value& layer : *entries) {
      const Value source = xla::DynamicSlice(layer, from_starts, row);
      layer = xla::DynamicUpdateSlice(layer, xla::Select(clear, nothing, source), to_starts);
    }
  }
  return Finish(graph, cache, 0, {});
}

}  // namespace forebay::rollout
