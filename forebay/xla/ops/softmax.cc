// Softmax and LogSumExp: stable, and safe for rows that are -inf throughout (fully masked).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

// The row maximum, 0 where it is -inf: then x - max is -inf, not NaN.
Value FiniteMax(Value x, const Dims& axes) {
  const Value max = ReduceMax(x, axes, /*keep_dims=*/true);
  const Value low = Full(*x.graph(), -HUGE_VAL, max.shape());
  return Select(Compare(max, low, Comparison::kEq), ZerosLike(max), max);
}

}  // namespace

// y = exp(x - max) / sum. A fully masked row gives zeros, and a zero gradient.
Value Softmax(Value x, int axis) {
  const Operands in("Softmax", {x});
  if (!in.ok()) return in.poison();
  const int64_t a = NormalizeAxis(axis, x.shape().rank());
  if (a < 0 || !IsFloat(x.dtype())) {
    return in.Fail(fmt::format("axis {} of {}", axis, x.shape().ToString()));
  }
  const auto body = [a](std::span<const Value> xs) {
    const Value e = Exp(xs[0] - FiniteMax(xs[0], {a}));
    const Value sum = ReduceSum(e, {a}, /*keep_dims=*/true);
    const Value zero = ZerosLike(sum);
    const Value one = Full(*sum.graph(), 1.0, sum.shape());
    return Values{e / Select(Compare(sum, zero, Comparison::kEq), one, sum)};
  };
  const auto vjp = [a](std::span<const Value>, std::span<const Value> ys,
                       std::span<const Value> cts) {
    const Value weighted = cts[0] * ys[0];
    return Values{weighted - ys[0] * ReduceSum(weighted, {a}, /*keep_dims=*/true)};
  };
  return CustomVjp(body, vjp, std::span(&x, 1))[0];
}

// max + log(sum(exp(x - max))). A fully masked row gives -inf, and a zero gradient.
Value LogSumExp(Value x, Dims axes, bool keep_dims) {
  const Operands in("LogSumExp", {x});
  if (!in.ok()) return in.poison();
  const std::string asked = DimsText(axes);
  if (!NormalizeAxes(axes, x.shape().rank()) || !IsFloat(x.dtype())) {
    return in.Fail(fmt::format("axes {} of {}", asked, x.shape().ToString()));
  }
  if (axes.empty()) return x;
  const auto body = [axes](std::span<const Value> xs) {
    const Value max = FiniteMax(xs[0], axes);
    return Values{Log(ReduceSum(Exp(xs[0] - max), axes, /*keep_dims=*/true)) + max};
  };
  const auto vjp = [](std::span<const Value> xs, std::span<const Value> ys,
                      std::span<const Value> cts) {
    const Value low = Full(*ys[0].graph(), -HUGE_VAL, ys[0].shape());
    const Value finite = Select(Compare(ys[0], low, Comparison::kEq), ZerosLike(ys[0]), ys[0]);
    return Values{cts[0] * Exp(xs[0] - finite)};
  };
  const Value kept = CustomVjp(body, vjp, std::span(&x, 1))[0];
  if (keep_dims || IsPoison(kept)) return kept;
  Dims dims;
  for (size_t i = 0; i < x.dims().size(); ++i) {
    if (std::ranges::find(axes, static_cast<int64_t>(i)) == axes.end()) dims.push_back(x.dims()[i]);
  }
  return Reshape(kept, std::move(dims));
}

}  // namespace forebay::xla
