#include "forebay/models/parallel.h"

#include <cstddef>
#include <cstdint>

#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {

using xla::Value;

xla::Axes TokenAxes() {
  return {xla::kDataAxis, xla::kFsdpAxis, xla::kExpertAxis, xla::kContextAxis};
}

xla::Axes WeightAxes() { return {xla::kFsdpAxis, xla::kExpertAxis, xla::kContextAxis}; }

xla::PartitionSpec RowsPartition() {
  return {xla::Axes{xla::kDataAxis, xla::kFsdpAxis, xla::kExpertAxis}, xla::kContextAxis};
}

Value Parallel::Gather(Value weight, const xla::PartitionSpec& partition, xla::DType dtype) const {
  if (!on_) return weight;
  for (size_t i = 0; i < partition.dims().size(); ++i) {
    const xla::Axes& axes = partition.dims()[i];
    if (axes.empty() || axes.names().front() != xla::kFsdpAxis) continue;
    if (weight.dtype() != dtype) weight = xla::Convert(weight, dtype);
    return xla::AllGather(weight, axes, static_cast<int>(i));
  }
  return weight;
}

Value Parallel::Enter(Value x) const { return on_ ? xla::AllGather(x, xla::kTensorAxis, 0) : x; }

Value Parallel::Leave(Value partial) const {
  return on_ ? xla::ReduceScatter(partial, xla::kTensorAxis, 0) : partial;
}

Value Parallel::Sum(Value partial) const {
  return on_ ? xla::Psum(partial, xla::kTensorAxis) : partial;
}

Value Parallel::Max(Value x) const { return on_ ? xla::PMax(x, xla::kTensorAxis) : x; }

Value Parallel::EnterExperts(Value x) const {
  return on_ ? xla::AllGather(x, xla::kExpertAxis, 0) : x;
}

Value Parallel::LeaveExperts(Value partial) const {
  return on_ ? xla::ReduceScatter(partial, xla::kExpertAxis, 0) : partial;
}

Value Parallel::OwnExperts(Value experts, int64_t count) const {
  if (!on_) return experts;
  const Value first = xla::AxisIndex(*experts.graph(), xla::kExpertAxis);
  return experts - first * static_cast<double>(count);
}

Parallel::Local Parallel::ToLocal(Value index, int64_t rows) const {
  xla::Graph& graph = *index.graph();
  const auto number = [&](int64_t n) {
    return xla::Constant(graph, static_cast<double>(n), xla::DType::kS32);
  };
  if (on_) index = index - xla::AxisIndex(graph, xla::kTensorAxis) * static_cast<double>(rows);
  const Value mine = xla::And(xla::Compare(index, number(0), xla::Comparison::kGe),
                              xla::Compare(index, number(rows), xla::Comparison::kLt));
  return {.index = xla::Min(xla::Max(index, number(0)), number(rows - 1)), .mine = mine};
}

}  // namespace forebay::models
