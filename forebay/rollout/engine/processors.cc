#include "forebay/rollout/engine/processors.h"

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "forebay/rollout/engine/sampler.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {
namespace {

using xla::Comparison;
using xla::DType;
using xla::Value;
using xla::Values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Value U32(xla::Graph& graph, uint32_t value) {
  return xla::Constant(graph, static_cast<double>(value), DType::kU32);
}

// u32 whose order is that of the floats; NaN comes last, so that no filter hides it.
Value OrderedBits(Value x) {
  xla::Graph& graph = *x.graph();
  const Value bits = xla::BitcastConvert(x, DType::kU32);
  const Value top = U32(graph, 0x80000000);
  const Value negative = xla::Compare(bits, top, Comparison::kGe);
  const Value ordered =
      xla::Select(negative, xla::Xor(bits, U32(graph, 0xFFFFFFFF)), xla::Or(bits, top));
  return xla::Select(xla::Compare(x, x, Comparison::kNe), U32(graph, 0xFFFFFFFF), ordered);
}

// The largest t_S1 (u32) for which enough(t_S1), a predicate [S, 1] that only ever turns from true
// to false as t grows; 0 if there is none.
Value Bisect(xla::Graph& graph, int64_t slots, const std::function<Value(Value)>& enough) {
  const std::array<Value, 2> state = {xla::Full(graph, 0, {DType::kU32, {slots, 1}}),
                                      U32(graph, 0x80000000)};
  return xla::While(
      [](std::span<const Value> in) -> Values {
        return {xla::Compare(in[1], U32(*in[1].graph(), 0), Comparison::kNe)};
      },
      [&](std::span<const Value> in) -> Values {
        const Value candidate = xla::Or(in[0], in[1]);
        return {xla::Select(enough(candidate), candidate, in[0]),
                xla::ShiftRightLogical(in[1], U32(*in[1].graph(), 1))};
      },
      state)[0];
}

Value Count(Value predicate_SV) {
  return xla::ReduceSum(xla::Convert(predicate_SV, DType::kS32), {1}, true);
}

}  // namespace

Value EditLogits(Value logits_SV, const EditInputs& inputs) {
  xla::Graph& graph = *logits_SV.graph();
  const int64_t slots = logits_SV.dim(0), vocab = logits_SV.dim(1);
  const int64_t edits = inputs.tokens_SK.dim(1);
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  const Value flat = xla::Reshape(logits_SV, {slots * vocab});
  // An unused entry lies beyond the end, where a scatter drops it.
  const Value beyond = xla::Constant(graph, static_cast<double>(slots * vocab), DType::kS32);
  const Value row = xla::Iota(graph, {DType::kS32, {slots, 1}}, 0) * static_cast<double>(vocab);
  const Value places_SK = xla::Select(xla::Compare(inputs.tokens_SK, zero, Comparison::kLt), beyond,
                                      row + inputs.tokens_SK);
  const Value biased = xla::Take(flat, places_SK) + inputs.biases_SK;
  const Value penalised = xla::Select(xla::Compare(biased, xla::ZerosLike(biased), Comparison::kGt),
                                      biased / inputs.factors_SK, biased * inputs.factors_SK);
  const Value edited = penalised - inputs.subtract_SK;
  return xla::Reshape(xla::ScatterSet(flat, xla::Reshape(places_SK, {slots * edits}),
                                      xla::Reshape(edited, {slots * edits})),
                      {slots, vocab});
}

Value FilterLogits(Value logits_SV, const FilterInputs& inputs) {
  xla::Graph& graph = *logits_SV.graph();
  const int64_t slots = logits_SV.dim(0);
  const Value temperature_S1 = xla::ExpandDims(inputs.temperatures_S, 1);
  const Value greedy =
      xla::Compare(temperature_S1, xla::ZerosLike(temperature_S1), Comparison::kLe);
  const Value off = xla::ZerosLike(temperature_S1);
  const Value min_p_S1 = xla::Select(greedy, off, xla::ExpandDims(inputs.min_p_S, 1));
  const Value top_p_S1 = xla::Select(greedy, off + 1.0, xla::ExpandDims(inputs.top_p_S, 1));
  const Value all = xla::Full(graph, 0, {DType::kS32, {slots, 1}});
  const Value top_k_S1 = xla::Select(greedy, all, xla::ExpandDims(inputs.top_k_S, 1));

  const Value scaled = Scaled(logits_SV, inputs.temperatures_S);
  const Value weight = xla::Exp(scaled - xla::ReduceMax(scaled, {1}, true));
  // What is gone has the lowest order and no weight.
  const Value rare = xla::Compare(weight, min_p_S1, Comparison::kLt);
  const Value order = xla::Select(rare, U32(graph, 0), OrderedBits(scaled));

  const Value by_k =
      xla::Select(xla::Compare(top_k_S1, all, Comparison::kGt),
                  Bisect(graph, slots,
                         [&](Value t) {
                           return xla::Compare(Count(xla::Compare(order, t, Comparison::kGe)),
                                               top_k_S1, Comparison::kGe);
                         }),
                  U32(graph, 0));
  const Value beyond_k = xla::Or(rare, xla::Compare(order, by_k, Comparison::kLt));
  const Value left = xla::Select(beyond_k, xla::Constant(graph, 0, DType::kF32), weight);
  const Value wanted = top_p_S1 * xla::ReduceSum(left, {1}, true);
  const Value by_p = xla::Select(
      xla::Compare(top_p_S1, off + 1.0, Comparison::kLt),
      Bisect(graph, slots,
             [&](Value t) {
               const Value kept = xla::Select(xla::Compare(order, t, Comparison::kGe), left,
                                              xla::Constant(graph, 0, DType::kF32));
               return xla::Compare(xla::ReduceSum(kept, {1}, true), wanted, Comparison::kGe);
             }),
      U32(graph, 0));
  const Value gone = xla::Or(beyond_k, xla::Compare(order, by_p, Comparison::kLt));
  return xla::Select(gone, xla::Constant(graph, -kInfinity, DType::kF32), logits_SV);
}

Top TopLogprobs(const TopInputs& inputs, int64_t most) {
  xla::Graph& graph = *inputs.logits_SV.graph();
  const int64_t slots = inputs.logits_SV.dim(0), vocab = inputs.logits_SV.dim(1);
  const Value scaled = Scaled(inputs.logits_SV, inputs.temperatures_S);
  const Value total_S1 = xla::LogSumExp(scaled, {1}, true);
  const Value column = xla::Iota(graph, {DType::kS32, {1, vocab}}, 1);
  const Value nothing = xla::Constant(graph, -kInfinity, DType::kF32);
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  // The last one found: the next is the first of the largest that come after it in the order of
  // value, then column.
  const std::array<Value, 5> state = {zero, xla::Full(graph, kInfinity, {DType::kF32, {slots, 1}}),
                                      xla::Full(graph, -1, {DType::kS32, {slots, 1}}),
                                      xla::Full(graph, 0, {DType::kS32, {slots, most}}),
                                      xla::Full(graph, -kInfinity, {DType::kF32, {slots, most}})};
  const Values found = xla::While(
      [&](std::span<const Value> in) -> Values {
        return {xla::Compare(in[0], inputs.count, Comparison::kLt)};
      },
      [&](std::span<const Value> in) -> Values {
        const Value after = xla::Or(xla::Compare(scaled, in[1], Comparison::kLt),
                                    xla::And(xla::Compare(scaled, in[1], Comparison::kEq),
                                             xla::Compare(column, in[2], Comparison::kGt)));
        const Value rest = xla::Select(after, scaled, nothing);
        const Value token_S = xla::ArgMax(rest, 1);
        const Value value_S1 = xla::ExpandDims(xla::TakeAlongLast(rest, token_S), 1);
        const Value token_S1 = xla::ExpandDims(token_S, 1);
        const std::array<Value, 2> corner = {zero, in[0]};
        return {in[0] + 1.0, value_S1, token_S1, xla::DynamicUpdateSlice(in[3], token_S1, corner),
                xla::DynamicUpdateSlice(in[4], value_S1 - total_S1, corner)};
      },
      state);
  return {.tokens_SN = found[3], .logprobs_SN = found[4]};
}

}  // namespace forebay::rollout
