#include "forebay/models/row_split.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "forebay/models/parallel.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {

using xla::DType;
using xla::Value;
using xla::Values;

namespace {

// [B, n, ...] -> [B, dims..., ...] and such: replaces dimension 1, of `merged` dimensions.
Value Redivide(Value x, int64_t merged, const xla::Dims& dims) {
  xla::Dims to = {x.dim(0)};
  to.insert(to.end(), dims.begin(), dims.end());
  to.insert(to.end(), x.dims().begin() + 1 + merged, x.dims().end());
  return xla::Reshape(x, to);
}

}  // namespace

RowSplit::RowSplit(xla::Graph& graph, const Parallel& parallel, int64_t length)
    : devices_(parallel.on() ? xla::AxisSize(graph, xla::kContextAxis) : 1), length_(length) {
  if (devices_ > 1 && length % 2 == 0) chunks_ = 2;
}

// As the batch has it, device i has the chunks 2i and 2i + 1. Each device is dealt an even and an
// odd chunk, so all even ones move in one permutation and all odd ones in another; what differs
// between devices is only which of the two comes first.
Value RowSplit::Swap(Value x, bool back) const {
  if (!dealt()) return x;
  const auto home = [&](int64_t chunk) {
    return chunk < devices_ ? chunk : 2 * devices_ - 1 - chunk;
  };
  std::vector<std::pair<int64_t, int64_t>> even, odd;
  for (int64_t i = 0; i < devices_; ++i) {
    even.emplace_back(i, home(2 * i));
    odd.emplace_back(i, home(2 * i + 1));
    if (back) std::swap(even.back().first, even.back().second);
    if (back) std::swap(odd.back().first, odd.back().second);
  }
  xla::Graph& graph = *x.graph();
  const Value zero = xla::Constant(graph, 0, DType::kS32);
  const Value parity =
      xla::Rem(xla::AxisIndex(graph, xla::kContextAxis), xla::Constant(graph, 2, DType::kS32));
  const Value even_first = xla::Compare(parity, zero, xla::Comparison::kEq);
  const Value first = xla::Slice(x, 1, 0, chunk_length());
  const Value second = xla::Slice(x, 1, chunk_length(), length_);
  Values parts;
  if (back) {
    parts = {xla::Ppermute(xla::Select(even_first, first, second), xla::kContextAxis, even),
             xla::Ppermute(xla::Select(even_first, second, first), xla::kContextAxis, odd)};
  } else {
    const Value evens = xla::Ppermute(first, xla::kContextAxis, even);
    const Value odds = xla::Ppermute(second, xla::kContextAxis, odd);
    parts = {xla::Select(even_first, evens, odds), xla::Select(even_first, odds, evens)};
  }
  return xla::Concatenate(parts, 1);
}

Value RowSplit::Deal(Value x) const { return Swap(x, false); }
Value RowSplit::Collect(Value x) const { return Swap(x, true); }

Value RowSplit::Gather(Value x) const {
  if (devices_ == 1) return x;
  const Value all = xla::AllGather(x, xla::kContextAxis, 1);
  if (!dealt()) return all;
  const Value pairs = Redivide(all, 1, {devices_, chunks_, chunk_length()});
  const Value low = xla::Squeeze(xla::Slice(pairs, 2, 0, 1), 2);
  const Value high = xla::Reverse(xla::Squeeze(xla::Slice(pairs, 2, 1, 2), 2), 1);
  return Redivide(xla::Concatenate(Values{low, high}, 1), 2, {row_length()});
}

Value RowSplit::Scatter(Value x) const {
  if (devices_ == 1) return x;
  if (dealt()) {
    const Value chunks = Redivide(x, 1, {chunks_ * devices_, chunk_length()});
    const Value low = xla::Slice(chunks, 1, 0, devices_);
    const Value high = xla::Reverse(xla::Slice(chunks, 1, devices_, 2 * devices_), 1);
    const Values pairs = {xla::ExpandDims(low, 2), xla::ExpandDims(high, 2)};
    x = Redivide(xla::Concatenate(pairs, 2), 3, {row_length()});
  }
  return xla::ReduceScatter(x, xla::kContextAxis, 1);
}

Value RowSplit::Shift(Value x) const {
  return devices_ == 1 ? x : xla::RingShift(x, xla::kContextAxis, 1);
}

std::vector<Value> RowSplit::Starts(xla::Graph& graph, int64_t back) const {
  const auto number = [&](int64_t n) {
    return xla::Constant(graph, static_cast<double>(n), DType::kS32);
  };
  if (devices_ == 1) return {number(0)};
  const Value device = xla::Rem(
      xla::AxisIndex(graph, xla::kContextAxis) + static_cast<double>(devices_ - back % devices_),
      number(devices_));
  const auto length = static_cast<double>(chunk_length());
  if (!dealt()) return {device * length};
  return {device * length, (number(2 * devices_ - 1) - device) * length};
}

}  // namespace forebay::models
