#include "forebay/models/attention.h"

#include <cmath>
#include <cstdint>

#include "forebay/models/attention/form.h"
#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using attention::DotNN;
using attention::DotNT;
using xla::Comparison;
using xla::DType;
using xla::Shape;
using xla::Value;

double Scale(const ScoreOptions& options, int64_t head_dim) {
  return options.scale == 0 ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : options.scale;
}

// Whether the key at `place` may be looked at from `position`.
Value Visible(Value place, Value position, const ScoreOptions& options) {
  const Value past = xla::Compare(place, position, Comparison::kLe);
  if (options.window.empty()) return past;
  return xla::And(past, xla::Compare(position - place, options.window, Comparison::kLt));
}

// softmax(scores) values; query [P, m, H], keys and values [P, C, H]; `visible` broadcasts against
// `grouped`, the dims of the scores that end in C.
Value Attend(Value query, Value keys, Value values, Value visible, const xla::Dims& grouped,
             const ScoreOptions& options) {
  xla::Graph& graph = *query.graph();
  const Value narrow = As(As(query, DType::kF32) * Scale(options, query.dim(-1)), keys.dtype());
  const Value scores =
      xla::Reshape(attention::SoftCap(DotNT(narrow, keys), options.softcap), grouped);
  const Value masked =
      xla::Select(visible, scores, xla::Constant(graph, attention::kMasked, DType::kF32));
  const Value weights = xla::Exp(masked - xla::ReduceMax(masked, {-1}, true));
  const Value sum =
      xla::Reshape(xla::ReduceSum(weights, {-1}, true), {query.dim(0), query.dim(1), 1});
  const Value flat = xla::Reshape(weights, {query.dim(0), query.dim(1), keys.dim(1)});
  return DotNN(As(flat, values.dtype()), values) / sum;
}

}  // namespace

Value PrefillAttention(Value query, Value keys_KCH, Value values_KCH, Value start, int64_t tokens,
                       const ScoreOptions& options) {
  const int64_t kv_heads = query.dim(0), group = query.dim(1) / tokens;
  const int64_t context = keys_KCH.dim(1);
  const Shape square{DType::kS32, {tokens, context}};
  const Value visible = Visible(xla::Iota(*query.graph(), square, 1),
                                xla::Iota(*query.graph(), square, 0) + start, options);
  return Attend(query, keys_KCH, values_KCH, visible, {kv_heads, group, tokens, context}, options);
}

Value DecodeAttention(Value query_SAH, Value keys_SKCH, Value values_SKCH, Value positions_S,
                      const ScoreOptions& options) {
  const int64_t slots = query_SAH.dim(0), heads = query_SAH.dim(1), dim = query_SAH.dim(2);
  const int64_t kv_heads = keys_SKCH.dim(1), context = keys_SKCH.dim(2);
  const int64_t pairs = slots * kv_heads, group = heads / kv_heads;
  const Value place = xla::Iota(*query_SAH.graph(), Shape{DType::kS32, {1, 1, 1, context}}, 3);
  const Value visible = Visible(place, xla::Reshape(positions_S, {slots, 1, 1, 1}), options);
  const Value mixed = Attend(xla::Reshape(query_SAH, {pairs, group, dim}),
                             xla::Reshape(keys_SKCH, {pairs, context, dim}),
                             xla::Reshape(values_SKCH, {pairs, context, dim}), visible,
                             {slots, kv_heads, group, context}, options);
  return xla::Reshape(mixed, {slots, heads, dim});
}

}  // namespace forebay::models
