// Legend: N tokens, K experts a token, P = N * K pairs, E experts at hand, D width, F feed-forward
// width; m rows of a block, Q blocks at most.
#include "forebay/models/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "forebay/models/count_loop.h"
#include "forebay/models/layers.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::models {

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

// Where each pair goes: blocks of m rows that share an expert.
struct Plan {
  Value blocks;     // how many there are, s32 scalar
  Value expert_Q;   // of each block
  Value token_Qm;   // of each row
  Value weight_Qm;  // of each row; 0 where there is no pair
  Value row_P;      // of each pair, among all rows; meaningless for a pair without an expert here
  Value here_P;     // whether the pair's expert is here
};

class Experts {
 public:
  Experts(int64_t tokens, int64_t top_k, int64_t experts)
      : tokens_(tokens),
        top_k_(top_k),
        experts_(experts),
        pairs_(tokens * top_k),
        rows_(BlockRows(pairs_, experts)),
        blocks_(std::min(pairs_, pairs_ / rows_ + experts)) {}

  // xs: x [N, D], weights [N, K], experts [N, K], gate, up [E, F, D], down [E, D, F]. -> [N, D].
  Values Forward(std::span<const Value> xs) const {
    const Plan plan = MakePlan(xs[2], xs[1]);
    const Value x = xs[0];
    const Values start = {Zeros(x, {blocks_, rows_, x.dim(1)}, x.dtype())};
    const Values end = ForBlocks(plan, start, [&](Value block, std::span<const Value> state) {
      const Block b = Read(plan, block, xs);
      const Value gate = DotNT(b.x, b.gate), up = DotNT(b.x, b.up);
      const Value hidden = As(xla::Silu(gate) * up, x.dtype());
      const Value out = DotNT(hidden, b.down) * xla::ExpandDims(b.weight, 1);
      return Values{Store(state[0], block, As(out, x.dtype()))};
    });
    return {As(SumPairs(plan, end[0]), x.dtype())};
  }

  Values Backward(std::span<const Value> xs, Value d_out) const {
    const Plan plan = MakePlan(xs[2], xs[1]);
    const Value x = xs[0];
    const Values start = {Zeros(x, {blocks_, rows_, x.dim(1)}, x.dtype()),
                          Zeros(x, {blocks_, rows_, 1}, DType::kF32),
                          Zeros(x, xs[3].dims(), DType::kF32), Zeros(x, xs[4].dims(), DType::kF32),
                          Zeros(x, xs[5].dims(), DType::kF32)};
    const Values end = ForBlocks(plan, start, [&](Value block, std::span<const Value> state) {
      const Block b = Read(plan, block, xs);
      const DType narrow = x.dtype();
      const Value gate = DotNT(b.x, b.gate), up = DotNT(b.x, b.up);
      const Value active = xla::Silu(gate);
      const Value hidden = As(active * up, narrow);
      const Value d_row = xla::Take(d_out, b.token);
      const Value weight = xla::ExpandDims(b.weight, 1);
      // Of the hidden units, before the pair's weight.
      const Value d_plain = DotNN(d_row, b.down);
      const Value d_weight =
          xla::ReduceSum(d_plain * As(hidden, DType::kF32), {1}, /*keep_dims=*/true);
      const Value d_hidden = d_plain * weight;
      const Value sigmoid = xla::Logistic(gate);
      const Value slope = sigmoid * (1.0 + gate * (1.0 - sigmoid));
      const Value d_gate = As(d_hidden * up * slope, narrow);
      const Value d_up = As(d_hidden * active, narrow);
      const Value d_x = DotNN(d_gate, b.gate) + DotNN(d_up, b.up);
      const Value weighted = As(As(d_row, DType::kF32) * weight, narrow);
      return Values{Store(state[0], block, As(d_x, narrow)), Store(state[1], block, d_weight),
                    AddAt(state[2], b.expert, DotTN(d_gate, b.x)),
                    AddAt(state[3], b.expert, DotTN(d_up, b.x)),
                    AddAt(state[4], b.expert, DotTN(weighted, hidden))};
    });
    const Value d_weights = xla::Reshape(OfPairs(plan, end[1]), {tokens_, top_k_});
    return {As(SumPairs(plan, end[0]), x.dtype()),
            d_weights,
            Value(),
            As(end[2], xs[3].dtype()),
            As(end[3], xs[4].dtype()),
            As(end[4], xs[5].dtype())};
  }

 private:
  struct Block {
    Value expert;          // s32 scalar
    Value token, weight;   // [m]
    Value x;               // [m, D]
    Value gate, up, down;  // of the expert, in x's dtype
  };

  static Value Zeros(Value like, const xla::Dims& dims, DType dtype) {
    return xla::Full(*like.graph(), 0, {dtype, dims});
  }

  Plan MakePlan(Value experts_NK, Value weights_NK) const {
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
    plan.weight_Qm = xla::Select(real_Qm, xla::Take(xla::Reshape(weights_NK, {pairs_}), pair_Qm),
                                 xla::Constant(graph, 0, DType::kF32));
    // The inverse: each pair's row.
    const auto of_pair = [&](Value x_E) { return xla::Take(x_E, sorted_P); };
    const Value row_sorted = of_pair(first_block_E) * static_cast<double>(rows_) +
                             (iota(pairs_) - of_pair(first_pair_E));
    plan.row_P = xla::ScatterSet(iota(pairs_), order_P, row_sorted);
    return plan;
  }

  Block Read(const Plan& plan, Value block, std::span<const Value> xs) const {
    Block b;
    const DType narrow = xs[0].dtype();
    b.expert = xla::IndexLeading(plan.expert_Q, block);
    b.token = xla::IndexLeading(plan.token_Qm, block);
    b.weight = xla::IndexLeading(plan.weight_Qm, block);
    b.x = xla::Take(xs[0], b.token);
    b.gate = As(xla::IndexLeading(xs[3], b.expert), narrow);
    b.up = As(xla::IndexLeading(xs[4], b.expert), narrow);
    b.down = As(xla::IndexLeading(xs[5], b.expert), narrow);
    return b;
  }

  // Runs `body(block, state) -> state` for the blocks that there are.
  template <typename Body>
  static Values ForBlocks(const Plan& plan, const Values& state, const Body& body) {
    return CountLoop(
        xla::Constant(*plan.blocks.graph(), 0, DType::kS32), state,
        [&](Value block) { return xla::Compare(block, plan.blocks, Comparison::kLt); }, body);
  }

  // x[at] = part and x[at] += part, in place.
  static Value Store(Value x, Value at, Value part) {
    Values starts(x.dims().size(), xla::Constant(*x.graph(), 0, DType::kS32));
    starts[0] = at;
    return xla::DynamicUpdateSlice(x, xla::ExpandDims(part, 0), starts);
  }
  static Value AddAt(Value x, Value at, Value part) {
    return Store(x, at, xla::IndexLeading(x, at) + part);
  }

  // rows [Q, m, n] -> those of the pairs [P, n] in f32, 0 where the expert is not here.
  Value OfPairs(const Plan& plan, Value rows) const {
    const Value flat = xla::Reshape(rows, {blocks_ * rows_, rows.dim(2)});
    return xla::Select(xla::ExpandDims(plan.here_P, 1),
                       As(xla::Take(flat, plan.row_P), DType::kF32),
                       xla::Constant(*rows.graph(), 0, DType::kF32));
  }
  // -> [N, n]: each token's pairs added, always in the same order.
  Value SumPairs(const Plan& plan, Value rows) const {
    return xla::ReduceSum(xla::Reshape(OfPairs(plan, rows), {tokens_, top_k_, rows.dim(2)}), {1});
  }

  int64_t tokens_, top_k_, experts_, pairs_;
  int64_t rows_, blocks_;  // m, Q
};

}  // namespace

Routing Route(Value x_ND, Value router_ED, int64_t top_k, bool normalize) {
  xla::Graph& graph = *x_ND.graph();
  if (!graph.status().ok()) {
    const Value poison = graph.Fail("see the first error");
    return {poison, poison};
  }
  const Value logits = Project(As(x_ND, DType::kF32), As(router_ED, DType::kF32));
  const Value probabilities = xla::Softmax(logits, -1);
  const Value order = xla::SortDescending(xla::StopGradient(probabilities)).second;
  const Value chosen = xla::Slice(order, 1, 0, top_k);
  Values parts;
  for (int64_t k = 0; k < top_k; ++k) {
    const Value expert = xla::Squeeze(xla::Slice(chosen, 1, k, k + 1), 1);
    parts.push_back(xla::ExpandDims(xla::TakeAlongLast(probabilities, expert), 1));
  }
  const Value weights = xla::Concatenate(parts, 1);
  return {chosen, normalize ? weights / xla::ReduceSum(weights, {1}, true) : weights};
}

Value MixExperts(Value x_ND, const Routing& routing, Value gate_EFD, Value up_EFD, Value down_EDF) {
  xla::Graph& graph = *x_ND.graph();
  if (!graph.status().ok()) return graph.Fail("see the first error");
  const xla::Dims& in = gate_EFD.dims();
  const bool fits = in.size() == 3 && up_EFD.dims() == in && in[2] == x_ND.dim(1) &&
                    down_EDF.dims() == xla::Dims{in[0], in[2], in[1]} &&
                    routing.experts_NK.dims() == routing.weights_NK.dims() &&
                    routing.experts_NK.dim(0) == x_ND.dim(0);
  if (!fits) {
    return graph.Fail(
        fmt::format("MixExperts: x {}, experts {}, weights {}, gate {}, up {} and down {} do not "
                    "belong together",
                    x_ND.shape().ToString(), routing.experts_NK.shape().ToString(),
                    routing.weights_NK.shape().ToString(), gate_EFD.shape().ToString(),
                    up_EFD.shape().ToString(), down_EDF.shape().ToString()));
  }
  const Experts experts(x_ND.dim(0), routing.experts_NK.dim(1), in[0]);
  const Value xs[] = {x_ND, routing.weights_NK, routing.experts_NK, gate_EFD, up_EFD, down_EDF};
  return xla::CustomVjp(
      [experts](std::span<const Value> v) { return experts.Forward(v); },
      [experts](std::span<const Value> v, std::span<const Value>, std::span<const Value> d_out) {
        return experts.Backward(v, d_out[0]);
      },
      xs)[0];
}

}  // namespace forebay::models
