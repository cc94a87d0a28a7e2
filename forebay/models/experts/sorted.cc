#include "forebay/models/experts/sorted.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "forebay/models/count_loop.h"
#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models::experts {

using xla::Comparison;
using xla::DType;
using xla::Value;
using xla::Values;

namespace {

// [m, k] x [n, k] -> [m, n], [m, k] x [k, n] -> [m, n] and [k, m] x [k, n] -> [m, n], in f32.
Value DotNT(Value a, Value b) { return xla::DotGeneral(a, b, {{}, {}, {1}, {1}}, DType::kF32); }
Value DotNN(Value a, Value b) { return xla::DotGeneral(a, b, {{}, {}, {1}, {0}}, DType::kF32); }
Value DotTN(Value a, Value b) { return xla::DotGeneral(a, b, {{}, {}, {0}, {0}}, DType::kF32); }

// Rows of a block: about a quarter of what an expert gets, so that the last, unfilled block of each
// costs little; never so few that the products become thin.
int64_t BlockRows(int64_t pairs, int64_t experts) {
  constexpr int64_t kRowsMin = 8, kRowsMax = 128;
  int64_t rows = kRowsMin;
  while (rows < kRowsMax && rows * 8 <= pairs / experts) rows *= 2;
  return rows;
}

Value Zeros(Value like, const xla::Dims& dims) {
  return xla::Full(*like.graph(), 0, {DType::kF32, dims});
}

// x[at] = part and x[at] += part, in place.
Value Store(Value x, Value at, Value part) {
  Values starts(x.dims().size(), xla::Constant(*x.graph(), 0, DType::kS32));
  starts[0] = at;
  return xla::DynamicUpdateSlice(x, xla::ExpandDims(part, 0), starts);
}
Value AddAt(Value x, Value at, Value part) { return Store(x, at, xla::IndexLeading(x, at) + part); }

}  // namespace

// Where each pair goes: blocks of m rows that share an expert.
struct SortedExperts::Plan {
  Value blocks;     // how many there are, s32 scalar
  Value expert_Q;   // of each block
  Value token_Qm;   // of each row; some token where there is no pair
  Value target_Qm;  // the same, but none (N) where there is no pair
  Value weight_Qm;  // of each row; 0 where there is no pair
  Value row_P;      // of each pair, among all rows; meaningless for a pair without an expert here
  Value here_P;     // whether the pair's expert is here

  // Runs `body(block, state) -> state` for the blocks that there are.
  template <typename Body>
  Values ForBlocks(const Values& state, const Body& body) const {
    return CountLoop(
        xla::Constant(*blocks.graph(), 0, DType::kS32), state,
        [&](Value block) { return xla::Compare(block, blocks, Comparison::kLt); }, body);
  }
};

struct SortedExperts::Block {
  Value expert;                 // s32 scalar
  Value token, target, weight;  // [m]
  Value x;                      // [m, D]
  Value gate, up, down;         // of the expert, in x's dtype
};

SortedExperts::SortedExperts(int64_t tokens, int64_t top_k, int64_t experts)
    : tokens_(tokens),
      top_k_(top_k),
      experts_(experts),
      pairs_(tokens * top_k),
      rows_(BlockRows(pairs_, experts)),
      blocks_(std::min(pairs_, pairs_ / rows_ + experts)) {}

Value SortedExperts::Forward(std::span<const Value> xs) const {
  const Plan plan = MakePlan(xs[kExperts], xs[kWeights]);
  const Value x = xs[kX];
  const Values start = {Zeros(x, x.dims())};
  return plan.ForBlocks(start, [&](Value block, std::span<const Value> state) {
    const Block b = Read(plan, block, xs);
    const Value gate = DotNT(b.x, b.gate), up = DotNT(b.x, b.up);
    const Value hidden = As(xla::Silu(gate) * up, x.dtype());
    const Value out = DotNT(hidden, b.down) * xla::ExpandDims(b.weight, 1);
    return Values{xla::ScatterAdd(state[0], b.target, out)};
  })[0];
}

Values SortedExperts::NoSums(std::span<const Value> xs) {
  return {Zeros(xs[kX], xs[kGate].dims()), Zeros(xs[kX], xs[kUp].dims()),
          Zeros(xs[kX], xs[kDown].dims())};
}

Values SortedExperts::Backward(std::span<const Value> xs, Value d_out, const Values& sums) const {
  const Plan plan = MakePlan(xs[kExperts], xs[kWeights]);
  const Value x = xs[kX];
  const Values start = {Zeros(x, x.dims()), Zeros(x, {blocks_, rows_, 1}), sums[0], sums[1],
                        sums[2]};
  const Values end = plan.ForBlocks(start, [&](Value block, std::span<const Value> state) {
    const Block b = Read(plan, block, xs);
    const DType narrow = x.dtype();
    const Value gate = DotNT(b.x, b.gate), up = DotNT(b.x, b.up);
    const Value active = xla::Silu(gate);
    const Value hidden = As(active * up, narrow);
    const Value d_row = xla::Take(d_out, b.token);
    const Value weight = xla::ExpandDims(b.weight, 1);
    // Of the hidden units, before the pair's weight.
    const Value d_plain = DotNN(d_row, b.down);
    const Value d_weight = xla::ReduceSum(d_plain * As(hidden, DType::kF32), {1}, true);
    const Value d_hidden = d_plain * weight;
    const Value sigmoid = xla::Logistic(gate);
    const Value slope = sigmoid * (1.0 + gate * (1.0 - sigmoid));
    const Value d_gate = As(d_hidden * up * slope, narrow);
    const Value d_up = As(d_hidden * active, narrow);
    const Value d_x = DotNN(d_gate, b.gate) + DotNN(d_up, b.up);
    const Value weighted = As(As(d_row, DType::kF32) * weight, narrow);
    return Values{xla::ScatterAdd(state[0], b.target, d_x), Store(state[1], block, d_weight),
                  AddAt(state[2], b.expert, DotTN(d_gate, b.x)),
                  AddAt(state[3], b.expert, DotTN(d_up, b.x)),
                  AddAt(state[4], b.expert, DotTN(weighted, hidden))};
  });
  return {end[0], xla::Reshape(OfPairs(plan, end[1]), {tokens_, top_k_}), end[2], end[3], end[4]};
}

SortedExperts::Plan SortedExperts::MakePlan(Value experts_NK, Value weights_NK) const {
  xla::Graph& graph = *experts_NK.graph();
  const auto constant = [&](double value) { return xla::Constant(graph, value, DType::kS32); };
  const auto iota = [&](int64_t count) { return xla::Iota(graph, {DType::kS32, {count}}, 0); };
  const Value flat = xla::Reshape(experts_NK, {pairs_});
  Plan plan;
  plan.here_P =
      xla::And(xla::Compare(flat, constant(0), Comparison::kGe),
               xla::Compare(flat, constant(static_cast<double>(experts_)), Comparison::kLt));
  // Pairs of other shards come last.
  const Value expert_P = xla::Select(plan.here_P, flat, constant(static_cast<double>(experts_)));
  const auto [negative, order_P] = xla::SortDescending(-expert_P);
  const Value sorted_P = -negative;
  const Value count_E =
      xla::ReduceSum(xla::Convert(xla::Compare(xla::ExpandDims(iota(experts_), 1),
                                               xla::ExpandDims(expert_P, 0), Comparison::kEq),
                                  DType::kS32),
                     {1});
  const Value blocks_E = (count_E + static_cast<double>(rows_ - 1)) / static_cast<double>(rows_);
  const Value last_block_E = xla::CumSum(blocks_E, 0);
  const Value first_block_E = last_block_E - blocks_E;
  const Value first_pair_E = xla::CumSum(count_E, 0) - count_E;
  plan.blocks = xla::ReduceSum(blocks_E, {0});

  const Value ended = xla::Compare(xla::ExpandDims(last_block_E, 0),
                                   xla::ExpandDims(iota(blocks_), 1), Comparison::kLe);
  plan.expert_Q = xla::Min(xla::ReduceSum(xla::Convert(ended, DType::kS32), {1}),
                           constant(static_cast<double>(experts_ - 1)));
  // The rows of a block among its expert's pairs.
  const auto of_block = [&](Value x_E) {
    return xla::ExpandDims(xla::Take(x_E, plan.expert_Q), 1);
  };
  const Value within_Qm =
      (xla::ExpandDims(iota(blocks_), 1) - of_block(first_block_E)) * static_cast<double>(rows_) +
      xla::Iota(graph, {DType::kS32, {1, rows_}}, 1);
  const Value real_Qm = xla::And(xla::Compare(within_Qm, constant(0), Comparison::kGe),
                                 xla::Compare(within_Qm, of_block(count_E), Comparison::kLt));
  const Value place_Qm = xla::Select(real_Qm, within_Qm + of_block(first_pair_E), constant(0));
  const Value pair_Qm = xla::Take(order_P, place_Qm);
  plan.token_Qm = pair_Qm / static_cast<double>(top_k_);
  plan.target_Qm = xla::Select(real_Qm, plan.token_Qm, constant(static_cast<double>(tokens_)));
  plan.weight_Qm = xla::Select(real_Qm, xla::Take(xla::Reshape(weights_NK, {pairs_}), pair_Qm),
                               xla::Constant(graph, 0, DType::kF32));
  // The inverse: each pair's row.
  const auto of_pair = [&](Value x_E) { return xla::Take(x_E, sorted_P); };
  const Value row_sorted =
      of_pair(first_block_E) * static_cast<double>(rows_) + (iota(pairs_) - of_pair(first_pair_E));
  plan.row_P = xla::ScatterSet(iota(pairs_), order_P, row_sorted);
  return plan;
}

SortedExperts::Block SortedExperts::Read(const Plan& plan, Value block, std::span<const Value> xs) {
  Block b;
  const DType narrow = xs[kX].dtype();
  b.expert = xla::IndexLeading(plan.expert_Q, block);
  b.token = xla::IndexLeading(plan.token_Qm, block);
  b.target = xla::IndexLeading(plan.target_Qm, block);
  b.weight = xla::IndexLeading(plan.weight_Qm, block);
  b.x = xla::Take(xs[kX], b.token);
  b.gate = As(xla::IndexLeading(xs[kGate], b.expert), narrow);
  b.up = As(xla::IndexLeading(xs[kUp], b.expert), narrow);
  b.down = As(xla::IndexLeading(xs[kDown], b.expert), narrow);
  return b;
}

// rows [Q, m, 1] -> those of the pairs [P, 1], 0 where the expert is not here.
Value SortedExperts::OfPairs(const Plan& plan, Value rows) const {
  const Value flat = xla::Reshape(rows, {blocks_ * rows_, rows.dim(2)});
  return xla::Select(xla::ExpandDims(plan.here_P, 1), xla::Take(flat, plan.row_P),
                     xla::Constant(*rows.graph(), 0, DType::kF32));
}

}  // namespace forebay::models::experts
