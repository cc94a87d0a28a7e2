// Muon's rule: see optimizer.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/learner/optimizer.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/models/model.h"
#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {
namespace {

using xla::Value;

// The quintic of Jordan et al. (2024): singular values in (0, 1] come to about [0.7, 1.2] in five
// steps.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kSteps = 5;
constexpr double kRmsOfAdam = 0.2;  // Liu et al. (2025)

// The matrices of the leading axes one after another: a Gram matrix of each of 80 layers at a time
// would be 21 GB for a model of width 8192, on every device.
Value OrthogonalizeEach(Value x, const xla::Axes& rows, const xla::Axes& columns) {
  if (x.shape().rank() <= 2) return Orthogonalize(x, rows, columns);
  const auto body = [&](std::span<const Value> one) {
    return xla::Values{OrthogonalizeEach(one[0], rows, columns)};
  };
  return xla::Scan(body, {}, xla::Values{x}).front();
}

RuleOutput ApplyMuon(const RuleInput& in) {
  const double mu = in.options.momentum;
  const Value m = xla::Select(in.finite, in.state[0] * mu + in.grad, in.state[0]);
  const auto& dims = in.spec.shape.dims;
  const auto longer = static_cast<double>(std::max(dims[dims.size() - 1], dims[dims.size() - 2]));
  const Value u = OrthogonalizeEach(in.grad + m * mu, in.SplitAxes(-2, -2), in.SplitAxes(-1, -1));
  return {u * (kRmsOfAdam * std::sqrt(longer)), {m}};
}

Value Transposed(Value x) {
  xla::Dims swap;
  for (int64_t i = 0; i < x.shape().rank(); ++i) swap.push_back(i);
  std::swap(swap[swap.size() - 1], swap[swap.size() - 2]);
  return xla::Transpose(x, swap);
}

// On x [..., rows, columns], rows <= columns: this device's columns of the matrices, the others'
// along `columns`.
Value NewtonSchulz(Value x, const xla::Axes& columns) {
  const Value square = xla::ReduceSum(x * x, {-1, -2}, /*keep_dims=*/true);
  x = x / (xla::Sqrt(xla::Psum(square, columns)) + 1e-7);
  for (int i = 0; i < kSteps; ++i) {
    const Value gram = xla::Psum(xla::MatMul(x, Transposed(x)), columns);
    x = x * kA + xla::MatMul(gram * kB + xla::MatMul(gram, gram) * kC, x);
  }
  return x;
}

int64_t Devices(Value x, const xla::Axes& axes) {
  return axes.empty() ? 1 : xla::AxisSize(*x.graph(), axes);
}

// The same where the rows are split as well. The long side is then cut over the devices along both,
// so that no device has more of the matrix than before and each does its share of the products.
Value NewtonSchulzOfParts(Value x, const xla::Axes& rows, const xla::Axes& columns) {
  const int64_t devices = Devices(x, rows);
  if (devices == 1) return NewtonSchulz(x, columns);
  const int row = static_cast<int>(x.shape().rank()) - 2, column = row + 1;
  if (x.dim(-1) % devices == 0) {
    std::vector<std::string> both = columns.names();
    both.insert(both.end(), rows.names().begin(), rows.names().end());
    x = xla::AllToAll(x, rows, /*split=*/column, /*concat=*/row);
    return xla::AllToAll(NewtonSchulz(x, xla::Axes(std::move(both))), rows, row, column);
  }
  const int64_t own = x.dim(-2);
  x = NewtonSchulz(xla::AllGather(x, rows, row), columns);
  xla::Values starts(x.shape().dims.size(), xla::Constant(*x.graph(), 0, xla::DType::kS32));
  starts[static_cast<size_t>(row)] = xla::AxisIndex(*x.graph(), rows) * static_cast<double>(own);
  xla::Dims sizes = x.shape().dims;
  sizes[static_cast<size_t>(row)] = own;
  return xla::DynamicSlice(x, starts, sizes);
}

// Orthogonal updates are for maps between hidden states: the rows of an embedding or a head are
// looked up, or compared, one at a time.
bool IsHiddenMatrix(const models::ParamSpec& spec) {
  const auto has = [&](std::string_view part) { return spec.name.find(part) != spec.name.npos; };
  return spec.decay && RankOfOne(spec) >= 2 && !has("embed_tokens") && !has("lm_head");
}

}  // namespace

Value Orthogonalize(Value x, const xla::Axes& rows, const xla::Axes& columns) {
  // By the smaller Gram matrix.
  const bool tall = x.dim(-2) * Devices(x, rows) > x.dim(-1) * Devices(x, columns);
  if (!tall) return NewtonSchulzOfParts(x, rows, columns);
  return Transposed(NewtonSchulzOfParts(Transposed(x), columns, rows));
}

Rule MuonRule(const models::ParamSpec& spec) {
  if (!IsHiddenMatrix(spec)) return AdamWRule(spec);
  return {{{"m", spec.shape, spec.partition}}, ApplyMuon};
}

}  // namespace forebay::learner
