#include "forebay/learner/loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"

namespace forebay::learner {
namespace {

using xla::Comparison;
using xla::Value;

// exp of a larger log ratio would overflow f32 and turn a sum of metrics into inf.
constexpr double kLogRatioMax = 20;

Value Zero(Value like) { return xla::Constant(*like.graph(), 0, xla::DType::kF32); }
Value AsFloat(Value predicate) { return xla::Convert(predicate, xla::DType::kF32); }
Value Sum(Value x_N) { return xla::ReduceSum(x_N, {0}); }

}  // namespace

double ImportanceWeight(double proximal, double rollout, double cap) {
  return cap == 0 ? 1 : std::min(std::exp(proximal - rollout), cap);
}

double KlK3(double logp, double logq) { return std::exp(logq - logp) - (logq - logp) - 1; }

double PolicyTokenLoss(const TokenLossInputs& x, const PolicyLossOptions& options) {
  const double weight = ImportanceWeight(x.proximal, x.rollout, options.is_cap);
  const double ratio = std::exp(x.logp - x.proximal);
  const double clipped = std::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
  return -weight * std::min(ratio * x.advantage, clipped * x.advantage);
}

PolicyLossValues PolicyLoss(const PolicyLossArrays& in, const PolicyLossOptions& options) {
  const Value zero = Zero(in.logp);
  const Value mask = xla::Compare(in.weights, zero, Comparison::kGt);  // false for NaN
  const auto masked = [&](Value x) { return xla::Select(mask, x, zero); };
  const Value logp = masked(in.logp);
  const Value rollout = masked(in.rollout);
  const Value advantages = masked(in.advantages);
  const Value weights = masked(in.weights);
  Value proximal = options.proximal == Proximal::kRollout ? rollout : xla::StopGradient(logp);
  if (!in.proximal.empty()) proximal = xla::StopGradient(masked(in.proximal));

  const Value log_weight = xla::StopGradient(proximal - rollout);
  const Value ratio = xla::Exp(logp - proximal);
  const Value clipped = xla::Clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
  Value token_loss = -xla::Min(ratio * advantages, clipped * advantages);
  Value capped = xla::Compare(log_weight, log_weight, Comparison::kNe);  // nowhere
  if (options.is_cap > 0) {
    const double log_cap = std::log(options.is_cap);
    const Value cap = xla::Constant(*logp.graph(), log_cap, xla::DType::kF32);
    capped = xla::Compare(log_weight, cap, Comparison::kGt);
    // min(exp(x), cap), without an exp that overflows.
    token_loss = token_loss * xla::Exp(xla::Min(log_weight, cap));
  }
  const Value loss = Sum(weights * token_loss);

  const Value gap = xla::StopGradient(logp - rollout);
  const Value log_ratio = xla::Clamp(gap, -kLogRatioMax, kLogRatioMax);
  const Value rollout_ratio = xla::Exp(log_ratio);
  const Value idle = xla::Compare(clipped * advantages, ratio * advantages, Comparison::kGe);
  const Value entropy =
      in.entropy.empty() ? xla::ZerosLike(logp) : masked(xla::StopGradient(in.entropy));
  std::vector<Value> slots(kMetricSlots);
  slots[kLossSum] = loss;
  slots[kTokenCount] = Sum(AsFloat(mask));
  slots[kRatioSum] = Sum(masked(rollout_ratio));
  slots[kClippedCount] = Sum(AsFloat(xla::And(mask, xla::Not(idle))));
  slots[kCappedCount] = Sum(AsFloat(xla::And(mask, capped)));
  slots[kKlSum] = Sum(masked(rollout_ratio - log_ratio - 1.0));
  slots[kEntropySum] = Sum(entropy);
  slots[kGapMax] = xla::ReduceMax(xla::Abs(gap), {0});
  for (Value& slot : slots) slot = xla::StopGradient(xla::Reshape(slot, {1}));
  return {loss, xla::Concatenate(slots, 0)};
}

}  // namespace forebay::learner
