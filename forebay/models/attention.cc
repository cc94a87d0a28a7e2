#include "forebay/models/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Shape;
using xla::Value;
using xla::Values;

// Finite, so that no row can give inf - inf; far below any score, so that its exponential is an
// exact zero.
constexpr double kMasked = -1e30;

// [P, m, k] x [P, n, k] -> [P, m, n]: scores of queries against keys.
Value DotNT(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {2}, {2}}); }
// [P, m, k] x [P, k, n] -> [P, m, n].
Value DotNN(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {2}, {1}}); }
// [P, k, m] x [P, k, n] -> [P, m, n].
Value DotTN(Value a, Value b) { return xla::DotGeneral(a, b, {{0}, {0}, {1}, {1}}); }

// Packed attention at fixed sizes, with its gradient.
class Packed {
 public:
  Packed(const HeadShape& heads, int64_t rows, int64_t length)
      : heads_(heads), rows_(rows), length_(length), pairs_(rows * heads.kv_heads) {
    // Blocks of queries see only the keys before their end: with four of them, 5/8 of the full
    // square. Smaller blocks save little more and make the products too thin.
    constexpr int64_t kBlocks = 4, kBlockMin = 64;
    const int64_t block = std::max(kBlockMin, (length + kBlocks - 1) / kBlocks);
    for (int64_t start = 0; start < length; start += block) {
      blocks_.push_back({start, std::min(length, start + block)});
    }
  }

  // xs: query, key, value, bias, cos, sin. -> attended [N, A * H], log-sum-exps [B * K, G, T, 1].
  Values Forward(std::span<const Value> xs) const {
    const Split s = SplitHeads(xs);
    std::vector<Value> outputs, log_sums;
    for (const Block& b : blocks_) {
      const Value scores = Scores(s, b, xs[3]);
      const Value peak = xla::ReduceMax(scores, {-1}, true);
      const Value weights = xla::Exp(scores - peak);
      const Value sum = xla::ReduceSum(weights, {-1}, true);
      const Value mixed = DotNN(Flat(weights, b), Keys(s.value, b));
      outputs.push_back(Grouped(mixed, b) / sum);
      log_sums.push_back(peak + xla::Log(sum));
    }
    return {JoinHeads(xla::Concatenate(outputs, 2)), xla::Concatenate(log_sums, 2)};
  }

  Values Backward(std::span<const Value> xs, std::span<const Value> outputs,
                  Value cotangent) const {
    const Split s = SplitHeads(xs);
    const Value d_out = SplitQuery(cotangent), out = SplitQuery(outputs[0]);
    const Value delta = xla::ReduceSum(d_out * out, {-1}, true);  // [B * K, G, T, 1]
    std::vector<Value> d_queries;
    Value d_key, d_value;
    for (const Block& b : blocks_) {
      const Value weights = xla::Exp(Scores(s, b, xs[3]) - Queries(outputs[1], b));
      const Value d_block = Flat(Queries(d_out, b), b);
      const Value d_weights = Grouped(DotNT(d_block, Keys(s.value, b)), b);
      const Value d_scores = Flat(weights * (d_weights - Queries(delta, b)), b);
      d_queries.push_back(Grouped(DotNN(d_scores, Keys(s.key, b)), b));
      Accumulate(DotTN(d_scores, Flat(Queries(s.query, b), b)), &d_key);
      Accumulate(DotTN(Flat(weights, b), d_block), &d_value);
    }
    const RopeTables rope{xs[4], xs[5]};
    const Value d_query = JoinHeads(xla::Concatenate(d_queries, 2) * Scale());
    return {Rotate(d_query, rope, heads_.query_heads, true),
            Rotate(JoinKv(d_key), rope, heads_.kv_heads, true),
            JoinKv(d_value),
            Value(),
            Value(),
            Value()};
  }

 private:
  struct Block {
    int64_t start, end;
  };
  struct Split {
    Value query;       // [B * K, G, T, H], scaled
    Value key, value;  // [B * K, T, H]
  };

  double Scale() const { return 1.0 / std::sqrt(static_cast<double>(heads_.head_dim)); }

  // x [N, count * H] -> the same, rotated.
  Value Rotate(Value x, const RopeTables& rope, int64_t count, bool inverse) const {
    const int64_t tokens = rows_ * length_;
    const Value x_NAH = xla::Reshape(x, {tokens, count, heads_.head_dim});
    return xla::Reshape(ApplyRope(x_NAH, rope, inverse), {tokens, count * heads_.head_dim});
  }

  Split SplitHeads(std::span<const Value> xs) const {
    const RopeTables rope{xs[4], xs[5]};
    const Value query = Rotate(xs[0], rope, heads_.query_heads, false) * Scale();
    return {SplitQuery(query), SplitKv(Rotate(xs[1], rope, heads_.kv_heads, false)),
            SplitKv(xs[2])};
  }
  // [N, A * H] -> [B * K, G, T, H] and back.
  Value SplitQuery(Value x) const {
    const Value split =
        xla::Reshape(x, {rows_, length_, heads_.kv_heads, heads_.group(), heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 2, 3, 1, 4}),
                        {pairs_, heads_.group(), length_, heads_.head_dim});
  }
  Value JoinHeads(Value x) const {
    const Value split =
        xla::Reshape(x, {rows_, heads_.kv_heads, heads_.group(), length_, heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 3, 1, 2, 4}),
                        {rows_ * length_, heads_.query_heads * heads_.head_dim});
  }
  // [N, K * H] -> [B * K, T, H] and back.
  Value SplitKv(Value x) const {
    const Value split = xla::Reshape(x, {rows_, length_, heads_.kv_heads, heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 2, 1, 3}), {pairs_, length_, heads_.head_dim});
  }
  Value JoinKv(Value x) const {
    const Value split = xla::Reshape(x, {rows_, heads_.kv_heads, length_, heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 2, 1, 3}),
                        {rows_ * length_, heads_.kv_heads * heads_.head_dim});
  }

  // The block's part of [B * K, G, T, ...], and the keys (or values) it may see.
  static Value Queries(Value x, const Block& b) { return xla::Slice(x, 2, b.start, b.end); }
  static Value Keys(Value x, const Block& b) { return xla::Slice(x, 1, 0, b.end); }
  // [B * K, G, m, n] <-> [B * K, G * m, n].
  Value Flat(Value x, const Block& b) const {
    return xla::Reshape(x, {pairs_, heads_.group() * (b.end - b.start), x.dim(-1)});
  }
  Value Grouped(Value x, const Block& b) const {
    return xla::Reshape(x, {pairs_, heads_.group(), b.end - b.start, x.dim(-1)});
  }

  // Masked scores of a block: [B * K, G, m, end].
  Value Scores(const Split& s, const Block& b, Value bias_BTT) const {
    const int64_t m = b.end - b.start;
    const Value scores = DotNT(Flat(Queries(s.query, b), b), Keys(s.key, b));
    const Value bias = xla::Slice(xla::Slice(bias_BTT, 1, b.start, b.end), 2, 0, b.end);
    const Value masked = xla::Reshape(scores, {rows_, heads_.kv_heads, heads_.group(), m, b.end}) +
                         xla::Reshape(bias, {rows_, 1, 1, m, b.end});
    return xla::Reshape(masked, {pairs_, heads_.group(), m, b.end});
  }

  // sum += part, where part [B * K, n, H] covers the first n of T keys.
  void Accumulate(Value part, Value* sum) const {
    if (part.dim(1) < length_) part = xla::Pad(part, 1, 0, length_ - part.dim(1), 0);
    *sum = sum->empty() ? part : *sum + part;
  }

  HeadShape heads_;
  int64_t rows_, length_, pairs_;
  std::vector<Block> blocks_;
};

}  // namespace

Value PackedBias(Value segments_BT) {
  xla::Graph& graph = *segments_BT.graph();
  const int64_t length = segments_BT.dim(1);
  const Value same = xla::Compare(xla::ExpandDims(segments_BT, 2), xla::ExpandDims(segments_BT, 1),
                                  Comparison::kEq);
  const Shape square{DType::kS32, {1, length, length}};
  const Value causal =
      xla::Compare(xla::Iota(graph, square, 1), xla::Iota(graph, square, 2), Comparison::kGe);
  return xla::Select(xla::And(same, causal), xla::Constant(graph, 0, DType::kF32),
                     xla::Constant(graph, kMasked, DType::kF32));
}

Value PackedAttention(Value query, Value key, Value value, Value bias_BTT, const RopeTables& rope,
                      const HeadShape& heads) {
  const Packed packed(heads, bias_BTT.dim(0), bias_BTT.dim(1));
  const Value xs[] = {query, key, value, bias_BTT, rope.cos_NH, rope.sin_NH};
  const Values outputs = xla::CustomVjp(
      [packed](std::span<const Value> in) { return packed.Forward(in); },
      [packed](std::span<const Value> in, std::span<const Value> out,
               std::span<const Value> d_out) { return packed.Backward(in, out, d_out[0]); },
      xs);
  return outputs[0];
}

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
