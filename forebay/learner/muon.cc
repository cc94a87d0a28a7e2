// Muon's rule: see optimizer.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "forebay/learner/optimizer.h"
#include "forebay/learner/optimizer_rules.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using xla::Value;

// The quintic of Jordan et al. (2024): singular values in (0, 1] come to about [0.7, 1.2] in five
// steps.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kSteps = 5;
constexpr double kRmsOfAdam = 0.2;  // Liu et al. (2025)

RuleOutput ApplyMuon(const RuleInput& in) {
  const double mu = in.options.momentum;
  const Value m = xla::Select(in.finite, in.state[0] * mu + in.grad, in.state[0]);
  const auto longer = static_cast<double>(std::max(m.dim(-1), m.dim(-2)));
  return {Orthogonalize(in.grad + m * mu) * (kRmsOfAdam * std::sqrt(longer)), {m}};
}

// Orthogonal updates are for maps between hidden states: the rows of an embedding or a head are
// looked up, or compared, one at a time.
bool IsHiddenMatrix(const models::ParamSpec& spec) {
  const auto has = [&](std::string_view part) { return spec.name.find(part) != spec.name.npos; };
  return spec.decay && RankOfOne(spec) >= 2 && !has("embed_tokens") && !has("lm_head");
}

}  // namespace

Value Orthogonalize(Value x) {
  const bool tall = x.dim(-2) > x.dim(-1);
  xla::Dims swap;
  for (int64_t i = 0; i < x.shape().rank(); ++i) swap.push_back(i);
  std::swap(swap[swap.size() - 1], swap[swap.size() - 2]);
  // The smaller Gram matrix.
  if (tall) x = xla::Transpose(x, swap);
  x = x / (xla::Sqrt(xla::ReduceSum(x * x, {-1, -2}, /*keep_dims=*/true)) + 1e-7);
  for (int i = 0; i < kSteps; ++i) {
    const Value gram = xla::MatMul(x, xla::Transpose(x, swap));
    x = x * kA + xla::MatMul(gram * kB + xla::MatMul(gram, gram) * kC, x);
  }
  return tall ? xla::Transpose(x, swap) : x;
}

Rule MuonRule(const models::ParamSpec& spec) {
  if (!IsHiddenMatrix(spec)) return AdamWRule(spec);
  return {{{"m", spec.shape}}, ApplyMuon};
}

}  // namespace forebay::learner
