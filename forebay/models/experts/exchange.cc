#include "forebay/models/experts/exchange.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "forebay/models/count_loop.h"
#include "forebay/models/experts/sorted.h"
#include "forebay/models/layers.h"
#include "forebay/models/parallel.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::models::experts {

using xla::Comparison;
using xla::DType;
using xla::Value;
using xla::Values;

namespace {

Value Number(xla::Graph& graph, int64_t value) {
  return xla::Constant(graph, static_cast<double>(value), DType::kS32);
}
Value Int(Value pred) { return xla::Convert(pred, DType::kS32); }

// `mask` [n], or [n, m], over the leading dimensions of x; zeros elsewhere.
Value Where(Value mask, Value x) {
  while (mask.dims().size() < x.dims().size()) mask = xla::ExpandDims(mask, -1);
  return xla::Select(mask, x, xla::Constant(*x.graph(), 0, x.dtype()));
}

// Column k of x [N, K].
Value Column(Value x, int64_t k) { return xla::Squeeze(xla::Slice(x, 1, k, k + 1), 1); }

}  // namespace

struct Exchange::Plan {
  Value device_NK;  // of each pair's expert
  Value leads_NK;   // the first of a token's pairs with this device
  Value slot_NK;    // of the token among those for this device
  Value count_n;    // tokens for each device
  Value token_ns;   // the token of each slot, [n, rounds * C]
  Value rounds;     // s32 scalar, the same on all devices
};

struct Exchange::Round {
  Value token_nC;
  Value real_nC;      // whether there is one
  Value device_NK;    // of Plan
  Value row_NK;       // of each pair's token among all rows of the round
  Value travels_NK;   // whether it is among them
  Value collects_NK;  // the same, once a token and device
};

int64_t ExpectedCapacity(int64_t tokens, int64_t top_k, int64_t devices) {
  constexpr double kRoom = 1.25;
  constexpr int64_t kMultiple = 8;
  const double none = std::pow(1 - 1 / static_cast<double>(devices), static_cast<double>(top_k));
  const auto wanted =
      static_cast<int64_t>(std::ceil(kRoom * static_cast<double>(tokens) * (1 - none)));
  return std::min(tokens, (wanted + kMultiple - 1) / kMultiple * kMultiple);
}

Exchange::Exchange(int64_t tokens, int64_t top_k, int64_t own_experts, int64_t devices,
                   int64_t capacity)
    : tokens_(tokens),
      top_k_(top_k),
      own_experts_(own_experts),
      devices_(devices),
      capacity_(std::min(capacity, tokens)),
      rounds_max_((tokens + capacity_ - 1) / capacity_),
      sorted_(devices * capacity_, top_k, own_experts) {}

Exchange::Plan Exchange::MakePlan(Value experts_NK) const {
  xla::Graph& graph = *experts_NK.graph();
  Plan plan;
  plan.device_NK = experts_NK / static_cast<double>(own_experts_);
  const Value devices = xla::Iota(graph, {DType::kS32, {1, 1, devices_}}, 2);
  const Value goes_NKn = xla::Compare(xla::ExpandDims(plan.device_NK, 2), devices, Comparison::kEq);
  const Value wanted_Nn = xla::ReduceMax(Int(goes_NKn), {1});
  plan.count_n = xla::ReduceSum(wanted_Nn, {0});
  const Value slot_Nn = xla::CumSum(wanted_Nn, 0) - wanted_Nn;
  Values slots, leads;
  for (int64_t k = 0; k < top_k_; ++k) {
    const Value device = Column(plan.device_NK, k);
    slots.push_back(xla::ExpandDims(xla::TakeAlongLast(slot_Nn, device), 1));
    Value repeats = xla::ZerosLike(device);
    for (int64_t before = 0; before < k; ++before) {
      repeats =
          repeats + Int(xla::Compare(device, Column(plan.device_NK, before), Comparison::kEq));
    }
    leads.push_back(xla::ExpandDims(xla::Compare(repeats, Number(graph, 0), Comparison::kEq), 1));
  }
  plan.slot_NK = xla::Concatenate(slots, 1);
  plan.leads_NK = xla::Concatenate(leads, 1);
  // A stable sort puts those that go first, in their order.
  const Value order_nN = xla::SortDescending(xla::Transpose(wanted_Nn, {1, 0})).second;
  plan.token_ns = xla::Pad(order_nN, 1, 0, rounds_max_ * capacity_ - tokens_, 0);
  const Value most = xla::ReduceMax(plan.count_n, {0});
  const Value rounds = (most + static_cast<double>(capacity_ - 1)) / static_cast<double>(capacity_);
  plan.rounds = xla::PMax(rounds, TokenAxes());
  return plan;
}

Exchange::Round Exchange::MakeRound(const Plan& plan, Value number) const {
  xla::Graph& graph = *number.graph();
  const Value first = number * static_cast<double>(capacity_);
  Round round;
  round.token_nC =
      xla::DynamicSlice(plan.token_ns, Values{Number(graph, 0), first}, {devices_, capacity_});
  const Value place_1C = xla::Iota(graph, {DType::kS32, {1, capacity_}}, 1) + first;
  round.real_nC = xla::Compare(place_1C, xla::ExpandDims(plan.count_n, 1), Comparison::kLt);
  const Value within_NK = plan.slot_NK - first;
  round.travels_NK = xla::And(xla::Compare(within_NK, Number(graph, 0), Comparison::kGe),
                              xla::Compare(within_NK, Number(graph, capacity_), Comparison::kLt));
  round.collects_NK = xla::And(round.travels_NK, plan.leads_NK);
  round.row_NK = plan.device_NK * static_cast<double>(capacity_) + within_NK;
  return round;
}

Value Exchange::Send(const Round& round, Value x) const {
  const Value rows = Where(round.real_nC, xla::Take(x, round.token_nC));
  const Value arrived = xla::AllToAll(rows, xla::kExpertAxis, 0, 0);
  xla::Dims dims = {devices_ * capacity_};
  dims.insert(dims.end(), x.dims().begin() + 1, x.dims().end());
  return xla::Reshape(arrived, dims);
}

Value Exchange::Return(Value rows) const {
  const Value split = xla::Reshape(rows, {devices_, capacity_, rows.dim(1)});
  const Value back = xla::AllToAll(split, xla::kExpertAxis, 0, 0);
  return xla::Reshape(back, rows.dims());
}

// The operands of SortedExperts for what arrived. Experts travel as floats beside their weights, in
// one message, counted from 1: rows that are none hold 0, which no device has.
Values Exchange::Arrived(const Round& round, std::span<const Value> xs) const {
  const Value numbers = As(xs[kExperts] + 1, DType::kF32);
  const Value pairs = Send(round, xla::Concatenate(Values{numbers, xs[kWeights]}, 1));
  const Value first =
      xla::AxisIndex(*pairs.graph(), xla::kExpertAxis) * static_cast<double>(own_experts_);
  Values arrived(kOperands);
  arrived[kX] = Send(round, xs[kX]);
  arrived[kExperts] = xla::Convert(xla::Slice(pairs, 1, 0, top_k_), DType::kS32) - (first + 1);
  arrived[kWeights] = xla::Slice(pairs, 1, top_k_, 2 * top_k_);
  for (const Operand which : {kGate, kUp, kDown}) arrived[which] = xs[which];
  return arrived;
}

// The sums that came back [n * C, D], added for each token in the order of its experts -> [N, D]
// f32.
Value Exchange::Collect(const Round& round, Value back) const {
  Value sum;
  for (int64_t k = 0; k < top_k_; ++k) {
    const Value row = As(xla::Take(back, Column(round.row_NK, k)), DType::kF32);
    const Value part = Where(Column(round.collects_NK, k), row);
    sum = sum.empty() ? part : sum + part;
  }
  return sum;
}

Value Exchange::Forward(std::span<const Value> xs) const {
  const Plan plan = MakePlan(xs[kExperts]);
  xla::Graph& graph = *xs[kX].graph();
  const Values start = {xla::Full(graph, 0, {DType::kF32, xs[kX].dims()})};
  return CountLoop(
      Number(graph, 0), start,
      [&](Value number) { return xla::Compare(number, plan.rounds, Comparison::kLt); },
      [&](Value number, std::span<const Value> state) -> Values {
        const Round round = MakeRound(plan, number);
        const Value made = sorted_.Forward(Arrived(round, xs));
        return {state[0] + Collect(round, Return(As(made, xs[kX].dtype())))};
      })[0];
}

Values Exchange::Backward(std::span<const Value> xs, Value d_out, const Values& sums) const {
  const Plan plan = MakePlan(xs[kExperts]);
  xla::Graph& graph = *xs[kX].graph();
  const Values start = {xla::Full(graph, 0, {DType::kF32, xs[kX].dims()}),
                        xla::Full(graph, 0, {DType::kF32, xs[kWeights].dims()}), sums[0], sums[1],
                        sums[2]};
  return CountLoop(
      Number(graph, 0), start,
      [&](Value number) { return xla::Compare(number, plan.rounds, Comparison::kLt); },
      [&](Value number, std::span<const Value> state) -> Values {
        const Round round = MakeRound(plan, number);
        const Values d = sorted_.Backward(Arrived(round, xs), Send(round, d_out),
                                          {state[2], state[3], state[4]});
        const Value d_weights = Return(d[1]);
        Values columns;
        for (int64_t k = 0; k < top_k_; ++k) {
          const Value found = xla::Take(Column(d_weights, k), Column(round.row_NK, k));
          columns.push_back(xla::ExpandDims(Where(Column(round.travels_NK, k), found), 1));
        }
        return {state[0] + Collect(round, Return(As(d[0], xs[kX].dtype()))),
                state[1] + xla::Concatenate(columns, 1), d[2], d[3], d[4]};
      });
}

}  // namespace forebay::models::experts
