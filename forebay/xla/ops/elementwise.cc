#include "forebay/xla/ops/elementwise.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/stablehlo/emitter.h"

namespace forebay::xla {

void Elementwise::Emit(const Node& node, Emitter& out) const {
  out.Result(node, fmt::format("stablehlo.{} {} : {}", kind_.stablehlo, out.OperandNames(node),
                               TypeText(node.outputs[0])));
}

std::optional<Dims> BroadcastDims(const Dims& a, const Dims& b) {
  const size_t rank = std::max(a.size(), b.size());
  Dims dims(rank);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t x = i < rank - a.size() ? 1 : a[i - (rank - a.size())];
    const int64_t y = i < rank - b.size() ? 1 : b[i - (rank - b.size())];
    if (x != y && x != 1 && y != 1) return std::nullopt;
    dims[i] = x == 1 ? y : x;
  }
  return dims;
}

bool BroadcastPair(const Operands& in, Value& a, Value& b) {
  if (a.dtype() != b.dtype()) {
    in.Fail(fmt::format("dtypes of {} and {} differ; Convert one of them", a.shape().ToString(),
                        b.shape().ToString()));
    return false;
  }
  if (a.dims() == b.dims()) return true;
  const std::optional<Dims> dims = BroadcastDims(a.dims(), b.dims());
  if (!dims) {
    in.Fail(fmt::format("shapes {} and {} do not broadcast", a.shape().ToString(),
                        b.shape().ToString()));
    return false;
  }
  a = BroadcastTo(a, *dims);
  b = BroadcastTo(b, *dims);
  return true;
}

}  // namespace forebay::xla
