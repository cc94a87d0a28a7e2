#include "forebay/rollout/engine/programs.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine/processors.h"
#include "forebay/rollout/engine/sampler.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_product.h"
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

models::ParamValues TraceParams(xla::Graph& graph, const models::Model& model, DType dtype,
                                int* count) {
  models::ParamValues params;
  for (const models::ParamSpec& spec : model.Params(models::LayerLayout::kPerLayer)) {
    params[spec.name] = graph.Parameter({dtype, spec.shape.dims}, spec.name);
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
  inputs.params = TraceParams(graph, model, shape.weights_dtype, &inputs.first_cache);
  inputs.cache = TraceCache(graph, model, shape);
  return inputs;
}

// The program that returns the donated cache and then `more`, of which the first lies in parameter
// `reused` if that is not -1.
Result<xla::Program> Finish(xla::Graph& graph, const models::KvCache& cache, int first_cache,
                            std::span<const Value> more, int reused = -1) {
  std::vector<Value> results = cache.keys;
  results.insert(results.end(), cache.values.begin(), cache.values.end());
  std::vector<xla::Alias> aliases;
  aliases.reserve(results.size());
  for (int i = 0; i < static_cast<int>(results.size()); ++i) {
    aliases.push_back({.parameter = first_cache + i, .output = i});
  }
  if (reused >= 0) {
    aliases.push_back({.parameter = reused, .output = static_cast<int>(results.size())});
  }
  results.insert(results.end(), more.begin(), more.end());
  return graph.Finish(results, aliases);
}

}  // namespace

xla::Shape CacheShape(const models::ModelConfig& config, const EngineShape& shape) {
  return {.dtype = shape.cache_dtype,
          .dims = {shape.slots, config.kv_heads, shape.context, config.head_dim}};
}

Result<xla::Program> DecodeProgram(const models::Model& model, const EngineShape& shape,
                                   int64_t bucket) {
  xla::Graph graph(fmt::format("decode_{}", bucket));
  xla::UseHostProducts(graph, shape.host_product_rows);
  Inputs inputs = TraceInputs(graph, model, shape);
  const int64_t slots = shape.slots;
  const Value tokens_S = graph.Parameter({DType::kS32, {slots}}, "tokens");
  const Value positions_S = graph.Parameter({DType::kS32, {slots}}, "positions");
  graph.Parameter({DType::kF32, {slots, model.config().vocab_size}}, "logits");
  const int logits = inputs.first_cache + static_cast<int>(2 * inputs.cache.keys.size()) + 2;
  const Value hidden_SD = model.Decode(inputs.params, tokens_S, positions_S, bucket, &inputs.cache);
  const Value head_VD = model.Head(inputs.params);
  const Value narrow_SD =
      hidden_SD.dtype() == head_VD.dtype() ? hidden_SD : xla::Convert(hidden_SD, head_VD.dtype());
  const Value logits_SV = xla::DotGeneral(narrow_SD, head_VD, {{}, {}, {1}, {1}}, DType::kF32);
  const Value next_S = xla::Add(positions_S, xla::Constant(graph, 1, DType::kS32));
  const Value busy = xla::Compare(positions_S, xla::ZerosLike(positions_S), xla::Comparison::kGe);
  const std::array<Value, 2> more = {logits_SV, xla::Select(busy, next_S, positions_S)};
  return Finish(graph, inputs.cache, inputs.first_cache, more, logits);
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

Result<xla::Program> CopyProgram(const models::Model& model, const EngineShape& shape,
                                 int64_t bucket) {
  xla::Graph graph(fmt::format("copy_slot_{}", bucket));
  models::KvCache cache = TraceCache(graph, model, shape);
  const Value from = graph.Parameter({DType::kS32, {}}, "from");
  const Value to = graph.Parameter({DType::kS32, {}}, "to");
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  const std::array<Value, 4> from_starts = {from, zero, zero, zero};
  const std::array<Value, 4> to_starts = {to, zero, zero, zero};
  xla::Dims row = CacheShape(model.config(), shape).dims;
  row[0] = 1;
  row[2] = bucket;
  const Value clear = xla::Compare(from, zero, xla::Comparison::kLt);
  const Value nothing = xla::Constant(graph, 0, shape.cache_dtype);
  for (std::vector<Value>* entries : {&cache.keys, &cache.values}) {
    for (Value& layer : *entries) {
      const Value source = xla::DynamicSlice(layer, from_starts, row);
      layer = xla::DynamicUpdateSlice(layer, xla::Select(clear, nothing, source), to_starts);
    }
  }
  return Finish(graph, cache, 0, {});
}

Result<xla::Program> SampleProgram(const EngineShape& shape, int64_t vocab_size) {
  xla::Graph graph("sample");
  xla::UseHostProducts(graph, shape.host_product_rows);
  const int64_t slots = shape.slots;
  const Value logits_SV = graph.Parameter({DType::kF32, {slots, vocab_size}}, "logits");
  const Value positions_S = graph.Parameter({DType::kS32, {slots}}, "positions");
  const Value temperatures_S = graph.Parameter({DType::kF32, {slots}}, "temperatures");
  const Value seeds_S2 = graph.Parameter({DType::kU32, {slots, 2}}, "seeds");
  const Sampled sampled = Sample({.logits_SV = logits_SV,
                                  .positions_S = positions_S,
                                  .temperatures_S = temperatures_S,
                                  .seeds_S2 = seeds_S2});
  const std::array<Value, 2> rows = {
      xla::Reshape(sampled.tokens_S, {1, slots}),
      xla::Reshape(xla::BitcastConvert(sampled.logprobs_S, DType::kS32), {1, slots})};
  const std::array<Value, 2> results = {xla::Concatenate(rows, 0), sampled.tokens_S};
  return graph.Finish(results);
}

Result<xla::Program> EditProgram(int64_t slots, int64_t vocab_size, int64_t width) {
  xla::Graph graph("edit_logits");
  const Value logits_SV = graph.Parameter({DType::kF32, {slots, vocab_size}}, "logits");
  const Value tokens_SK = graph.Parameter({DType::kS32, {slots, width}}, "tokens");
  const Value biases_SK = graph.Parameter({DType::kF32, {slots, width}}, "biases");
  const Value factors_SK = graph.Parameter({DType::kF32, {slots, width}}, "factors");
  const Value subtract_SK = graph.Parameter({DType::kF32, {slots, width}}, "subtract");
  const std::array<Value, 1> results = {EditLogits(logits_SV, {.tokens_SK = tokens_SK,
                                                               .biases_SK = biases_SK,
                                                               .factors_SK = factors_SK,
                                                               .subtract_SK = subtract_SK})};
  return graph.Finish(results);
}

Result<xla::Program> FilterProgram(int64_t slots, int64_t vocab_size) {
  xla::Graph graph("filter_logits");
  const Value logits_SV = graph.Parameter({DType::kF32, {slots, vocab_size}}, "logits");
  const Value temperatures_S = graph.Parameter({DType::kF32, {slots}}, "temperatures");
  const Value top_k_S = graph.Parameter({DType::kS32, {slots}}, "top_k");
  const Value top_p_S = graph.Parameter({DType::kF32, {slots}}, "top_p");
  const Value min_p_S = graph.Parameter({DType::kF32, {slots}}, "min_p");
  const std::array<Value, 1> results = {FilterLogits(logits_SV, {.temperatures_S = temperatures_S,
                                                                 .top_k_S = top_k_S,
                                                                 .top_p_S = top_p_S,
                                                                 .min_p_S = min_p_S})};
  return graph.Finish(results);
}

Result<xla::Program> TopProgram(int64_t slots, int64_t vocab_size, int64_t most) {
  xla::Graph graph("top_logprobs");
  const Value logits_SV = graph.Parameter({DType::kF32, {slots, vocab_size}}, "logits");
  const Value temperatures_S = graph.Parameter({DType::kF32, {slots}}, "temperatures");
  const Value count = graph.Parameter({DType::kS32, {}}, "count");
  const Top top =
      TopLogprobs({.logits_SV = logits_SV, .temperatures_S = temperatures_S, .count = count}, most);
  const std::array<Value, 2> results = {top.tokens_SN, top.logprobs_SN};
  return graph.Finish(results);
}

}  // namespace forebay::rollout
