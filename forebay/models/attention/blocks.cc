// The block form: for each block of queries, a loop over the blocks of keys that it needs.
//
// Legend: B rows, T tokens in a row, N = B * T, A query heads, K key/value heads, G = A / K, H head
// size; m queries and n keys of a block, I = ceil(T / m) and J = ceil(T / n) blocks a row, M = G *
// m.
//
// How many blocks of keys a block of queries needs is data: the inner loop is a While, which has no
// gradient of its own, but this whole is one CustomVjp. The bounds are those of the smallest and
// largest segment in each block, so that any order of segments is right, and rising ids (as packing
// writes them) skip all that can be skipped.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "forebay/models/attention/form.h"
#include "forebay/models/count_loop.h"
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

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Blocks {
 public:
  explicit Blocks(const Setup& setup)
      : setup_(setup),
        heads_(setup.heads),
        queries_(setup.blocks.queries),
        keys_(setup.blocks.keys),
        flat_(setup.heads.group() * setup.blocks.queries),
        query_blocks_(CeilDiv(setup.length, setup.blocks.queries)),
        key_blocks_(CeilDiv(setup.key_length, setup.blocks.keys)) {}

  // -> attended [N, A * H], log-sum-exps [B * I, K, M, 1].
  Values Forward(std::span<const Value> xs) const {
    const Split s = SplitHeads(xs);
    Values in = Bounds(xs);
    in.push_back(s.query);
    const Values outputs = xla::Scan(
        [&](std::span<const Value> x) { return ForwardBlock(Reading(x), x[kBoundsEnd], s, xs); },
        {}, in);
    return {As(Join(outputs[0], queries_, setup_.length), xs[kQuery].dtype()), outputs[1]};
  }

  Values Backward(std::span<const Value> xs, std::span<const Value> outputs,
                  Value cotangent) const {
    const Split s = SplitHeads(xs);
    const DType dtype = xs[kQuery].dtype();
    const Value d_out = ZeroPadding(cotangent, xs[kSegments]);
    const Value delta = HeadSums(As(d_out, DType::kF32) * As(outputs[0], DType::kF32));
    Values in = Bounds(xs);
    for (const Value& x : {s.query, Divide(d_out, queries_), outputs[1], delta}) in.push_back(x);
    const Value zero = xla::Full(*s.key.graph(), 0, {DType::kF32, s.key.dims()});
    const Values sums = {zero, zero};
    const Values found = xla::Scan(
        [&](std::span<const Value> x) {
          return BackwardBlock(Reading(x.subspan(2)), x.subspan(2 + kBoundsEnd), {x[0], x[1]}, s,
                               xs);
        },
        sums, in);
    Values result(xs.size());
    result[kQuery] = RotateHeads(As(Join(found[2], queries_, setup_.length), dtype),
                                 {xs[kCos], xs[kSin]}, heads_.head_dim, setup_.scale, true);
    result[kKey] = RotateHeads(As(Join(found[0], keys_, setup_.key_length), dtype),
                               {xs[kKeyCos], xs[kKeySin]}, heads_.head_dim, 1, true);
    result[kValue] = As(Join(found[1], keys_, setup_.key_length), dtype);
    return result;
  }

 private:
  struct Split {
    Value query;       // [B * I, K, M, H], scaled
    Value key, value;  // [B * J, K, n, H]
    Value segments;    // of keys, [B * J, n]
  };
  // What the loops know of a block of queries. Places count from the row's start.
  enum Bound { kFirst, kLast, kRow, kPlace, kSegment, kBoundsEnd };
  struct Block {
    Value first, last;  // blocks of keys
    Value row;          // of the first block of keys of this row among all rows'
    Value place;        // of the first query
    Value segments;     // [m]
  };
  static Block Reading(std::span<const Value> x) {
    return {x[kFirst], x[kLast], x[kRow], x[kPlace], x[kSegment]};
  }

  // One entry a block of queries, in the order of Bound.
  Values Bounds(std::span<const Value> xs) const {
    xla::Graph& graph = *xs[kSegments].graph();
    const int64_t count = setup_.rows * query_blocks_;
    std::vector<int32_t> row, place;
    for (int64_t i = 0; i < count; ++i) {
      place.push_back(static_cast<int32_t>(i % query_blocks_ * queries_));
      row.push_back(static_cast<int32_t>(i / query_blocks_ * key_blocks_));
    }
    const auto table = [&](const std::vector<int32_t>& values) {
      return xla::ConstantArrayS32(graph, values, {count});
    };
    const Value places = table(place) + xs[kQueryPlace];
    const Value end = xla::Constant(graph, static_cast<double>(setup_.key_length - 1), DType::kS32);
    const Value last =
        xla::Min(places + static_cast<double>(queries_ - 1), end) / static_cast<double>(keys_);
    Value first = xs[kShared];
    if (setup_.has_window) {
      const Value zero = xla::Constant(graph, 0, DType::kS32);
      const Value earliest = xla::Max(places - xs[kWindow] + 1, zero);
      first = xla::Max(first, earliest / static_cast<double>(keys_));
    }
    return {first, last, table(row), places,
            xla::Reshape(PadRows(xs[kSegments], queries_), {count, queries_})};
  }

  Split SplitHeads(std::span<const Value> xs) const {
    const Value query = RotateHeads(ZeroPadding(xs[kQuery], xs[kSegments]), {xs[kCos], xs[kSin]},
                                    heads_.head_dim, setup_.scale, false);
    const Value key = RotateHeads(ZeroPadding(xs[kKey], xs[kKeySegments]),
                                  {xs[kKeyCos], xs[kKeySin]}, heads_.head_dim, 1, false);
    const Value value = ZeroPadding(xs[kValue], xs[kKeySegments]);
    return {Divide(query, queries_), Divide(key, keys_), Divide(value, keys_),
            xla::Reshape(PadRows(xs[kKeySegments], keys_), {setup_.rows * key_blocks_, keys_})};
  }

  // [B, T, ...] padded with zeros to whole blocks of tokens.
  static Value PadRows(Value x, int64_t block) {
    const int64_t missing = CeilDiv(x.dim(1), block) * block - x.dim(1);
    return missing == 0 ? x : xla::Pad(x, 1, 0, missing, 0);
  }
  // [N, count * H] -> [B * blocks, K, count / K * block, H].
  Value Divide(Value x, int64_t block) const {
    const int64_t group = x.dim(1) / (heads_.kv_heads * heads_.head_dim);
    const Value rows = PadRows(xla::Reshape(x, {setup_.rows, -1, x.dim(1)}), block);
    const int64_t blocks = setup_.rows * rows.dim(1) / block;
    const Value split =
        xla::Reshape(rows, {blocks, block, heads_.kv_heads, group, heads_.head_dim});
    return xla::Reshape(xla::Transpose(split, {0, 2, 3, 1, 4}),
                        {blocks, heads_.kv_heads, group * block, heads_.head_dim});
  }
  // The inverse, of rows of `length` tokens.
  Value Join(Value x, int64_t block, int64_t length) const {
    const int64_t group = x.dim(2) / block, width = heads_.kv_heads * group * heads_.head_dim;
    const Value split = xla::Reshape(x, {x.dim(0), heads_.kv_heads, group, block, heads_.head_dim});
    const Value rows = xla::Reshape(xla::Transpose(split, {0, 3, 1, 2, 4}),
                                    {setup_.rows, x.dim(0) / setup_.rows * block, width});
    return xla::Reshape(xla::Slice(rows, 1, 0, length), {setup_.rows * length, width});
  }
  // Sums over each head of x [N, A * H] -> [B * I, K, M, 1].
  Value HeadSums(Value x) const {
    const Value sums = xla::ReduceSum(
        xla::Reshape(x, {setup_.tokens(), heads_.query_heads, heads_.head_dim}), {-1});
    const Value rows =
        PadRows(xla::Reshape(sums, {setup_.rows, setup_.length, heads_.query_heads}), queries_);
    const int64_t blocks = setup_.rows * query_blocks_;
    const Value split = xla::Reshape(rows, {blocks, queries_, heads_.kv_heads, heads_.group()});
    return xla::Reshape(xla::Transpose(split, {0, 2, 3, 1}), {blocks, heads_.kv_heads, flat_, 1});
  }

  // Scores [K, M, n] of a block of queries against block j of its row's keys, before the mask.
  Value Scores(Value query, Value key) const { return SoftCap(DotNT(query, key), setup_.softcap); }
  Value Masked(Value scores, const Block& block, Value j, Value key_segments,
               std::span<const Value> xs) const {
    xla::Graph& graph = *scores.graph();
    const Shape square{DType::kS32, {queries_, keys_}};
    // place of the query - place of the key
    const Value distance = xla::Iota(graph, square, 0) - xla::Iota(graph, square, 1) +
                           (block.place - j * static_cast<double>(keys_));
    Value visible =
        xla::And(xla::Compare(xla::ExpandDims(block.segments, 1), xla::ExpandDims(key_segments, 0),
                              Comparison::kEq),
                 xla::Compare(distance, xla::Constant(graph, 0, DType::kS32), Comparison::kGe));
    if (setup_.has_window) {
      visible = xla::And(visible, xla::Compare(distance, xs[kWindow], Comparison::kLt));
    }
    const xla::Dims grouped = {heads_.kv_heads, heads_.group(), queries_, keys_};
    const Value masked = xla::Select(visible, xla::Reshape(scores, grouped),
                                     xla::Constant(graph, kMasked, DType::kF32));
    return xla::Reshape(masked, scores.dims());
  }

  // Runs `body(j, state) -> state` for the blocks of keys that `block` needs.
  template <typename Body>
  static Values ForKeys(const Block& block, const Values& state, const Body& body) {
    return CountLoop(
        block.first, state, [&](Value j) { return xla::Compare(j, block.last, Comparison::kLe); },
        body);
  }

  Values ForwardBlock(const Block& block, Value query, const Split& s,
                      std::span<const Value> xs) const {
    xla::Graph& graph = *query.graph();
    const Shape column{DType::kF32, {heads_.kv_heads, flat_, 1}};
    const Shape result{DType::kF32, {heads_.kv_heads, flat_, heads_.head_dim}};
    // Peak, sum and weighted values so far.
    const Values start = {xla::Full(graph, kMasked, column), xla::Full(graph, 0, column),
                          xla::Full(graph, 0, result)};
    const Values end = ForKeys(block, start, [&](Value j, std::span<const Value> state) -> Values {
      const Value at = block.row + j;
      const Value scores = Masked(Scores(query, xla::IndexLeading(s.key, at)), block, j,
                                  xla::IndexLeading(s.segments, at), xs);
      const Value peak = xla::Max(state[0], xla::ReduceMax(scores, {-1}, true));
      const Value weights = xla::Exp(scores - peak);
      // A query that has seen no key yet counts hidden ones with weight 1; its first visible key
      // multiplies them by exp(kMasked - score), an exact zero.
      const Value kept = xla::Exp(state[0] - peak);
      const Value mixed = DotNN(As(weights, s.value.dtype()), xla::IndexLeading(s.value, at));
      return {peak, state[1] * kept + xla::ReduceSum(weights, {-1}, true), state[2] * kept + mixed};
    });
    // A block of padding runs no loop: 0 / tiny, not 0 / 0.
    const Value sum = xla::Max(end[1], xla::Constant(graph, 1e-30, DType::kF32));
    return {end[2] / sum, end[0] + xla::Log(sum)};
  }

  // x: query, cotangent, log-sum-exps, delta. -> d(keys), d(values), d(query).
  Values BackwardBlock(const Block& block, std::span<const Value> x, const Values& sums,
                       const Split& s, std::span<const Value> xs) const {
    const Value query = x[0], d_out = x[1], log_sum = x[2], delta = x[3];
    const DType dtype = query.dtype();
    const Value zero = xla::Full(*query.graph(), 0, {DType::kF32, query.dims()});
    const Values start = {sums[0], sums[1], zero};
    return ForKeys(block, start, [&](Value j, std::span<const Value> state) -> Values {
      const Value at = block.row + j;
      const Value key = xla::IndexLeading(s.key, at);
      const Value scores = Scores(query, key);
      const Value masked = Masked(scores, block, j, xla::IndexLeading(s.segments, at), xs);
      const Value weights = xla::Exp(masked - log_sum);
      const Value d_weights = DotNT(d_out, xla::IndexLeading(s.value, at));
      const Value d_scores =
          As(SoftCapGradient(weights * (d_weights - delta), scores, setup_.softcap), dtype);
      return {AddAt(state[0], at, DotTN(d_scores, query)),
              AddAt(state[1], at, DotTN(As(weights, dtype), d_out)),
              state[2] + DotNN(d_scores, key)};
    });
  }

  // x[at] += part, in place.
  static Value AddAt(Value x, Value at, Value part) {
    const Value zero = xla::Constant(*x.graph(), 0, DType::kS32);
    const Value starts[] = {at, zero, zero, zero};
    const Value sum = xla::IndexLeading(x, at) + part;
    return xla::DynamicUpdateSlice(x, xla::ExpandDims(sum, 0), starts);
  }

  Setup setup_;
  HeadShape heads_;
  int64_t queries_, keys_, flat_;      // m, n, M
  int64_t query_blocks_, key_blocks_;  // I, J
};

}  // namespace

Value FirstBlocks(Value query_segments_BT, Value key_segments_BT, const AttentionBlocks& blocks) {
  xla::Graph& graph = *query_segments_BT.graph();
  const int64_t rows = query_segments_BT.dim(0);
  constexpr double kLowest = std::numeric_limits<int32_t>::min();
  constexpr double kHighest = std::numeric_limits<int32_t>::max();
  const auto constant = [&](double value) { return xla::Constant(graph, value, DType::kS32); };
  // The smallest and largest segment of each block, padding left out.
  struct Range {
    Value low, high;
  };
  const auto ranges = [&](Value segments_BT, int64_t block) -> Range {
    const int64_t length = segments_BT.dim(1), count = CeilDiv(length, block);
    const Value padded = xla::Pad(segments_BT, 1, 0, count * block - length, 0);
    const Value split = xla::Reshape(padded, {rows, count, block});
    const Value real = xla::Compare(split, constant(0), Comparison::kNe);
    return {xla::ReduceMin(xla::Select(real, split, constant(kHighest)), {-1}),
            xla::ReduceMax(xla::Select(real, split, constant(kLowest)), {-1})};
  };
  const Range query = ranges(query_segments_BT, blocks.queries);
  const Range key = ranges(key_segments_BT, blocks.keys);
  const auto at_most = [](Value a_BI, Value b_BJ, bool swap) {
    return xla::Compare(xla::ExpandDims(a_BI, 2), xla::ExpandDims(b_BJ, 1),
                        swap ? Comparison::kGe : Comparison::kLe);
  };
  const Value meet_BIJ =
      xla::And(at_most(query.low, key.high, false), at_most(query.high, key.low, true));
  const Value index = xla::Iota(graph, {DType::kS32, {1, 1, key.low.dim(1)}}, 2);
  const Value first = xla::ReduceMin(xla::Select(meet_BIJ, index, constant(kHighest)), {-1});
  return xla::Reshape(first, {rows * query.low.dim(1)});
}

Values BlocksForward(const Setup& setup, std::span<const Value> xs) {
  return Blocks(setup).Forward(xs);
}

Values BlocksBackward(const Setup& setup, std::span<const Value> xs, std::span<const Value> outputs,
                      Value cotangent) {
  return Blocks(setup).Backward(xs, outputs, cotangent);
}

}  // namespace forebay::models::attention
