// The block form: for each block of queries, a loop over the blocks of keys that it needs.
//
// How many blocks of keys a block of queries needs is data: the inner loop is a While, which has no
// gradient of its own, but the whole is one CustomVjp.
#include "forebay/models/attention/blocks.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "forebay/models/attention/form.h"
#include "forebay/models/count_loop.h"
#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models::attention {

using xla::Comparison;
using xla::DType;
using xla::Shape;
using xla::Value;
using xla::Values;

namespace {

// [B, L, ...] padded with zeros to whole blocks of tokens.
Value PadRows(Value x, int64_t block) {
  const int64_t missing = (block - x.dim(1) % block) % block;
  return missing == 0 ? x : xla::Pad(x, 1, 0, missing, 0);
}

// Runs `body(j, state) -> state` for j = first, ..., last.
template <typename Body>
Values ForKeys(Value first, Value last, const Values& state, const Body& body) {
  return CountLoop(
      first, state, [&](Value j) { return xla::Compare(j, last, Comparison::kLe); }, body);
}

// x[at] += part, in place.
Value AddAt(Value x, Value at, Value part) {
  const Value zero = xla::Constant(*x.graph(), 0, DType::kS32);
  const Value starts[] = {at, zero, zero, zero};
  const Value sum = xla::IndexLeading(x, at) + part;
  return xla::DynamicUpdateSlice(x, xla::ExpandDims(sum, 0), starts);
}

}  // namespace

// What the loops know of a block of queries. Places count from the row's start.
struct Blocks::Block {
  enum Entry { kFirst, kLast, kRow, kPlace, kSegment, kEnd };
  explicit Block(std::span<const Value> x)
      : first(x[kFirst]), last(x[kLast]), row(x[kRow]), place(x[kPlace]), segments(x[kSegment]) {}

  Value first, last;  // blocks of keys
  Value row;          // of the first block of keys of this row among all rows'
  Value place;        // of the first query
  Value segments;     // [m]
};

// One entry a block of queries, in the order of Block::Entry.
Values Blocks::Entries(const Step& step, std::span<const Value> xs) const {
  xla::Graph& graph = *xs[kSegments].graph();
  const int64_t count = setup_.rows * counts_.query_blocks;
  std::vector<int32_t> row;
  row.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    row.push_back(static_cast<int32_t>(i / counts_.query_blocks * counts_.key_blocks));
  }
  Value first = step.first;
  if (setup_.has_window) {
    // The blocks of keys that end before the window of the first query begins.
    const Value earliest = xs[kPlaces] - xs[kWindow] + 1;
    const Value ends = step.key_places + static_cast<double>(keys_ - 1);
    const Value before =
        xla::Compare(xla::ExpandDims(ends, 0), xla::ExpandDims(earliest, 1), Comparison::kLt);
    first = xla::Max(first, xla::ReduceSum(xla::Convert(before, DType::kS32), {1}));
  }
  return {first, step.last, xla::ConstantArrayS32(graph, row, {count}), xs[kPlaces],
          xs[kQuerySegments]};
}

Value Blocks::Queries(std::span<const Value> xs) const {
  return DivideQueries(RotateHeads(ZeroPadding(xs[kQuery], xs[kSegments]), {xs[kCos], xs[kSin]},
                                   heads_.head_dim, setup_.scale, false));
}

Value Blocks::RotatedKey(std::span<const Value> xs) const {
  return RotateHeads(ZeroPadding(xs[kKey], xs[kSegments]), {xs[kCos], xs[kSin]}, heads_.head_dim, 1,
                     false);
}

Value Blocks::RealValue(std::span<const Value> xs) const {
  return ZeroPadding(xs[kValue], xs[kSegments]);
}

Value Blocks::Divide(Value x, int64_t chunks, int64_t block) const {
  const int64_t group = x.dim(1) / (heads_.kv_heads * heads_.head_dim);
  const Value rows = PadRows(xla::Reshape(x, {setup_.rows * chunks, -1, x.dim(1)}), block);
  const int64_t blocks = setup_.rows * chunks * rows.dim(1) / block;
  const Value split = xla::Reshape(rows, {blocks, block, heads_.kv_heads, group, heads_.head_dim});
  return xla::Reshape(xla::Transpose(split, {0, 2, 3, 1, 4}),
                      {blocks, heads_.kv_heads, group * block, heads_.head_dim});
}

Value Blocks::Join(Value x, int64_t chunks, int64_t length, int64_t block) const {
  const int64_t group = x.dim(2) / block, width = heads_.kv_heads * group * heads_.head_dim;
  const int64_t runs = setup_.rows * chunks;
  const Value split = xla::Reshape(x, {x.dim(0), heads_.kv_heads, group, block, heads_.head_dim});
  const Value rows =
      xla::Reshape(xla::Transpose(split, {0, 3, 1, 2, 4}), {runs, x.dim(0) / runs * block, width});
  return xla::Reshape(xla::Slice(rows, 1, 0, length), {runs * length, width});
}

Value Blocks::DivideQueries(Value x) const { return Divide(x, setup_.split.chunks(), queries_); }
Value Blocks::JoinQueries(Value x) const {
  return Join(x, setup_.split.chunks(), setup_.split.chunk_length(), queries_);
}
Value Blocks::DivideKeys(Value x) const { return Divide(x, counts_.key_chunks, keys_); }
Value Blocks::JoinKeys(Value x) const {
  return Join(x, counts_.key_chunks, counts_.key_chunk_length, keys_);
}

Value Blocks::HeadSums(Value x) const {
  const Value sums =
      xla::ReduceSum(xla::Reshape(x, {setup_.tokens(), heads_.query_heads, heads_.head_dim}), {-1});
  const Value rows = PadRows(xla::Reshape(sums, {setup_.rows * setup_.split.chunks(),
                                                 setup_.split.chunk_length(), heads_.query_heads}),
                             queries_);
  const int64_t blocks = setup_.rows * counts_.query_blocks;
  const Value split = xla::Reshape(rows, {blocks, queries_, heads_.kv_heads, heads_.group()});
  return xla::Reshape(xla::Transpose(split, {0, 2, 3, 1}), {blocks, heads_.kv_heads, flat_, 1});
}

// scores [K, M, n] of a block of queries against block j of its row's keys, capped.
Value Blocks::Masked(Value scores, const Block& block, Value j, const Step& step,
                     std::span<const Value> xs) const {
  xla::Graph& graph = *scores.graph();
  const Shape square{DType::kS32, {queries_, keys_}};
  // place of the query - place of the key
  const Value distance = xla::Iota(graph, square, 0) - xla::Iota(graph, square, 1) +
                         (block.place - xla::IndexLeading(step.key_places, j));
  const Value key_segments = xla::IndexLeading(step.key_segments, block.row + j);
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

Values Blocks::Forward(const Step& step, const Keys& keys, Value query, const Values& state,
                       std::span<const Value> xs) const {
  Values in = Entries(step, xs);
  in.push_back(query);
  in.insert(in.end(), state.begin(), state.end());
  return xla::Scan(
      [&](std::span<const Value> x) {
        const std::span<const Value> before = x.subspan(Block::kEnd + 1);
        return ForwardBlock(Block(x), x[Block::kEnd], {before.begin(), before.end()}, step, keys,
                            xs);
      },
      {}, in);
}

Values Blocks::ForwardBlock(const Block& block, Value query, const Values& state, const Step& step,
                            const Keys& keys, std::span<const Value> xs) const {
  xla::Graph& graph = *query.graph();
  Values start = state;
  if (start.empty()) {
    const Shape column{DType::kF32, {heads_.kv_heads, flat_, 1}};
    const Shape result{DType::kF32, {heads_.kv_heads, flat_, heads_.head_dim}};
    start = {xla::Full(graph, kMasked, column), xla::Full(graph, 0, column),
             xla::Full(graph, 0, result)};
  }
  return ForKeys(
      block.first, block.last, start, [&](Value j, std::span<const Value> now) -> Values {
        const Value at = block.row + j;
        const Value scores = SoftCap(DotNT(query, xla::IndexLeading(keys.key, at)), setup_.softcap);
        const Value masked = Masked(scores, block, j, step, xs);
        const Value peak = xla::Max(now[0], xla::ReduceMax(masked, {-1}, true));
        const Value weights = xla::Exp(masked - peak);
        // A query that has seen no key yet counts hidden ones with weight 1; its first visible key
        // multiplies them by exp(kMasked - score), an exact zero.
        const Value kept = xla::Exp(now[0] - peak);
        const Value mixed =
            DotNN(As(weights, keys.value.dtype()), xla::IndexLeading(keys.value, at));
        return {peak, now[1] * kept + xla::ReduceSum(weights, {-1}, true), now[2] * kept + mixed};
      });
}

Values Blocks::Finish(const Values& state) {
  // A block of padding runs no loop: 0 / tiny, not 0 / 0.
  const Value sum = xla::Max(state[1], xla::Constant(*state[1].graph(), 1e-30, DType::kF32));
  return {state[2] / sum, state[0] + xla::Log(sum)};
}

Values Blocks::Backward(const Step& step, const Keys& keys, const Asked& asked,
                        std::span<const Value> xs) const {
  Values in = Entries(step, xs);
  for (const Value& x : {asked.query, asked.d_out, asked.log_sum, asked.delta}) in.push_back(x);
  const Value zero = xla::Full(*keys.key.graph(), 0, {DType::kF32, keys.key.dims()});
  const Values sums = {zero, zero};
  return xla::Scan(
      [&](std::span<const Value> x) {
        const std::span<const Value> own = x.subspan(2);
        const Asked here{own[Block::kEnd], own[Block::kEnd + 1], own[Block::kEnd + 2],
                         own[Block::kEnd + 3]};
        return BackwardBlock(Block(own), here, {x[0], x[1]}, step, keys, xs);
      },
      sums, in);
}

Values Blocks::BackwardBlock(const Block& block, const Asked& asked, const Values& sums,
                             const Step& step, const Keys& keys, std::span<const Value> xs) const {
  const DType dtype = asked.query.dtype();
  const Value zero = xla::Full(*asked.query.graph(), 0, {DType::kF32, asked.query.dims()});
  const Values start = {sums[0], sums[1], zero};
  return ForKeys(
      block.first, block.last, start, [&](Value j, std::span<const Value> now) -> Values {
        const Value at = block.row + j;
        const Value key = xla::IndexLeading(keys.key, at);
        const Value scores = SoftCap(DotNT(asked.query, key), setup_.softcap);
        const Value weights = xla::Exp(Masked(scores, block, j, step, xs) - asked.log_sum);
        const Value d_weights = DotNT(asked.d_out, xla::IndexLeading(keys.value, at));
        const Value d_scores =
            As(SoftCapGradient(weights * (d_weights - asked.delta), scores, setup_.softcap), dtype);
        return {AddAt(now[0], at, DotTN(d_scores, asked.query)),
                AddAt(now[1], at, DotTN(As(weights, dtype), asked.d_out)),
                now[2] + DotNN(d_scores, key)};
      });
}

}  // namespace forebay::models::attention
