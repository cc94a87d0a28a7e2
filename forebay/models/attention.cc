#include "forebay/models/attention.h"

#include <cmath>
#include <cstdint>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Shape;
using xla::Value;

// Finite, so that no row can give inf - inf; far below any score, so that its exponential is an
// exact zero.
constexpr double kMasked = -1e30;

// [P, m, k] x [P, n, k] -> [P, m, n]: scores of queries against keys.
Value DotNT(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {2}, {2}}); }
// [P, m, k] x [P, k, n] -> [P, m, n].
Value DotNN(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {2}, {1}}); }
}  // namespace

Value PrefillAttention(Value query, Value keys_KCH, Value values_KCH, Value start, int64_t tokens) {
  xla::Graph& graph = *query.graph();
  const int64_t kv_heads = query.dim(0), group = query.dim(1) / tokens;
  const int64_t context = keys_KCH.dim(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(query.dim(2)));
  const Shape square{DType::kS32, {tokens, context}};
  const Value visible = xla::Compare(xla::Iota(graph, square, 1),
                                     xla::Iota(graph, square, 0) + start, Comparison::kLe);
  const Value scores =
      xla::Reshape(DotNT(query * scale, keys_KCH), {kv_heads, group, tokens, context});
  const Value masked = xla::Select(visible, scores, xla::Constant(graph, kMasked, DType::kF32));
  const Value weights = xla::Exp(masked - xla::ReduceMax(masked, {-1}, true));
  const Value sum =
      xla::Reshape(xla::ReduceSum(weights, {-1}, true), {kv_heads, group * tokens, 1});
  return DotNN(xla::Reshape(weights, {kv_heads, group * tokens, context}), values_KCH) / sum;
}

Value DecodeAttention(Value query_SAH, Value keys_SKCH, Value values_SKCH, Value positions_S,
                      const HeadShape& heads) {
  xla::Graph& graph = *query_SAH.graph();
  const int64_t slots = query_SAH.dim(0), context = keys_SKCH.dim(2);
  const int64_t pairs = slots * heads.kv_heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(heads.head_dim));
  const Value query = xla::Reshape(query_SAH * scale, {pairs, heads.group(), heads.head_dim});
  const Value keys = xla::Reshape(keys_SKCH, {pairs, context, heads.head_dim});
  const Value values = xla::Reshape(values_SKCH, {pairs, context, heads.head_dim});
  const Value visible = xla::Compare(xla::Iota(graph, Shape{DType::kS32, {1, 1, 1, context}}, 3),
                                     xla::Reshape(positions_S, {slots, 1, 1, 1}), Comparison::kLe);
  const Value scores =
      xla::Reshape(DotNT(query, keys), {slots, heads.kv_heads, heads.group(), context});
  const Value masked = xla::Select(visible, scores, xla::Constant(graph, kMasked, DType::kF32));
  const Value weights = xla::Exp(masked - xla::ReduceMax(masked, {-1}, true));
  const Value sum = xla::Reshape(xla::ReduceSum(weights, {-1}, true), {pairs, heads.group(), 1});
  const Value mixed = DotNN(xla::Reshape(weights, {pairs, heads.group(), context}), values) / sum;
  return xla::Reshape(mixed, {slots, heads.query_heads, heads.head_dim});
}

}  // namespace forebay::models
