// The square form: a bias for all pairs of tokens, four blocks of queries a row.
//
// Legend: B rows, T tokens in a row, N = B * T, A query heads, K key/value heads, G = A / K, H head
// size, m queries of a block. Products run as [B * K, G * T, H] batches: XLA's CPU backend reaches
// three times the speed of the five-axis form on them (181 against 57 GFLOP/s).
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "forebay/models/attention/form.h"
#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models::attention {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Shape;
using xla::Value;
using xla::Values;

class Square {
 public:
  explicit Square(const Setup& setup)
      : setup_(setup), heads_(setup.heads), pairs_(setup.rows * setup.heads.kv_heads) {
    // Blocks of queries see only the keys before their end: with four of them, 5/8 of the full
    // square. Smaller blocks save little more and make the products too thin.
    constexpr int64_t kBlocks = 4, kBlockMin = 64;
    const int64_t block = std::max(kBlockMin, (setup.length + kBlocks - 1) / kBlocks);
    for (int64_t start = 0; start < setup.length; start += block) {
      blocks_.push_back({start, std::min(setup.length, start + block)});
    }
  }

  // -> attended [N, A * H], log-sum-exps [B * K, G, T, 1].
  Values Forward(std::span<const Value> xs) const {
    const Split s = SplitHeads(xs);
    Values outputs, log_sums;
    for (const Block& b : blocks_) {
      const Value scores = Masked(Scores(s, b), b, xs);
      const Value peak = xla::ReduceMax(scores, {-1}, true);
      const Value weights = xla::Exp(scores - peak);
      const Value sum = xla::ReduceSum(weights, {-1}, true);
      const Value mixed = DotNN(As(Flat(weights, b), s.value.dtype()), Keys(s.value, b));
      outputs.push_back(Grouped(mixed, b) / sum);
      log_sums.push_back(peak + xla::Log(sum));
    }
    return {As(JoinHeads(xla::Concatenate(outputs, 2)), xs[kQuery].dtype()),
            xla::Concatenate(log_sums, 2)};
  }

  Values Backward(std::span<const Value> xs, std::span<const Value> outputs,
                  Value cotangent) const {
    const Split s = SplitHeads(xs);
    const DType dtype = xs[kQuery].dtype();
    const Value d_out = SplitQuery(ZeroPadding(cotangent, xs[kSegments]));
    const Value out = SplitQuery(outputs[0]);
    const Value delta = xla::ReduceSum(As(d_out, DType::kF32) * As(out, DType::kF32), {-1}, true);
    Values d_queries;
    Value d_key, d_value;
    for (const Block& b : blocks_) {
      const Value scores = Scores(s, b);
      const Value weights = xla::Exp(Masked(scores, b, xs) - Queries(outputs[1], b));
      const Value d_block = Flat(Queries(d_out, b), b);
      const Value d_weights = Grouped(DotNT(d_block, Keys(s.value, b)), b);
      const Value d_capped = weights * (d_weights - Queries(delta, b));
      const Value d_scores = As(Flat(SoftCapGradient(d_capped, scores, setup_.softcap), b), dtype);
      d_queries.push_back(Grouped(DotNN(d_scores, Keys(s.key, b)), b));
      Accumulate(DotTN(d_scores, Flat(Queries(s.query, b), b)), &d_key);
      Accumulate(DotTN(As(Flat(weights, b), dtype), d_block), &d_value);
    }
    const Value d_query = As(JoinHeads(xla::Concatenate(d_queries, 2)), dtype);
    Values result(xs.size());
    result[kQuery] =
        RotateHeads(d_query, {xs[kCos], xs[kSin]}, heads_.head_dim, setup_.scale, true);
    result[kKey] =
        RotateHeads(As(JoinKv(d_key), dtype), {xs[kCos], xs[kSin]}, heads_.head_dim, 1, true);
    result[kValue] = As(JoinKv(d_value), dtype);
    return result;
  }

 private:
  struct Block {
    int64_t start, end;
  };
  struct Split {
    Value query;       // [B * K, G, T, H], scaled
    Value key, value;  // [B * K, T, H]
  };

  Split SplitHeads(std::span<const Value> xs) const {
    const auto real = [&](Operand which) { return ZeroPadding(xs[which], xs[kSegments]); };
    const Value query =
        RotateHeads(real(kQuery), {xs[kCos], xs[kSin]}, heads_.head_dim, setup_.scale, false);
    const Value key = RotateHeads(real(kKey), {xs[kCos], xs[kSin]}, heads_.head_dim, 1, false);
    return {SplitQuery(query), SplitKv(key), SplitKv(real(kValue))};
  }
  // [N, A * H] -> [B * K, G, T, H] and back.
  Value SplitQuery(Value x) const {
    const Value split = xla::Reshape(
        x, {setup_.rows, setup_.length, heads_.kv_heads, heads_.group(), heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 2, 3, 1, 4}),
                        {pairs_, heads_.group(), setup_.length, heads_.head_dim});
  }
  Value JoinHeads(Value x) const {
    const Value split = xla::Reshape(
        x, {setup_.rows, heads_.kv_heads, heads_.group(), setup_.length, heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 3, 1, 2, 4}),
                        {setup_.tokens(), heads_.query_heads * heads_.head_dim});
  }
  // [N, K * H] -> [B * K, T, H] and back.
  Value SplitKv(Value x) const {
    const Value split =
        xla::Reshape(x, {setup_.rows, setup_.length, heads_.kv_heads, heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 2, 1, 3}),
                        {pairs_, setup_.length, heads_.head_dim});
  }
  Value JoinKv(Value x) const {
    const Value split =
        xla::Reshape(x, {setup_.rows, heads_.kv_heads, setup_.length, heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 2, 1, 3}),
                        {setup_.tokens(), heads_.kv_heads * heads_.head_dim});
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

  // Scores of a block before the mask: [B * K, G, m, end].
  Value Scores(const Split& s, const Block& b) const {
    return SoftCap(Grouped(DotNT(Flat(Queries(s.query, b), b), Keys(s.key, b)), b), setup_.softcap);
  }
  Value Masked(Value scores, const Block& b, std::span<const Value> xs) const {
    const int64_t m = b.end - b.start;
    const Value bias = xla::Slice(xla::Slice(xs[kBias], 1, b.start, b.end), 2, 0, b.end);
    Value masked = xla::Reshape(scores, {setup_.rows, heads_.kv_heads, heads_.group(), m, b.end}) +
                   xla::Reshape(bias, {setup_.rows, 1, 1, m, b.end});
    if (setup_.has_window) {
      xla::Graph& graph = *scores.graph();
      const Shape square{DType::kS32, {m, b.end}};
      const Value distance =
          xla::Iota(graph, square, 0) - xla::Iota(graph, square, 1) + static_cast<double>(b.start);
      masked = xla::Select(xla::Compare(distance, xs[kWindow], Comparison::kLt), masked,
                           xla::Constant(graph, kMasked, DType::kF32));
    }
    return xla::Reshape(masked, {pairs_, heads_.group(), m, b.end});
  }

  // sum += part, where part [B * K, n, H] covers the first n of T keys.
  void Accumulate(Value part, Value* sum) const {
    if (part.dim(1) < setup_.length) part = xla::Pad(part, 1, 0, setup_.length - part.dim(1), 0);
    *sum = sum->empty() ? part : *sum + part;
  }

  Setup setup_;
  HeadShape heads_;
  int64_t pairs_;
  std::vector<Block> blocks_;
};

}  // namespace

Value SquareBias(Value segments_BT) {
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

Values SquareForward(const Setup& setup, std::span<const Value> xs) {
  return Square(setup).Forward(xs);
}

Values SquareBackward(const Setup& setup, std::span<const Value> xs, std::span<const Value> outputs,
                      Value cotangent) {
  return Square(setup).Backward(xs, outputs, cotangent);
}

}  // namespace forebay::models::attention
