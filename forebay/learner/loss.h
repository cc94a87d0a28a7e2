// The policy loss: decoupled PPO with truncated importance sampling, per token.
//
//   w = stop_grad(min(exp(proximal - rollout), is_cap))     is_cap = 0: w = 1, no correction
//   r = exp(logp - proximal)
//   loss = -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
//
// (arXiv 2110.00641, eq. 3; truncation as in IMPALA, arXiv 1802.01561.) A batch is used once, so by
// default the proximal policy is the learner's own: proximal = stop_grad(logp), r = 1, and the clip
// is idle while w corrects for staleness. With kRollout the proximal policy is the one that
// sampled: w = 1 and r is clipped, as in plain PPO/GRPO.
//
// The same formula twice: in double precision on the host as a reference, and as a traced program.
// Legend: N tokens.
#pragma once

#include <cstdint>

#include "forebay/xla/ops.h"

namespace forebay::learner {

enum class Proximal { kCurrent, kRollout };

struct PolicyLossOptions {
  Proximal proximal = Proximal::kCurrent;
  double clip_low = 0.2, clip_high = 0.2;
  double is_cap = 2.0;
};

// min(exp(proximal - rollout), cap); 1 when cap is 0.
double ImportanceWeight(double proximal, double rollout, double cap);

// The k3 estimate of KL(p || q) from samples of p: exp(q - p) - (q - p) - 1.
double KlK3(double logp, double logq);

struct TokenLossInputs {
  double logp, proximal, rollout, advantage;
};
double PolicyTokenLoss(const TokenLossInputs& x, const PolicyLossOptions& options);

// What a program sums over the loss tokens of one micro-batch, in this order; kGapMax is a maximum.
enum MetricSlot {
  kLossSum,  // weighted: the loss itself
  kTokenCount,
  kRatioSum,  // exp(logp - rollout), untruncated
  kClippedCount,
  kCappedCount,
  kKlSum,  // k3, rollout policy to learner
  kEntropySum,
  kGapMax,  // |logp - rollout|
  kMetricSlots
};

struct PolicyLossValues {
  xla::Value loss;     // scalar: sum of weight * token loss
  xla::Value metrics;  // f32 [kMetricSlots], no gradient
};

// All inputs [N] f32; `entropy` may be empty. A token takes part where weight > 0: anything else,
// NaN included, may stand in the other columns without a trace in loss, metrics or gradient.
// `proximal` empty: as the options say.
struct PolicyLossArrays {
  xla::Value logp, rollout, advantages, weights, entropy, proximal;
};
PolicyLossValues PolicyLoss(const PolicyLossArrays& in, const PolicyLossOptions& options);

}  // namespace forebay::learner
